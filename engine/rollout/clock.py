"""A trajectory's clock: it runs from the first grant on, and only while the event loop runs.

    first request ──> engine grants it a place ──> start() ── beat, beat, ... ──> over: the present wait ends
                                                                └─ a beat that came late: the loop stood still

The clock ends the present wait of its trajectory, as a deadline would. It does not run before the first
grant: time in the admission queue does not count. An engine without a queue grants immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from rocstar.engine.running_time import RunningLimit
from rocstar.engine.waits import Wait, waiting


class TrajectoryClock:
    """One trajectory's time limit.

    Invariant: the clock ends a wait only after `timeout_s` of event loop time since the first `start`, less
    at most a beat per standstill; never before. If the loop stood still at the end, events that arrived
    meanwhile are handled first.
    """

    def __init__(self, timeout_s: float, granted: Callable[[], None] = lambda: None) -> None:
        """granted: called once, by the first `start` or at the end."""
        self.timeout_s, self._granted = timeout_s, granted
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.began = time.time()
        """The same moment, in seconds since 1970."""
        self.granted_s: float | None = None
        """When the first grant came, by `now_s`."""
        self._signed, self._quiet_s = self._began, 0.0
        self._limit = RunningLimit(timeout_s, self._over)
        self._wait: Wait | None = None

    def __enter__(self) -> TrajectoryClock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.stop()
        if self._limit.seconds is None:
            self._granted()

    def start(self) -> None:
        """The first grant; later ones change nothing."""
        if self._limit.seconds is None:
            self.granted_s = self.now_s
            self._signed = self._loop.time()
            self._limit.start()
            self._granted()

    def sign(self) -> None:
        """The policy or a tool answered something now."""
        self._quiet_s, self._signed = self.quiet_s, self._loop.time()

    @property
    def quiet_s(self) -> float:
        """Seconds of the longest time between two signs, from the first grant to now."""
        return max(self._quiet_s, self._loop.time() - self._signed)

    @property
    def now_s(self) -> float:
        """Seconds on the loop's clock since the trajectory began, grants and standstills or not: for people,
        who want to see what took its time. No limit goes by it."""
        return self._loop.time() - self._began

    @property
    def latest(self) -> float | None:
        """Return a deadline for work on another machine, on the loop's clock; None before the first grant.

        It is one more limit after the clock's own end, which cancels. It stops workers that the
        cancellation does not reach, for example while this event loop stands still.
        """
        if self._limit.seconds is None:
            return None
        return self._loop.time() + max(0.0, self.timeout_s - self._limit.seconds) + self.timeout_s

    @contextlib.asynccontextmanager
    async def waiting(self, who: str, whom: str, *, kind: str) -> AsyncIterator[None]:
        """As `waits.waiting`, with this clock for a deadline; one at a time. TimeoutError when it is over."""
        async with (wait := waiting(who, whom, kind=kind, deadline=None, may_expire=True)):
            self._wait = wait
            if self.is_over:
                wait.expire()
            try:
                yield
            finally:
                self._wait = None

    def _over(self) -> None:
        self.is_over = True
        if self._wait is not None:
            self._wait.expire()
