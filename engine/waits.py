"""The wait board: every pending wait, its target and its deadline.

    async with waiting("s3/task/0", "replica 2", kind="generate", deadline=deadline):
        await ...

Every await on something outside its own task has a deadline and an entry here while it lasts. The board is a
context variable, which tasks inherit; without a board only the deadline applies. The watchdog (watchdog.py)
reads the board: no change of entries for some time is a stall, and it may end one wait before its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
_BOARD: ContextVar[WaitBoard | None] = ContextVar("rocstar_waits", default=None)


@contextlib.contextmanager
def bound(variable: ContextVar[T | None], value: T) -> Iterator[T]:
    """The variable has this value in this task and in all that it starts inside the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@dataclass(slots=True, kw_only=True, eq=False)
class Wait:
    """One await: on the board from its beginning to its end, and over by its deadline."""

    who: str
    whom: str
    kind: str
    timeout: asyncio.Timeout
    board: WaitBoard | None
    may_expire: bool
    """An early end of this wait is data and does not affect others."""
    since: float = 0.0
    task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        await self.timeout.__aenter__()
        if self.board is not None:
            self.board.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.board is not None:
            self.board.remove(self)
        await self.timeout.__aexit__(kind, error, trace)

    def expire(self) -> bool:
        """Let the deadline pass now: the await raises TimeoutError. False if it has passed already."""
        if self.timeout.expired():
            return False
        self.timeout.reschedule(asyncio.get_running_loop().time())
        return True


class WaitBoard:
    """The waits of one event loop.

    Invariant: an entry is here exactly while its `with` block runs; `changes` grows with each that comes
    or goes, and with nothing else.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changes = 0
        self._entries: dict[Wait, None] = {}

    @property
    def entries(self) -> list[Wait]:
        """Oldest first."""
        return list(self._entries)

    def installed(self) -> contextlib.AbstractContextManager[WaitBoard]:
        """`waiting` writes here, in this task and all that it starts inside the block."""
        return bound(_BOARD, self)

    def age_s(self, wait: Wait) -> float:
        """Seconds since it began."""
        return self.clock() - wait.since

    def add(self, wait: Wait) -> None:
        """The running task begins to wait."""
        wait.since, wait.task = self.clock(), asyncio.current_task()
        self.changes += 1
        self._entries[wait] = None

    def remove(self, wait: Wait) -> None:
        self.changes += 1
        del self._entries[wait]

    def table(self, limit: int = 30) -> str:
        """The oldest waits, a line each, and how many there are of each kind."""
        now, entries = self.clock(), self.entries
        kinds = Counter(wait.kind for wait in entries)
        lines = [", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no waits"]
        for wait in entries[:limit]:
            lines.append(f"{wait.who} waits for {wait.whom} ({wait.kind}), {now - wait.since:.1f} s")
        if len(entries) > limit:
            lines.append(f"... and {len(entries) - limit} more")
        return "\n".join(lines)


def waiting(who: str, whom: str, *, kind: str, deadline: float | None, may_expire: bool | None = None) -> Wait:
    """Write the block down on the board of this context, if there is one.

    may_expire: the watchdog may end it early; None: if it has a deadline.

    Raises:
        TimeoutError: `deadline`, on the running loop's clock, has passed, or the watchdog let it pass.
    """
    timeout = asyncio.timeout_at(deadline)
    if may_expire is None:
        may_expire = deadline is not None
    return Wait(who=who, whom=whom, kind=kind, timeout=timeout, board=_BOARD.get(), may_expire=may_expire)
