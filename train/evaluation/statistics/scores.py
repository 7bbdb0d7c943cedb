"""All scores of a set, under either denominator, from its attempts.

questions -> avg@k with its interval, pass@k, pass^k, maj@k
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import comb

from rocstar.train.evaluation.statistics.intervals import exact_mean, interval_of_means


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


def compute_scores(questions: Questions, ks: Iterable[int], *, failed_as_wrong: bool) -> CountedScores:
    """Scores at each of `ks`."""
    kept = [attempts for q in questions if (attempts := counted_attempts(q, failed_as_wrong=failed_as_wrong))]
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


def _majority(attempts: list[AttemptCounts], k: int) -> float:
    return maj_at_k([a.answer for a in attempts], [a.is_correct is True for a in attempts], k)


Questions = Collection[Sequence["AttemptCounts"]]
"""The attempts at each question of a set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
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


def counted_attempts(attempts: Sequence[AttemptCounts], *, failed_as_wrong: bool) -> list[AttemptCounts]:
    """The attempts of a question under one of the two denominators."""
    return [a for a in attempts if failed_as_wrong or a.is_correct is not None]


def num_correct(attempts: Sequence[AttemptCounts]) -> int:
    return sum(a.is_correct is True for a in attempts)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of k is correct: 1 - C(n - c, k) / C(n, k). ValueError unless 1 <= k <= n."""
    _check(n, k)
    return 1 - comb(n - correct, k) / comb(n, k)


def pass_power_k(n: int, correct: int, k: int) -> float:
    """pass^k, the chance that all k are correct: C(c, k) / C(n, k) (Yao et al. 2024, arXiv 2406.12045)."""
    _check(n, k)
    return comb(correct, k) / comb(n, k)


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Chance that the answer most frequent among k is correct; a tie is decided by lot.

    answers: of each attempt; equal strings are one answer, None votes for nothing. An answer that was judged
    both ways counts with its share of correct verdicts. Where none of the k has an answer nothing is correct.

    Exact, in integers. For an answer a and its number of votes j, the draws in which a wins with t others
    beside it are C(c_a, j) times a coefficient of a product over the other answers b, in which x counts
    attempts and y ties:

        [x^(k - j) y^t]  (1 + x)^silent  *  prod_b ( sum_{i < j} C(c_b, i) x^i  +  y C(c_b, j) x^j )

    and each counts 1 / (t + 1). At most n k^2 log k multiplications; a millisecond at n = k = 16.
    """
    n = len(answers)
    _check(n, k)
    votes = Counter(answer for answer in answers if answer is not None)
    right = Counter(answer for answer, is_right in zip(answers, correct, strict=True) if is_right)
    total = 0.0
    for answer, count in sorted(votes.items()):
        if right[answer]:
            others = [c for b, c in votes.items() if b != answer]
            won = sum(
                comb(count, j) * ways / (ties + 1)
                for j in range(1, min(count, k) + 1)
                for ties, ways in enumerate(_draws(others, n - votes.total(), k - j, j))
            )
            total += won * right[answer] / count
    return total / comb(n, k)


def _draws(others: Sequence[int], silent: int, size: int, most: int) -> list[int]:
    """Draws of `size` attempts that give no answer over `most` votes, by how many answers have `most`."""
    ways = [[comb(silent, i)] for i in range(size + 1)]
    """By size of the draw, then by ties."""
    for count in others:
        terms = [(i, comb(count, i)) for i in range(min(count, most, size) + 1)]
        longest = max(map(len, ways)) + (count >= most)
        grown = [[0] * longest for _ in ways]
        for i, weight in terms:
            for drawn in range(size + 1 - i):
                for ties, number in enumerate(ways[drawn]):
                    grown[drawn + i][ties + (i == most)] += number * weight
        ways = grown
    return ways[size]


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} of {n} attempts; it is between 1 and their number")
