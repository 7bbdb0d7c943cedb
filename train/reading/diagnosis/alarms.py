"""When each alarm sounds, by its name in alarms.toml. Pure functions of a run's rows so far.

An alarm reports an observation, not its cause: read the trajectories that show it before you change anything.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Final

from rocstar.train.reading.diagnosis.history import (
    STRETCH,
    History,
    Of,
    Row,
    Sounds,
    combined,
    earlier,
    gained,
    high_share,
    last,
    metric,
    numbers,
    percents,
    ratio,
    risen_share,
    stays_above,
    step_at,
    usual,
)

GENERATED: Final = metric("ledger/generated")
ALL_CALLS: Final = combined(operator.mul, metric("tool/calls_mean"), GENERATED)
CORRECT: Final = metric("reward/correct_share")
ENTROPY: Final = metric("entropy/mean")

STALL: Final = 6.0
STALL_S: Final = 10.0
FAILED: Final = 0.05
CUT: Final = 0.10
GAIN: Final = 0.05
"""Growth of the share of correct trajectories that pays for more calls or tokens."""
TIMEOUTS: Final = 0.02
ALIKE: Final = 0.5
LONGER: Final = 1.5
SOLVED: Final = 0.7
FLAT: Final = 0.1
MASTERED: Final = 0.9
CHANGE: Final = 3.0
LOUD: Final = 0.2
DRIFT: Final = 0.01
EVICTED: Final = 0.10
REWARD: Final = 0.10
CORRECT_HELD: Final = 0.5


# ---- liveness: the run does not move, or moves without learning ----


def work_s(row: Row) -> float | None:
    """Seconds of a step, less those of evaluation and checkpoint."""
    whole = metric("time/step")(row)
    aside = [metric(f"time/{name}", absent=0.0)(row) or 0.0 for name in ("eval", "checkpoint")]
    return None if whole is None else whole - sum(aside)


def patience_s(usual_s: float) -> float:
    """How long a step may take where one takes so long."""
    return max(STALL * usual_s, usual_s + STALL_S)


def _stall(history: History) -> str | None:
    now, before = last(history, work_s, 1), usual(history, work_s, least=5)
    if now is None or before is None or now[0] <= patience_s(before):
        return None
    return f"the step took {now[0]:.0f} s, the steps before {before:.1f} s (median)"


def _no_signal(history: History) -> str | None:
    used = last(history, metric("groups/used"))
    if used is None or any(used):
        return None
    rewards = last(history, metric("reward/mean")) or []
    why = "" if not rewards else ": all wrong" if max(rewards) <= 0 else f", rewards {percents(rewards)}"
    return f"no group of the last {len(used)} steps gave an advantage{why}"


def _paused(history: History) -> str | None:
    paused = last(history, metric("gate/paused"), 1)
    return "the off-policy gate let no update through" if paused and paused[0] else None


def _nonfinite(history: History) -> str | None:
    names = sorted(name for name, value in history.rows[-1].items() if value is None) if history.rows else []
    return f"not finite: {', '.join(names[:5])}" if names else None


def _failures(history: History) -> str | None:
    shares = last(history, ratio(metric("ledger/failed"), metric("ledger/generated")), 2)
    if shares is None or min(shares) <= FAILED:
        return None
    row = history.rows[-1]
    kinds = {name.removeprefix("failed/"): row[name] for name in row if name.startswith("failed/")}
    counts = ", ".join(f"{kind} {count:.0f}" for kind, count in kinds.items() if count)
    return f"{percents(shares)} of the trajectories" + (f"; now {counts}" if counts else "")


# ---- the policy's output: truncated, undecodable, repeated, without an answer that can be judged ----


def _tool_errors(history: History) -> str | None:
    share, calls = metric("tool/error_share_in_correct"), combined(operator.mul, ALL_CALLS, CORRECT)
    rise = risen_share(history, share, calls, by=CUT)
    if rise is None:
        return None
    return f"{percents(last(history, share) or [])}; it was {rise[1]:.1%} up to step {step_at(history, rise[2])}"


def _more_for_nothing(history: History, name: str, *, factor: float, least: float) -> str | None:
    """Evidence that a mean grew by a factor, to `least` at least, and correct ones did not become more."""
    now, before = last(history, metric(name)), earlier(history, metric(name))
    if now is None or not before:
        return None
    place, then = min(before, key=lambda found: found[1])
    gain = gained(history, CORRECT, place)
    if gain is None or gain >= GAIN or fmean(now) < max(least, factor * then):
        return None
    step = step_at(history, place)
    return f"{numbers(now)}; it was {then:.3g} up to step {step}, and correct ones changed by {gain:+.1%}"


def _high(share: Of, trials: Of = GENERATED) -> Sounds:
    return partial(high_share, share=share, trials=trials, bound=CUT)


# ---- learning: entropy, engine against learner, held-out questions ----


def _collapse(history: History) -> str | None:
    now, before, right = last(history, ENTROPY), earlier(history, ENTROPY), last(history, CORRECT)
    if now is None or right is None or not before or fmean(now) >= FLAT or fmean(right) >= MASTERED:
        return None
    place, then = max(before, key=lambda found: found[1])
    gain = gained(history, CORRECT, place)
    if then < CHANGE * fmean(now) or gain is None or gain >= GAIN:
        return None
    step = step_at(history, place)
    return f"{numbers(now)} nats; it was {then:.3g} up to step {step}, and correct ones changed by {gain:+.1%}"


def _explosion(history: History) -> str | None:
    now, before = last(history, ENTROPY), earlier(history, ENTROPY)
    if now is None or not before or fmean(now) < LOUD:
        return None
    place, then = min(before, key=lambda found: found[1])
    if fmean(now) < CHANGE * then:
        return None
    return f"{numbers(now)} nats; it was {then:.3g} up to step {step_at(history, place)}"


def _mismatch(history: History) -> str | None:
    behind, others = (last(history, metric("mismatch_kl/after_tool")), last(history, metric("mismatch_kl/elsewhere")))
    if behind is None or others is None:
        return None
    is_loud = all(abs(a) > max(DRIFT, CHANGE * abs(b)) for a, b in zip(behind, others, strict=True))
    return f"{numbers(behind)} nats behind tool output, {numbers(others)} elsewhere" if is_loud else None


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


SOUNDS: Final[Mapping[str, Sounds]] = {
    "stall": _stall,
    "no_signal": _no_signal,
    "paused": _paused,
    "nonfinite": _nonfinite,
    "failures": _failures,
    "truncation": _high(metric("is_truncated/mean")),
    "undecodable_calls": _high(ratio(metric("tool/status/malformed_call", absent=0.0), ALL_CALLS), ALL_CALLS),
    "tool_errors_in_correct": _tool_errors,
    "calls_without_accuracy": partial(_more_for_nothing, name="tool/calls_mean", factor=2.0, least=1.0),
    "length_without_reward": partial(_more_for_nothing, name="seq_len/mean", factor=LONGER, least=0.0),
    "several_answers": _high(ratio(metric("roc_answer_format/gt_one_answer_count"), GENERATED)),
    "same_answer": stays_above(
        metric("answers/alike"), ALIKE, "{} of the tasks get one and the same answer, beyond those whose answer it is"
    ),
    "repetition": _high(metric("text/looping")),
    "verifier_timeouts": stays_above(
        ratio(metric("reward/timeouts"), GENERATED), TIMEOUTS, "the judge gave up on {} of the trajectories", 2
    ),
    "all_solved": stays_above(
        ratio(
            metric("reject_equal_reward/solve_equal_non_all_zeros"),
            combined(operator.add, metric("groups/used"), metric("groups/no_signal")),
        ),
        SOLVED,
        "{} of the groups are all correct",
    ),
    "entropy_collapse": _collapse,
    "entropy_explosion": _explosion,
    "reward_without_held_out": _held_out,
    "mismatch_after_tool": _mismatch,
    "kv_evictions": stays_above(
        ratio(metric("engine/recomputed_tokens"), metric("tokens/generated")),
        EVICTED,
        "context computed again is {} of what was generated",
    ),
}
