"""Event loop time: seconds in which this process's event loop ran. Standstills do not count.

    beat, beat, ... ──> seconds that count ──> over: what came meanwhile is heard first
      └─ a beat that came late: the loop stood still, and the rest of that time does not count

When a blocked loop continues, an answer that arrived meanwhile and an expired timer are due in the same
moment, and the timer would win. So time limits on a server, a node or a trajectory use this clock (contract
16).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

BEATS = 64
"""Resolution of a standstill within a time limit: a 64th of the limit, or MAX_BEAT_S."""
MAX_BEAT_S = 1.0
LATE_S = 0.1
"""A beat that is so much later than it was due says that our own loop was blocked."""


class RunningTime:
    """Seconds in which an event loop ran, measured by periodic beats; time is passed in.

    Invariant: `seconds` grows per beat by the elapsed time, or by the due interval if the beat is more than
    LATE_S
    late: the rest is a standstill. So it never grows faster than time.
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


class RunningLimit:
    """A time limit in seconds that the loop ran; `over` is called once when they have passed.

    Invariant: `over` is called only after `timeout_s` of event loop time since `start`, less at most a beat
    per standstill; never before. After a standstill at the end, events that arrived meanwhile are handled
    first.
    """

    def __init__(self, timeout_s: float, over: Callable[[], None]) -> None:
        self.timeout_s, self._over = timeout_s, over
        self._beat_s = min(timeout_s / BEATS, MAX_BEAT_S)
        self._loop = asyncio.get_running_loop()
        self._time: RunningTime | None = None
        self._beat: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float | None:
        """Return the elapsed part of it; None before `start`."""
        return None if self._time is None else self._time.seconds

    def start(self) -> None:
        """Only the first one counts."""
        if self._time is None:
            self._time = RunningTime(self._loop.time())
            self._next(self._time)

    def stop(self) -> None:
        """It will not be over any more."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _next(self, time: RunningTime, *, is_last: bool = False) -> None:
        due_s = self._beat_s if is_last else min(self._beat_s, self.timeout_s - time.seconds)
        self._beat = self._loop.call_later(due_s, self._beaten, time, due_s, is_last)

    def _beaten(self, time: RunningTime, due_s: float, is_last: bool) -> None:
        is_late = time.beat(self._loop.time(), due_s)
        if time.seconds < self.timeout_s:
            self._next(time)
            return
        if is_late and not is_last:
            self._next(time, is_last=True)
            return
        self.stop()
        self._over()


@contextlib.asynccontextmanager
async def running_timeout(timeout_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, in seconds that the loop ran. TimeoutError when they have passed."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        clock = RunningLimit(timeout_s, lambda: limit.reschedule(loop.time()))
        clock.start()
        try:
            yield
        finally:
            clock.stop()


class RunningClock(RunningLimit):
    """Tells seconds that the loop ran since the block was entered."""

    def __init__(self, beat_s: float = MAX_BEAT_S) -> None:
        """beat_s: resolution of a standstill."""
        super().__init__(math.inf, lambda: None)
        self._beat_s = min(beat_s, MAX_BEAT_S)

    def __enter__(self) -> RunningClock:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def time(self) -> float:
        """Seconds so far."""
        assert self._time is not None, "it is entered"
        self._time.beat(self._loop.time(), self._beat_s)
        return self._time.seconds
