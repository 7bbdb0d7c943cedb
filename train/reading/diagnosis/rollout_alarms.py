"""Alarms of the policy's output: truncated, undecodable, repeated, without an answer that can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Final

from rocstar.train.reading.diagnosis.alarm import History, Sounds
from rocstar.train.reading.diagnosis.history import (
    Of,
    earlier,
    gained,
    high_share,
    last,
    metric,
    numbers,
    percents,
    product,
    ratio,
    risen_share,
    step_at,
)

GENERATED: Final = metric("ledger/generated")
CALLS: Final = metric("tool/calls_mean")
ALL_CALLS: Final = product(CALLS, GENERATED)
CORRECT: Final = metric("reward/correct_share")

CUT: Final = 0.10
GAIN: Final = 0.05
"""Growth of the share of correct trajectories that pays for more calls or tokens."""
TIMEOUTS: Final = 0.02
ALIKE: Final = 0.5
LONGER: Final = 1.5
SOLVED: Final = 0.7


def _tool_errors(history: History) -> str | None:
    share, calls = metric("tool/error_share_in_correct"), product(ALL_CALLS, CORRECT)
    rise = risen_share(history, share, calls, by=CUT)
    if rise is None:
        return None
    return (
        f"{percents(last(history, share) or [])}; it was {rise[1]:.1%} up to step {step_at(history, rise[2])}"
    )


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


def _same_answer(history: History) -> str | None:
    shares = last(history, metric("answers/alike"))
    if shares is None or min(shares) <= ALIKE:
        return None
    return f"{percents(shares)} of the tasks get one and the same answer, beyond those whose answer it is"


def _timeouts(history: History) -> str | None:
    shares = last(history, ratio(metric("reward/timeouts"), GENERATED), 2)
    if shares is None or min(shares) <= TIMEOUTS:
        return None
    return f"the judge gave up on {percents(shares)} of the trajectories"


def _all_solved(history: History) -> str | None:
    solved = metric("reject_equal_reward/solve_equal_non_all_zeros")
    used, unused = metric("groups/used"), metric("groups/no_signal")
    shares = last(history, lambda row: _share_of(solved(row), used(row), unused(row)))
    if shares is None or min(shares) <= SOLVED:
        return None
    return f"{percents(shares)} of the groups are all correct"


def _share_of(part: float | None, a: float | None, b: float | None) -> float | None:
    return None if part is None or a is None or b is None or a + b <= 0 else part / (a + b)


def _high(share: Of, trials: Of = GENERATED) -> Sounds:
    return partial(high_share, share=share, trials=trials, bound=CUT)


ROLLOUT_ALARMS: Final[Mapping[str, Sounds]] = {
    "truncation": _high(metric("is_truncated/mean")),
    "undecodable_calls": _high(ratio(metric("tool/status/malformed_call", absent=0.0), ALL_CALLS), ALL_CALLS),
    "tool_errors_in_correct": _tool_errors,
    "calls_without_accuracy": partial(_more_for_nothing, name="tool/calls_mean", factor=2.0, least=1.0),
    "length_without_reward": partial(_more_for_nothing, name="seq_len/mean", factor=LONGER, least=0.0),
    "several_answers": _high(ratio(metric("roc_answer_format/gt_one_answer_count"), GENERATED)),
    "same_answer": _same_answer,
    "repetition": _high(metric("text/looping")),
    "verifier_timeouts": _timeouts,
    "all_solved": _all_solved,
}
