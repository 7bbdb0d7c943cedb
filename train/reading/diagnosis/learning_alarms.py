"""Alarms of what is learned: entropy, the engine beside the learner, questions that were never seen."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from rocstar.train.reading.diagnosis.alarm import Alarm, History
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


LEARNING_ALARMS: Final = (
    Alarm(
        name="entropy_collapse",
        kind="health",
        says="The policy stopped trying other ways before it was good.",
        definition="entropy/mean < 0.1 nats over 3 steps and a third of its highest 3 steps of the 20 "
        "before, "
        "reward/correct_share below 90% and up by less than 5 points since",
        source="DAPO, arXiv 2503.14476, 3.1 (clip-higher is its remedy)",
        todo="Raise rl.clip_high (it acts with rl.num_updates_per_batch above 1), lower rl.lr, or take "
        "harder tasks.",
        needs=("entropy/mean", "reward/correct_share"),
        sounds=_collapse,
    ),
    Alarm(
        name="entropy_explosion",
        kind="health",
        says="The policy becomes random.",
        definition="entropy/mean over 3 steps three times its lowest 3 steps of the 20 before, and 0.2 nats "
        "at least",
        source="verl issue 2738",
        todo="Lower rl.lr; look at mismatch_kl/mean and ratio/max; go on from a checkpoint before it began.",
        needs=("entropy/mean",),
        sounds=_explosion,
        witness="length",
    ),
    Alarm(
        name="reward_without_held_out",
        kind="health",
        says="Training reward rises, questions that are not trained on do not follow.",
        definition="reward/correct_share up by 10 points between two evaluations, and the paired 95% "
        "interval of the "
        "held-out difference ends below half of that",
        source="docs/reference/statistics.md (paired by question)",
        todo="Read correct trajectories for what the judge should not have taken; see whether the sets are "
        "of one "
        "kind; `rocstar data check` finds training tasks in other sets.",
        needs=("reward/correct_share",),
        sounds=_held_out,
    ),
    Alarm(
        name="mismatch_after_tool",
        kind="health",
        says="Engine and learner disagree about tokens behind tool output.",
        definition="|mismatch_kl/after_tool| > 0.01 nats and three times |mismatch_kl/elsewhere| in 3 steps",
        source="the signature of tool output that one of the two reads with other ids or positions",
        todo="Look for text that is tokenised again behind a tool, or for a KV prefix that is shared "
        "wrongly.",
        needs=("mismatch_kl/after_tool", "mismatch_kl/elsewhere"),
        sounds=_mismatch,
        witness="calls",
    ),
    Alarm(
        name="kv_evictions",
        kind="health",
        says="The engine computes contexts again that it had lost.",
        definition="engine/recomputed_tokens / tokens/generated > 10% in 3 steps",
        source="docs/reference/scheduler.md",
        todo="Lower engine.max_running, or give the servers more KV; engine/replicas_lost tells of dead "
        "servers.",
        needs=("engine/recomputed_tokens", "tokens/generated"),
        sounds=_evictions,
    ),
)
