"""pass@k, pass^k and maj@k of one question from its n attempts, exactly, for every k up to n.

Each is the mean over all draws of k out of the n attempts without replacement, which makes it the unbiased
estimate from n independent attempts of what k attempts would do. A draw with replacement would meet the same
attempt twice and be too low for pass@k (Chen et al. 2021, arXiv 2107.03374, equation 1 and appendix A).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb


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
