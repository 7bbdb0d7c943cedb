"""Times of loads on a machine whose own speed moves: each is held against a fixed load run right beside it.

    one pass: fixed, load, fixed, load, ..., fixed          every load once, in an order of the pass's own

Invariants: nothing that was measured is left out, and a machine that is slower by one factor for a while, be
it a whole pass or a load and the two fixed ones around it, changes no result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

Timed = Callable[[], float]
"""Runs a load once and returns its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds of one run of a load, and of the fixed load before and after it."""

    load_s: float
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """To the fixed load at the speed of the moment."""
        return 2 * self.load_s / (self.before_s + self.after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A load's time over all passes."""

    seconds: float
    """The median ratio, at the fixed load's median speed."""
    spread: float
    """How far a pass is off the median on average, as a share of it."""
    raw_spread: float
    """The same without the fixed load."""


def measure(
    loads: Sequence[Timed], fixed: Timed, *, passes: int, seed: int, note: Callable[[str], None] = print
) -> list[list[Reading]]:
    """Readings of each load, one per pass. `seed` draws the orders."""
    rng = random.Random(seed)
    found: list[list[Reading]] = [[] for _ in loads]
    for number in range(passes):
        order = list(range(len(loads)))
        rng.shuffle(order)
        before = fixed()
        speeds = [before]
        for index in order:
            seconds, after = loads[index](), fixed()
            found[index].append(Reading(load_s=seconds, before_s=before, after_s=after))
            speeds.append(after)
            before = after
        note(f"pass {number}: the fixed load took {min(speeds):.3f} to {max(speeds):.3f} s")
    return found


def settle(readings: Sequence[Sequence[Reading]]) -> list[Steady]:
    """One time per load, all in seconds of the same speed."""
    usual = median((r.before_s + r.after_s) / 2 for some in readings for r in some)
    return [
        Steady(
            seconds=median(r.ratio for r in some) * usual,
            spread=_spread([r.ratio for r in some]),
            raw_spread=_spread([r.load_s for r in some]),
        )
        for some in readings
    ]


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return fmean(abs(value / middle - 1) for value in values)
