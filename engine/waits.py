"""Who waits for whom, right now.

    async with waiting("s3/task/0", "replica 2", kind="generate", deadline=deadline):
        await ...

Every await on something outside of its own task has a deadline and is written down here while it lasts. The
board is found through a context variable, which tasks inherit, so nobody hands it around; without a board
only the deadline is left. The watchdog (watchdog.py) looks at the board: if no entry comes or goes, that is
a stall, and it may let the deadline of one pass early.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

_BOARD: ContextVar[WaitBoard | None] = ContextVar("rocstar_waits", default=None)


@dataclass(slots=True, kw_only=True, eq=False)
class Wait:
    """One await that has begun and not ended."""

    who: str
    whom: str
    kind: str
    since: float
    task: asyncio.Task[object] | None
    timeout: asyncio.Timeout

    def expire(self) -> bool:
        """Let the deadline pass now: the await raises TimeoutError. False if it has passed already."""
        if self.timeout.expired():
            return False
        self.timeout.reschedule(asyncio.get_running_loop().time())
        return True

    def line(self, now: float) -> str:
        return f"{self.who} waits for {self.whom} ({self.kind}) since {now - self.since:.1f} s"


class WaitBoard:
    """The waits of one event loop.

    Invariant: an entry is here exactly while its `with` block runs; `changes` grows with each that comes
    or goes, and with nothing else.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changes = 0
        self._entries: dict[int, Wait] = {}

    @property
    def entries(self) -> list[Wait]:
        """Oldest first."""
        return list(self._entries.values())

    @contextlib.contextmanager
    def installed(self) -> Iterator[WaitBoard]:
        """`waiting` writes here, in this task and all that it starts inside the block."""
        token = _BOARD.set(self)
        try:
            yield self
        finally:
            _BOARD.reset(token)

    @contextlib.contextmanager
    def entry(self, who: str, whom: str, kind: str, timeout: asyncio.Timeout) -> Iterator[None]:
        self.changes += 1
        number = self.changes
        self._entries[number] = Wait(
            who=who,
            whom=whom,
            kind=kind,
            since=self.clock(),
            task=asyncio.current_task(),
            timeout=timeout,
        )
        try:
            yield
        finally:
            self.changes += 1
            del self._entries[number]

    def table(self, limit: int = 30) -> str:
        """The oldest waits, a line each, and how many there are of each kind."""
        now, entries = self.clock(), self.entries
        kinds: dict[str, int] = {}
        for wait in entries:
            kinds[wait.kind] = kinds.get(wait.kind, 0) + 1
        lines = [", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nobody waits"]
        lines += [wait.line(now) for wait in entries[:limit]]
        if len(entries) > limit:
            lines.append(f"... and {len(entries) - limit} more")
        return "\n".join(lines)


@contextlib.asynccontextmanager
async def waiting(who: str, whom: str, *, kind: str, deadline: float | None) -> AsyncIterator[None]:
    """Write the block down on the board of this context, if there is one.

    Raises:
        TimeoutError: `deadline`, on the running loop's clock, has passed, or the watchdog let it pass.
    """
    board = _BOARD.get()
    async with asyncio.timeout_at(deadline) as timeout:
        if board is None:
            yield
            return
        with board.entry(who, whom, kind, timeout):
            yield
