"""Alarms of what the policy writes: cut, undecodable, repeated, without an answer that can be judged."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from rocstar.train.reading.diagnosis.alarm import Alarm, History
from rocstar.train.reading.diagnosis.history import (
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


def _truncation(history: History) -> str | None:
    return high_share(history, metric("is_truncated/mean"), GENERATED, bound=CUT)


def _undecodable(history: History) -> str | None:
    share = ratio(metric("tool/status/malformed_call", absent=0.0), ALL_CALLS)
    return high_share(history, share, ALL_CALLS, bound=CUT)


def _tool_errors(history: History) -> str | None:
    share, calls = metric("tool/error_share_in_correct"), product(ALL_CALLS, CORRECT)
    rise = risen_share(history, share, calls, by=CUT)
    if rise is None:
        return None
    return (
        f"{percents(last(history, share) or [])}; it was {rise[1]:.1%} up to step {step_at(history, rise[2])}"
    )


def _calls(history: History) -> str | None:
    return _more_for_nothing(history, "tool/calls_mean", factor=2.0, least=1.0)


def _length(history: History) -> str | None:
    return _more_for_nothing(history, "seq_len/mean", factor=LONGER, least=0.0)


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


def _several_answers(history: History) -> str | None:
    share = ratio(metric("roc_answer_format/gt_one_answer_count"), GENERATED)
    return high_share(history, share, GENERATED, bound=CUT)


def _same_answer(history: History) -> str | None:
    shares = last(history, metric("answers/alike"))
    if shares is None or min(shares) <= ALIKE:
        return None
    return f"{percents(shares)} of the tasks get one and the same answer, beyond those whose answer it is"


def _loops(history: History) -> str | None:
    return high_share(history, metric("text/looping"), GENERATED, bound=CUT)


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


ROLLOUT_ALARMS: Final = (
    Alarm(
        name="truncation",
        kind="health",
        says="Trajectories are cut before they answer, and earn nothing.",
        definition="is_truncated/mean > 10% in 3 steps and up by 5 points from its lowest 3 steps of the 20 "
        "before, "
        "or in 6 steps without falling",
        source="arXiv 2508.20722, 4.2: the first stage's limit cut more than 10%; Wilson's normal error for "
        "the rise",
        todo="finish/* says which limit. Raise stages.N.max_response_tokens or max_turns if the answers are "
        "on their "
        "way; if they repeat themselves, the limit is right.",
        needs=("is_truncated/mean", "ledger/generated"),
        sounds=_truncation,
        witness="truncated",
    ),
    Alarm(
        name="undecodable_calls",
        kind="health",
        says="The policy writes tool calls that cannot be read.",
        definition="tool/status/malformed_call / all calls > 10% in 3 steps, rising or not falling as for "
        "truncation",
        source="microsoft/rStar issues 52, 62 (floods of decode errors)",
        todo="Read some: a cut call is a matter of tokens per turn, a broken one of the cold start. RoC "
        "counts them "
        "as errors, so they should fall by themselves.",
        needs=("tool/calls_mean", "ledger/generated"),
        sounds=_undecodable,
        witness="undecodable",
    ),
    Alarm(
        name="tool_errors_in_correct",
        kind="health",
        says="Correct trajectories come with more and more failing calls.",
        definition="tool/error_share_in_correct up by 10 points from its lowest 3 steps of the 20 before, "
        "and by 4 "
        "standard errors, four calls counting as one",
        source="arXiv 2508.20722, figure 4: without RoC this share stays or grows",
        todo="See rl.roc_mode and penalty/error_mean; tool/status/* says which errors.",
        needs=("tool/error_share_in_correct", "tool/calls_mean", "reward/correct_share"),
        sounds=_tool_errors,
        witness="tool_errors",
    ),
    Alarm(
        name="calls_without_accuracy",
        kind="health",
        says="Calls doubled and nothing was gained.",
        definition="tool/calls_mean twice its lowest 3 steps of the 20 before and 1 at least, "
        "reward/correct_share up by less than 5 points since",
        source="microsoft/rStar issue 52 (calls explode after some 50 steps)",
        todo="Read the longest: calls that print nothing new are retries. Lower max_turns, or look at the "
        "tool's text.",
        needs=("tool/calls_mean", "reward/correct_share"),
        sounds=_calls,
        witness="calls",
    ),
    Alarm(
        name="length_without_reward",
        kind="health",
        says="Trajectories grew and nothing was gained.",
        definition="seq_len/mean 1.5 times its lowest 3 steps of the 20 before, "
        "reward/correct_share up by less than 5 points since",
        source="verl issue 2738 (length and entropy grow for nothing)",
        todo="Read the longest. Repetition and truncation beside it are a collapse; reasoning that goes "
        "nowhere is "
        "a matter of the limit and of tasks that are too hard.",
        needs=("seq_len/mean", "reward/correct_share"),
        sounds=_length,
        witness="length",
    ),
    Alarm(
        name="several_answers",
        kind="health",
        says="Trajectories give several answers.",
        definition="roc_answer_format/gt_one_answer_count / ledger/generated > 10% in 3 steps, rising or "
        "not falling "
        "as for truncation",
        source="arXiv 2508.20722, Eq. 5 (the penalty of format)",
        todo="Guessing pays where the judge takes any of them: reward.mode = strict takes the last. RoC's "
        "penalty "
        "acts only with rl.roc_mode = paper or sort.",
        needs=("roc_answer_format/gt_one_answer_count", "ledger/generated"),
        sounds=_several_answers,
        witness="answers",
    ),
    Alarm(
        name="same_answer",
        kind="health",
        says="Unlike tasks get the same answer.",
        definition="answers/alike > 50% in 3 steps: the largest share of tasks whose siblings answer one "
        "thing most "
        "often, less the share whose answer it is",
        source="collapse onto one answer; a definition of this repository",
        todo="Read some: an answer that is right too often (0, 1) means tasks that are too easy to guess; a "
        "fixed "
        "one means that the policy no longer reads the question.",
        needs=("answers/alike",),
        sounds=_same_answer,
    ),
    Alarm(
        name="repetition",
        kind="health",
        says="The policy writes the same words again and again.",
        definition="text/looping > 10% in 3 steps, rising or not falling as for truncation: trajectories "
        "with a turn "
        "in which most 8-grams of tokens were there before",
        source="a definition of this repository, after repetition penalties of DAPO-like recipes",
        todo="Usually seen with truncation: lower rl.lr, look at entropy/mean, go on from a checkpoint "
        "before.",
        needs=("text/looping", "ledger/generated"),
        sounds=_loops,
        witness="loops",
    ),
    Alarm(
        name="verifier_timeouts",
        kind="health",
        says="The judge does not finish.",
        definition="reward/timeouts / ledger/generated > 2% in 2 steps",
        source="contract 7: an answer on which the grader hangs is 0",
        todo="Read those answers: huge powers and nested fractions are attempts to hang the judge, and earn "
        "0. For a "
        "reward of your own see reward.timeout_s.",
        needs=("reward/timeouts", "ledger/generated"),
        sounds=_timeouts,
        witness="timeouts",
    ),
    Alarm(
        name="all_solved",
        kind="advice",
        says="Most groups are all correct: these tasks teach little more.",
        definition="reject_equal_reward/solve_equal_non_all_zeros / (groups/used + groups/no_signal) > 70% "
        "in 3 steps",
        source="arXiv 2508.20722, 4.2: then its third stage began with harder tasks",
        todo="Begin a stage with harder tasks, or with stages.N.filter_rollouts = 8.",
        needs=("reject_equal_reward/solve_equal_non_all_zeros", "groups/used", "groups/no_signal"),
        sounds=_all_solved,
    ),
)
