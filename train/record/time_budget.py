"""The time of a step: its wall time by phase, and the delay of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("generate", "kv_wait", "tool_wait", "reward", "learn", "publish", "checkpoint", "eval", "other")
"""The phases in the order of a step; each is the metric `time/{phase}`."""
BEAT_S = 0.02
"""Fifty timer calls a second take a thousandth of a core."""


class TimeBudget:
    """Splits the time since its creation (or the last `finish`) among the phases of a step.

    Invariant: at every moment exactly one phase runs, so the phases sum to the elapsed time. Time in no
    phase is `other`. A phase inside a phase stops the outer one's clock while it runs. For one task: phases
    of concurrent tasks would not nest.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stack = ["other"]
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._since = self._clock()

    def _charge(self) -> None:
        now = self._clock()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the block, except that of inner phases, as `name`.

        Raises:
            ValueError: `name` is not in `PHASES`.
        """
        self._known(name)
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Count `seconds` of the phase `source` as `target`, at most the time of `source` so far.

        For time whose phase is known only later: the time during rollouts in which nothing was decoded.

        Raises:
            ValueError: an unknown phase, or a time that is negative or not finite.
        """
        self._known(source)
        self._known(target)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds must be finite and not negative, got {seconds}")
        self._charge()
        moved = min(seconds, self._seconds[source])
        self._seconds[source] -= moved
        self._seconds[target] += moved

    def share(self) -> dict[str, float]:
        """Return each phase's share of the time so far; the sum is 1, or 0 if no time has passed."""
        self._charge()
        return shares(self._seconds)

    def finish(self) -> dict[str, float]:
        """Return the metrics `time/{phase}` and `time/step` in seconds; the next step begins now.

        A running phase continues in the next step.
        """
        self._charge()
        metrics = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        metrics["time/step"] = math.fsum(self._seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return metrics

    @staticmethod
    def _known(name: str) -> None:
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}; the phases are {', '.join(PHASES)}")


def shares(seconds_by_phase: Mapping[str, float]) -> dict[str, float]:
    """Return each part's share of the sum; all 0 if the sum is 0."""
    total = math.fsum(seconds_by_phase.values())
    return {name: seconds / total if total > 0 else 0.0 for name, seconds in seconds_by_phase.items()}


def whole_percents(parts: Mapping[str, float]) -> dict[str, int]:
    """Return whole percents of the parts that sum to exactly 100 (to 0 if all parts are 0).

    Largest remainder: all parts are rounded down, then the largest fractions get the missing points.
    """
    exact = {name: 100 * share for name, share in shares(parts).items()}
    percents = {name: math.floor(value) for name, value in exact.items()}
    missing = round(math.fsum(exact.values())) - sum(percents.values())
    for name in sorted(exact, key=lambda name: percents[name] - exact[name])[:missing]:
        percents[name] += 1
    return percents


class LoopLag:
    """Measures how late the event loop in which it is entered calls a timer that is due every BEAT_S.

    Answers of judges, tools, servers and nodes are as late; no callback should take longer than 50 ms.

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

    def __exit__(self, *_: object) -> None:
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
