"""Output that waits for the rest of its answer: of a batch's calls, a notebook's cells, an agent's actions.

    result --> full? its heads alone --> take --> ... the answer is sent --> given back

A request may have 65,536 calls, each of which writes megabytes.
"""

import dataclasses

from aiohttp import web

from rocstar.sandbox.loopback.shares import Shares
from rocstar.sandbox.service.errors import Full
from rocstar.sandbox.service.http import WHOLE_BYTES, WRITE_S, send
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.types import ExecResult, SandboxError

SHORT_CHARS = 4096
"""Kept of a text when too much output is held."""


class HeldOutput:
    """What one request holds, `chars`, given back when it is left. Invariant: where each result is `cut`
    before it is kept, requests hold one result each beyond the total of `shares`, and heads of as much."""

    def __init__(self, shares: Shares, owner: str) -> None:
        self._shares = shares
        self.owner = owner
        self.chars = 0

    def __enter__(self) -> "HeldOutput":
        return self

    def __exit__(self, *error: object) -> None:
        if self.chars:
            self._shares.give(self.owner, self.chars)

    @property
    def full(self) -> bool:
        """Whether no more than heads are to be kept."""
        return not self._shares.fits(self.owner, 0)

    def cut(self, result: ExecResult) -> ExecResult:
        """As much of its texts as there is room for: all, heads, or nothing where heads are too many."""
        if not self.full:
            return result
        spent = self._shares.of(self.owner) > 2 * self._shares.most(self.owner)
        return shortened(result, 0 if spent else SHORT_CHARS)

    def hold(self, chars: int) -> None:
        """So much it is now."""
        self.take(chars - self.chars)

    def take(self, chars: int) -> None:
        self.chars += chars
        self._shares.take(self.owner, chars)

    def give(self, chars: int) -> None:
        """So much of it is sent."""
        self.take(-chars)


def shortened(result: ExecResult, chars: int = SHORT_CHARS) -> ExecResult:
    """With heads of its texts only: what becomes of a result when too much output is held already."""
    return dataclasses.replace(
        result,
        stdout=result.stdout[:chars],
        stderr=result.stderr[:chars],
        value=None if result.value is None else result.value[:chars],
        stdout_truncated=result.stdout_truncated or len(result.stdout) > chars,
        stderr_truncated=result.stderr_truncated or len(result.stderr) > chars,
    )


def fitting(result: ExecResult, held: HeldOutput) -> ExecResult:
    """The result, or its heads where too much is held already. Raises SandboxError for its files then, which
    have none."""
    if (result.files or result.displays) and held.full:
        message = "it has run, but answers that clients have yet to take leave no room for its files"
        raise SandboxError(message, kind="no_room", retryable=False)
    return held.cut(result)


async def send_held(
    request: HttpRequest,
    answer: HttpAnswer,
    held: HeldOutput,
    timeout_s: float = WRITE_S,
    *,
    kept: bool = False,
) -> web.StreamResponse:
    """An answer, held while its client takes it. Where clients have yet to take too much, raises Full for one
    that is kept and can be asked for again."""
    if len(answer.body) >= WHOLE_BYTES:
        if kept and held.full:
            raise Full("answers that clients have yet to take leave no room for this one; ask again later")
        held.hold(len(answer.body))
    return await send(request, answer, timeout_s)
