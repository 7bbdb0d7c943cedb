"""When each alarm sounds, by its name in alarms.toml. Pure functions of a run's rows so far.

An alarm reports an observation, not its cause: read the trajectories that show it before you change anything.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any, Final

from rocstar.train.evaluation.statistics.paired import PairedDifference

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
    sets: Mapping[str, PairedDifference]
    """The same for each set of questions alone; a rise in one may hide a fall in another."""


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
HELD_OUT_FALL: Final = 0.05
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


def _held_out_fall(history: History) -> str | None:
    change = history.held_out
    if change is None:
        return None
    falls = [
        f"{name} by {one.difference:+.1%} [{one.interval[0]:+.1%}, {one.interval[1]:+.1%}]"
        for name, one in change.sets.items()
        if one.difference <= -HELD_OUT_FALL and one.interval[1] < 0
    ]
    return f"from step {change.before} to {change.after}: {', '.join(falls)}" if falls else None


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
    "held_out_fall": _held_out_fall,
    "mismatch_after_tool": _mismatch,
    "kv_evictions": stays_above(
        ratio(metric("engine/recomputed_tokens"), metric("tokens/generated")),
        EVICTED,
        "context computed again is {} of what was generated",
    ),
}
