"""Alarms of learning: entropy, engine against learner, held-out questions."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from rocstar.train.reading.diagnosis.alarm import History, Sounds
from rocstar.train.reading.diagnosis.history import (
    STRETCH,
    earlier,
    gained,
    last,
    metric,
    numbers,
    percents,
    ratio,
    step_at,
)
from rocstar.train.reading.diagnosis.rollout_alarms import CORRECT, GAIN

ENTROPY: Final = metric("entropy/mean")
FLAT: Final = 0.1
MASTERED: Final = 0.9
CHANGE: Final = 3.0
LOUD: Final = 0.2
DRIFT: Final = 0.01
EVICTED: Final = 0.10
REWARD: Final = 0.10
CORRECT_HELD: Final = 0.5


def _collapse(history: History) -> str | None:
    now, before, right = last(history, ENTROPY), earlier(history, ENTROPY), last(history, CORRECT)
    if now is None or right is None or not before or fmean(now) >= FLAT or fmean(right) >= MASTERED:
        return None
    place, then = max(before, key=lambda found: found[1])
    gain = gained(history, CORRECT, place)
    if then < CHANGE * fmean(now) or gain is None or gain >= GAIN:
        return None
    step = step_at(history, place)
    return (
        f"{numbers(now)} nats; it was {then:.3g} up to step {step}, and correct ones changed by {gain:+.1%}"
    )


def _explosion(history: History) -> str | None:
    now, before = last(history, ENTROPY), earlier(history, ENTROPY)
    if now is None or not before or fmean(now) < LOUD:
        return None
    place, then = min(before, key=lambda found: found[1])
    if fmean(now) < CHANGE * then:
        return None
    return f"{numbers(now)} nats; it was {then:.3g} up to step {step_at(history, place)}"


def _mismatch(history: History) -> str | None:
    behind, others = (
        last(history, metric("mismatch_kl/after_tool")),
        last(history, metric("mismatch_kl/elsewhere")),
    )
    if behind is None or others is None:
        return None
    is_loud = all(abs(a) > max(DRIFT, CHANGE * abs(b)) for a, b in zip(behind, others, strict=True))
    return f"{numbers(behind)} nats behind tool output, {numbers(others)} elsewhere" if is_loud else None


def _evictions(history: History) -> str | None:
    shares = last(history, ratio(metric("engine/recomputed_tokens"), metric("tokens/generated")))
    if shares is None or min(shares) <= EVICTED:
        return None
    return f"context computed again is {percents(shares)} of what was generated"


def _held_out(history: History) -> str | None:
    change = history.held_out
    if change is None:
        return None
    between = [row for row in history.rows if change.before < row.get("step", 0) <= change.after]
    curve = [value for row in between if (value := CORRECT(row)) is not None]
    if len(curve) < 2 * STRETCH:
        return None
    rise = fmean(curve[-STRETCH:]) - fmean(curve[:STRETCH])
    low, high = change.interval
    if rise < REWARD or high >= CORRECT_HELD * rise:
        return None
    return (
        f"from step {change.before} to {change.after} correct trajectories rose by {rise:+.1%}, held-out "
        "questions "
        f"by {change.difference:+.1%} [{low:+.1%}, {high:+.1%}]"
    )


LEARNING_ALARMS: Final[Mapping[str, Sounds]] = {
    "entropy_collapse": _collapse,
    "entropy_explosion": _explosion,
    "reward_without_held_out": _held_out,
    "mismatch_after_tool": _mismatch,
    "kv_evictions": _evictions,
}
