"""How late the event loop is: what is due waits for what runs. Rank 0's, as two metrics of a step.

A beat asks to be called BEAT_S later and sees how much later it is. Judges, tools, servers and nodes are
answered as late as that; nothing on the loop should take longer than 50 ms. Who waits: nobody.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

BEAT_S = 0.02
"""Fifty looks a second, which is a thousandth of a core."""


class LoopLag:
    """Entered in the loop that it measures.

    Invariant: `take` tells of the time since the last one, and every moment of it counts alike: one beat that
    came a minute late weighs as much as a minute of beats in time.
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
        """The metrics, in seconds; none before the first beat."""
        late_s, self._late_s = sorted(self._late_s), []
        if not late_s:
            return {}
        left_s = 0.01 * sum(BEAT_S + late for late in late_s)
        for late in reversed(late_s):  # what is longest has the last hundredth of the time
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
