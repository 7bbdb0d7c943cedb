"""What the statistics know of an attempt, and the attempts of a question as counts and means.

    question -> its attempts, in the order of the siblings

No number made of them depends on that order, or on the order of the questions: sums are exact (`math.fsum`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Questions = Collection[Sequence["AttemptFacts"]]
"""The attempts at each question of a set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One attempt at a question.

    An attempt that Failed has no verdict: whether it counts as wrong or not at all is asked of every number.
    """

    is_correct: bool | None
    """None where the attempt Failed, by no fault of the policy."""
    answer: str | None = None
    """What it votes for in maj@k; equal answers are equal strings. None votes for nothing."""
    tokens: int = 0
    """Of the response, tool results included."""
    turns: int = 0
    calls: int = 0
    errors: int = 0
    """Of the calls, those whose result is an error."""
    is_truncated: bool = False


def counted(attempts: Sequence[AttemptFacts], *, failed_as_wrong: bool) -> list[AttemptFacts]:
    """The attempts of a question under one of the two denominators."""
    return [a for a in attempts if failed_as_wrong or a.is_correct is not None]


def num_correct(attempts: Sequence[AttemptFacts]) -> int:
    return sum(a.is_correct is True for a in attempts)


def exact_mean(values: Iterable[float]) -> float | None:
    """The mean, the same in every order; None of nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None
