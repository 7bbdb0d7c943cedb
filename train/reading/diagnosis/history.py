"""Curves of a run, as alarms look at them. Pure.

A value of a step is a function of its row; a stretch is so many last steps, all of which must have the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

Row = Mapping[str, Any]
"""A row of metrics.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutChange:
    """Two evaluations of a run on the same questions, the later minus the earlier."""

    before: int
    """Step of the earlier."""
    after: int
    difference: float
    interval: tuple[float, float]
    """At 95%, paired by question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run up to a step."""

    rows: Sequence[Row]
    """Rows of RL steps, oldest first; the last is the present step."""
    held_out: HeldOutChange | None = None
    """The change of the last evaluation against the first one with the same questions."""


Sounds = Callable[[History], str | None]
"""Returns the observation with its figures if the alarm is active at the last row, else None. Total: a
missing or null metric gives None."""

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


def combined(function: Callable[..., float | None], *parts: Of) -> Of:
    """Return a function of several values of a step; None where one of them is."""

    def value(row: Row) -> float | None:
        known = [found for part in parts if (found := part(row)) is not None]
        return function(*known) if len(known) == len(parts) else None

    return value


def ratio(above: Of, below: Of) -> Of:
    """The quotient; None where it has none."""
    return combined(lambda a, b: a / b if b > 0 else None, above, below)


def _known(rows: Sequence[Row], of: Of) -> list[float]:
    return [value for row in rows if (value := of(row)) is not None]


def last(history: History, of: Of, steps: int = STRETCH) -> list[float] | None:
    """The values of the last steps; None where one is missing."""
    known = _known(history.rows[-steps:], of)
    return known if len(known) == steps else None


def earlier(history: History, of: Of) -> list[tuple[int, float]]:
    """Means over every stretch that ends before the last one begins, with the place of its last row."""
    end = len(history.rows) - STRETCH
    places = range(max(STRETCH - 1, end - REACH), end)
    means = [(place, stretch_mean(history, of, place)) for place in places]
    return [(place, mean) for place, mean in means if mean is not None]


def stretch_mean(history: History, of: Of, place: int) -> float | None:
    """The mean over the stretch that ends at a place."""
    known = _known(history.rows[place - STRETCH + 1 : place + 1], of)
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


def stays_above(of: Of, bound: float, text: str, steps: int = STRETCH) -> Sounds:
    """Return the alarm of a share that is above a bound in the last steps; `{}` in its text is the shares."""

    def sounds(history: History) -> str | None:
        shares = last(history, of, steps)
        return None if shares is None or min(shares) <= bound else text.format(percents(shares))

    return sounds


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
    known = _known(history.rows[-REACH - 1 : -1], of)
    return median(known) if len(known) >= least else None
