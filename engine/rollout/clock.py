"""A trajectory's clock: it runs from the first grant on, and only while our own event loop does.

    first request ──> engine grants it a place ──> start() ── beat, beat, ... ──> over: the present wait ends
                                                                └─ a beat that came late: the loop stood still

Who waits: nobody for the clock; it ends the wait that its trajectory is in, as a deadline would. Before the
first grant it does not run: who waits for a place is behind others, which is no fault of its own. An engine
that holds nothing back grants at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from rocstar.engine.waits import Wait, waiting

BEATS = 64
"""Within a time limit: what the loop stood still is known to a 64th of it, or to MAX_BEAT_S."""
MAX_BEAT_S = 1.0
LATE_S = 0.1
"""A beat that is so much later than it was due says that our own loop was blocked."""


class RunningTime:
    """Seconds in which an event loop ran, as its beats tell; time comes from outside.

    Invariant: `seconds` grows from beat to beat by what passed, but where that is more than LATE_S above what
    was due, by what was due: the rest the loop stood still. So it never grows faster than time.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._then = now

    def beat(self, now: float, due_s: float) -> bool:
        """The loop runs, and had been asked `due_s` after the last beat to say so; whether it is late."""
        passed_s = now - self._then
        is_late = passed_s > due_s + LATE_S
        self.seconds += due_s if is_late else passed_s
        self._then = now
        return is_late


class TrajectoryClock:
    """One trajectory's time limit.

    Invariant: a wait ends for the limit's sake only after `timeout_s` in which the loop ran, counted from the
    first `start`, less a beat at most per standstill; before it never. If the loop stood still at the end,
    what came meanwhile is heard first.
    """

    def __init__(self, timeout_s: float, granted: Callable[[], None] = lambda: None) -> None:
        """granted: called once, by the first `start` or at the end."""
        self.timeout_s, self._granted = timeout_s, granted
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._time: RunningTime | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._wait: Wait | None = None

    def __enter__(self) -> TrajectoryClock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._time is None:
            self._granted()

    def start(self) -> None:
        """The first grant; later ones change nothing."""
        if self._time is None:
            self._time = RunningTime(self._loop.time())
            self._next(self._time)
            self._granted()

    @property
    def latest(self) -> float | None:
        """A deadline for who works for the trajectory, on the loop's clock; None before the first grant.

        It lies another limit behind the clock's own end, which comes by cancelling. What it is for is whoever
        does not hear of that, say a worker elsewhere while our loop stands still.
        """
        if self._time is None:
            return None
        return self._loop.time() + max(0.0, self.timeout_s - self._time.seconds) + self.timeout_s

    @contextlib.asynccontextmanager
    async def waiting(self, who: str, whom: str, *, kind: str) -> AsyncIterator[None]:
        """As `waits.waiting`, with this clock for a deadline; one at a time. TimeoutError when it is over."""
        wait = waiting(who, whom, kind=kind, deadline=None, may_expire=True)
        async with wait:
            self._wait = wait
            try:
                if self.is_over:
                    wait.expire()
                yield
            finally:
                self._wait = None

    def _next(self, time: RunningTime, *, is_last: bool = False) -> None:
        due_s = min(self.timeout_s / BEATS, MAX_BEAT_S)
        if not is_last:
            due_s = min(due_s, self.timeout_s - time.seconds)
        self._beat = self._loop.call_later(due_s, self._beaten, time, due_s, is_last)

    def _beaten(self, time: RunningTime, due_s: float, is_last: bool) -> None:
        is_late = time.beat(self._loop.time(), due_s)
        if time.seconds < self.timeout_s:
            self._next(time)
            return
        if is_late and not is_last:
            self._next(time, is_last=True)
            return
        self._stop()
        self.is_over = True
        if self._wait is not None:
            self._wait.expire()

    def _stop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
