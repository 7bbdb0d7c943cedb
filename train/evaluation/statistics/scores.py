"""All scores of a set from its attempts, with failed attempts excluded or counted as wrong.

    questions -> avg@k with its interval, pass@k, pass^k, maj@k

No number depends on the order of attempts or questions: sums are exact (`math.fsum`).

pass@k, pass^k and maj@k of a question with n attempts are exact means over all draws of k without
replacement: the unbiased estimate of the result of k attempts. Draws with replacement can repeat an attempt,
so that pass@k is too low (Chen et al. 2021, arXiv 2107.03374, equation 1 and appendix A).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import comb

from rocstar.train.evaluation.statistics.intervals import exact_mean, interval_of_means

Vote = tuple[bool | None, str | None]
"""The verdict on an attempt, None if it Failed, and its answer in maj@k, None for no vote."""
Questions = Collection[Sequence[Vote]]
"""The attempts at each question of a set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedScores:
    """Scores under one denominator. Questions have equal weight; those without a counted attempt are
    excluded."""

    num_questions: int
    avg: float | None
    interval: tuple[float, float] | None
    pass_at: dict[int, float | None]
    """By k, over the questions with at least k attempts; None without such a question."""
    pass_power: dict[int, float | None]
    maj_at: dict[int, float | None]
    n_short: dict[int, int]
    """By k, the questions with fewer than k attempts, which are in no number for k."""


def powers_up_to(k: int) -> list[int]:
    """Return 1, 2, 4, ... and k."""
    return sorted({2**power for power in range(k.bit_length())} | {k}) if k else []


def compute_scores(questions: Questions, ks: Iterable[int], *, failed_as_wrong: bool) -> CountedScores:
    """Compute the scores at each of `ks`."""
    counted = ([vote for vote in q if failed_as_wrong or vote[0] is not None] for q in questions)
    kept = [attempts for attempts in counted if attempts]
    has_answers = any(answer is not None for q in kept for _, answer in q)
    means = [num_correct(q) / len(q) for q in kept]
    long = {k: [q for q in kept if len(q) >= k] for k in ks}
    return CountedScores(
        num_questions=len(kept),
        avg=exact_mean(means),
        interval=interval_of_means(means, num_attempts=sum(map(len, kept))) if means else None,
        pass_at={k: exact_mean(pass_at_k(len(q), num_correct(q), k) for q in qs) for k, qs in long.items()},
        pass_power={k: exact_mean(pass_power_k(len(q), num_correct(q), k) for q in qs) for k, qs in long.items()},
        maj_at={
            k: exact_mean(maj_at_k([a for _, a in q], [v is True for v, _ in q], k) for q in qs)
            for k, qs in long.items()
        }
        if has_answers
        else {},
        n_short={k: len(questions) - len(qs) for k, qs in long.items()},
    )


def num_correct(attempts: Sequence[Vote]) -> int:
    return sum(verdict is True for verdict, _ in attempts)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the chance of at least one correct of k: 1 - C(n - c, k) / C(n, k). ValueError unless 1 <= k
    <= n."""
    _check(n, k)
    return 1 - comb(n - correct, k) / comb(n, k)


def pass_power_k(n: int, correct: int, k: int) -> float:
    """Return pass^k, the chance of k correct: C(c, k) / C(n, k) (Yao et al. 2024, arXiv 2406.12045)."""
    _check(n, k)
    return comb(correct, k) / comb(n, k)


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Return the chance that the most frequent answer among k is correct; ties are broken at random.

    answers: by attempt; equal strings are one answer, None is no vote. An answer with both verdicts counts
    with its share of correct ones. Without an answer among the k, nothing is correct.

    Exact, in integers. For an answer a with j votes, the draws in which a wins tied with t others number
    C(c_a, j) times a coefficient of a product over the other answers b, in which x counts attempts and y
    ties:

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
    """Return the number of draws of `size` attempts in which no answer has over `most` votes, by the
    number of answers with `most`."""
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
