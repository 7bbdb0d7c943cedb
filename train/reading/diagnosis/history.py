"""Curves of a run, as alarms look at them. Pure.

A value of a step is a function of its row; a stretch is so many last steps, all of which must have the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final

from rocstar.train.reading.diagnosis.alarm import History, Row

Of = Callable[[Row], float | None]
"""The value of a step; None where it has none."""

REACH: Final = 20
"""Steps behind the last stretch in which a former state is looked for: a slow drift is not an event."""
STRETCH: Final = 3
"""Steps of a stretch: one odd batch is no alarm."""
CLUSTER: Final = 4.0
"""Trials of a step that count as one: siblings share their task. So noise in small runs is no alarm."""
SIGMAS: Final = 4.0
"""Standard errors by which a share must have risen."""


def metric(name: str, *, absent: float | None = None) -> Of:
    """The metric of this name; `absent` where the row does not have it, None where it is null."""

    def value(row: Row) -> float | None:
        found = row.get(name, absent)
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None

    return value


def ratio(above: Of, below: Of) -> Of:
    """The quotient; None where it has none."""

    def value(row: Row) -> float | None:
        a, b = above(row), below(row)
        return a / b if a is not None and b is not None and b > 0 else None

    return value


def product(a: Of, b: Of) -> Of:
    """The product."""

    def value(row: Row) -> float | None:
        x, y = a(row), b(row)
        return x * y if x is not None and y is not None else None

    return value


def last(history: History, of: Of, steps: int = STRETCH) -> list[float] | None:
    """The values of the last steps; None where one is missing."""
    values = [of(row) for row in history.rows[-steps:]]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) == steps else None


def earlier(
    history: History, of: Of, *, behind: int = STRETCH, reach: int = REACH
) -> list[tuple[int, float]]:
    """Means over every stretch that ends before the last `behind` steps, with the place of its last row."""
    end = len(history.rows) - behind
    found = []
    for place in range(max(STRETCH - 1, end - reach), end):
        if (mean := stretch_mean(history, of, place)) is not None:
            found.append((place, mean))
    return found


def stretch_mean(history: History, of: Of, place: int) -> float | None:
    """The mean over the stretch that ends at a place."""
    values = [of(row) for row in history.rows[place - STRETCH + 1 : place + 1]]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == STRETCH else None


def gained(history: History, of: Of, place: int) -> float | None:
    """How much the value grew from the stretch that ends at a place to the last."""
    now, then = last(history, of), stretch_mean(history, of, place)
    return None if now is None or then is None else fmean(now) - then


def risen_share(history: History, share: Of, trials: Of, *, by: float) -> tuple[float, float, int] | None:
    """Return the last stretch's share, the lowest earlier one and its place, if the share rose from there by
    `by`, beyond what chance does to two stretches of so many trials each; else None."""
    values, counts = last(history, share), last(history, trials)
    before = earlier(history, share)
    if values is None or counts is None or not before:
        return None
    place, then = min(before, key=lambda found: found[1])
    now = fmean(values)
    pooled = min(0.95, max(0.05, (now + then) / 2))
    error = math.sqrt(2 * pooled * (1 - pooled) * CLUSTER / max(1.0, sum(counts)))
    return (now, then, place) if now - then >= max(by, SIGMAS * error) else None


def high_share(history: History, share: Of, trials: Of, *, bound: float, by: float = 0.05) -> str | None:
    """Evidence that a share is above a bound in three steps and rose there, or stays there for six."""
    now = last(history, share)
    if now is None or min(now) <= bound:
        return None
    if rise := risen_share(history, share, trials, by=by):
        return f"{percents(now)}; it was {rise[1]:.1%} up to step {step_at(history, rise[2])}"
    longer = last(history, share, 2 * STRETCH)
    if longer is None or min(longer) <= bound:
        return None
    is_recovering = fmean(longer[STRETCH:]) < 0.9 * fmean(longer[:STRETCH])
    return None if is_recovering else f"{percents(now)}, and does not fall"


def percents(values: Sequence[float]) -> str:
    """Shares of the last steps, for people."""
    return ", ".join(f"{value:.1%}" for value in values)


def numbers(values: Sequence[float]) -> str:
    """Values of the last steps, for people."""
    return ", ".join(f"{value:.3g}" for value in values)


def step_at(history: History, place: int) -> int:
    """The step of a row."""
    return int(history.rows[place].get("step", place + 1))


def usual(history: History, of: Of, *, least: int) -> float | None:
    """The median of the up to `REACH` steps before the last; None with fewer than `least`."""
    values = [of(row) for row in history.rows[-REACH - 1 : -1]]
    known = [value for value in values if value is not None]
    return median(known) if len(known) >= least else None
