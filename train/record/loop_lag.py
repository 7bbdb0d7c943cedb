"""The delay of rank 0's event loop, as two metrics of a step.

A timer due every BEAT_S measures how late it is called. Answers of judges, tools, servers and nodes are
delayed as much; no callback on the loop should take longer than 50 ms.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

BEAT_S = 0.02
"""Fifty timer calls a second take a thousandth of a core."""


class LoopLag:
    """Measures the event loop in which it is entered.

    Invariant: `take` covers the time since its last call, and every second of it has the same weight: a timer
    call that is a minute late weighs as much as a minute of punctual ones.
    """

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._due = 0.0
        self._beat: asyncio.TimerHandle | None = None

    def __enter__(self) -> LoopLag:
        self._loop = asyncio.get_running_loop()
        self._next()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beat is not None:
            self._beat.cancel()

    def take(self) -> dict[str, float]:
        """Return the metrics, in seconds; empty before the first timer call."""
        late_s, self._late_s = sorted(self._late_s), []
        if not late_s:
            return {}
        left_s = 0.01 * sum(BEAT_S + late for late in late_s)
        for late in reversed(late_s):  # the longest delays make up the last hundredth of the time
            left_s -= BEAT_S + late
            if left_s <= 0:
                break
        return {"time/loop_lag_p99": late, "time/loop_lag_max": late_s[-1]}

    def _next(self) -> None:
        self._due = self._loop.time() + BEAT_S
        self._beat = self._loop.call_at(self._due, self._beaten)

    def _beaten(self) -> None:
        self._late_s.append(max(0.0, self._loop.time() - self._due))
        self._next()
