"""All scores of a set, under either denominator, from its attempts.

questions -> avg@k with its interval, pass@k, pass^k, maj@k
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def powers_up_to(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return sorted({2**power for power in range(k.bit_length())} | {k}) if k else []


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
