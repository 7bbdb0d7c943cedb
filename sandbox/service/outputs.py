"""Output that waits for the rest of its answer: of a batch's calls, a notebook's cells, an agent's actions.

    result --> full? its heads alone --> take --> ... the answer is sent --> given back

A request may have 65,536 calls, each of which writes megabytes.
"""

import dataclasses

from aiohttp import web

from rocstar.sandbox.service.http import LARGE_BYTES, WRITE_S, send
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.shares import Shares
from rocstar.sandbox.types import ExecResult, SandboxError

SHORT_CHARS = 4096
"""Kept of a text when too much output is held."""


class HeldOutput:
    """What one request holds, given back when it is left. Invariant: where `full` is asked before each result
    is kept, requests hold one result each beyond the total of `shares`, and heads."""

    def __init__(self, shares: Shares, owner: str) -> None:
        self._shares = shares
        self._owner = owner
        self._chars = 0

    def __enter__(self) -> "HeldOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self._shares.give(self._owner, self._chars)

    @property
    def full(self) -> bool:
        """Whether no more than heads are to be kept."""
        return not self._shares.fits(self._owner, 0)

    def take(self, chars: int) -> None:
        self._chars += chars
        self._shares.take(self._owner, chars)

    def give(self, chars: int) -> None:
        """So much of it is sent."""
        self.take(-chars)


def shortened(result: ExecResult) -> ExecResult:
    """With heads of its texts only: what becomes of a result when too much output is held already."""
    return dataclasses.replace(
        result,
        stdout=result.stdout[:SHORT_CHARS],
        stderr=result.stderr[:SHORT_CHARS],
        value=None if result.value is None else result.value[:SHORT_CHARS],
        stdout_truncated=result.stdout_truncated or len(result.stdout) > SHORT_CHARS,
        stderr_truncated=result.stderr_truncated or len(result.stderr) > SHORT_CHARS,
    )


def fitting(result: ExecResult, full: bool) -> ExecResult:
    """The result, or its heads where too much is held already. Raises SandboxError for its files then, which
    have none."""
    if not full:
        return result
    if result.files or result.displays:
        message = "it has run, but answers that clients have yet to take leave no room for its files"
        raise SandboxError(message, kind="no_room", retryable=False)
    return shortened(result)


async def send_held(
    request: HttpRequest, answer: HttpAnswer, shares: Shares, timeout_s: float = WRITE_S
) -> web.StreamResponse:
    """An answer, held while its client takes it."""
    if len(answer.body) < LARGE_BYTES:
        return await send(request, answer, timeout_s)
    with HeldOutput(shares, request.owner) as held:
        held.take(len(answer.body))
        return await send(request, answer, timeout_s)
