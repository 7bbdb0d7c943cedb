"""All scores of a set, under both denominators, from its attempts.

questions -> avg@k, pass@k, pass^k, maj@k with intervals, and what the attempts took
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rocstar.train.evaluation.statistics.attempts import (
    AttemptFacts,
    Questions,
    counted,
    exact_mean,
    num_correct,
)
from rocstar.train.evaluation.statistics.estimators import maj_at_k, pass_at_k, pass_power_k
from rocstar.train.evaluation.statistics.intervals import interval_of_means


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedScores:
    """Scores under one denominator. Questions weigh the same; without a counted attempt one is left out."""

    num_questions: int
    avg: float | None
    interval: tuple[float, float] | None
    pass_at: dict[int, float | None]
    """By k, over the questions with at least k attempts; None where there is none."""
    pass_power: dict[int, float | None]
    maj_at: dict[int, float | None]
    n_short: dict[int, int]
    """By k, questions of the set with fewer than k attempts: they are in no number for k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScores:
    """Everything that is told of a set."""

    num_questions: int
    num_attempts: int
    failed: int
    truncated: int
    unextracted: int
    failed_left_out: CountedScores
    failed_as_wrong: CountedScores
    tokens: float | None
    """Mean over questions of the mean over their scored attempts; so `turns` and `calls`."""
    turns: float | None
    calls: float | None
    tool_error_share: float | None
    """Of all calls of scored attempts."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; k becomes text."""
        return asdict(self)


def powers_up_to(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return sorted({2**power for power in range(k.bit_length())} | {k}) if k else []


def set_scores(questions: Questions, *, k: int | None = None) -> SetScores:
    """k: attempts that were asked for at each question; None = the most that one has."""
    most = max(map(len, questions), default=0) if k is None else k
    flat = [attempt for attempts in questions for attempt in attempts]
    scored = [attempts for q in questions if (attempts := counted(q, failed_as_wrong=False))]
    calls = sum(a.calls for q in scored for a in q)
    return SetScores(
        num_questions=len(questions),
        num_attempts=len(flat),
        failed=sum(a.is_correct is None for a in flat),
        truncated=sum(a.is_truncated for a in flat if a.is_correct is not None),
        unextracted=sum(a.is_unextracted for a in flat if a.is_correct is not None),
        failed_left_out=scores(questions, powers_up_to(most), failed_as_wrong=False),
        failed_as_wrong=scores(questions, powers_up_to(most), failed_as_wrong=True),
        tokens=_mean_of_means([a.tokens for a in q] for q in scored),
        turns=_mean_of_means([a.turns for a in q] for q in scored),
        calls=_mean_of_means([a.calls for a in q] for q in scored),
        tool_error_share=sum(a.errors for q in scored for a in q) / calls if calls else None,
    )


def scores(questions: Questions, ks: Iterable[int], *, failed_as_wrong: bool) -> CountedScores:
    """Scores at each of `ks`."""
    kept = [attempts for q in questions if (attempts := counted(q, failed_as_wrong=failed_as_wrong))]
    means = [num_correct(q) / len(q) for q in kept]
    long = {k: [q for q in kept if len(q) >= k] for k in ks}
    return CountedScores(
        num_questions=len(kept),
        avg=exact_mean(means),
        interval=interval_of_means(means, num_attempts=sum(map(len, kept))) if means else None,
        pass_at={k: exact_mean(pass_at_k(len(q), num_correct(q), k) for q in qs) for k, qs in long.items()},
        pass_power={
            k: exact_mean(pass_power_k(len(q), num_correct(q), k) for q in qs) for k, qs in long.items()
        },
        maj_at={k: exact_mean(_majority(q, k) for q in qs) for k, qs in long.items()} if _vote(kept) else {},
        n_short={k: len(questions) - len(qs) for k, qs in long.items()},
    )


def _vote(questions: Questions) -> bool:
    """Whether answers are known at all."""
    return any(a.answer is not None for q in questions for a in q)


def _majority(attempts: list[AttemptFacts], k: int) -> float:
    return maj_at_k([a.answer for a in attempts], [a.is_correct is True for a in attempts], k)


def _mean_of_means(values: Iterable[list[int]]) -> float | None:
    return exact_mean(sum(each) / len(each) for each in values)
