"""The interval of a score: a mean over questions that are a sample of such questions.

Attempts at a question are alike, so n questions with k attempts each give less information than n k attempts:
the spread of the question means shows how much less. It gives the effective sample size m_eff, the number of
independent attempts with the same information, between n and n k. With it the score is treated as a share:

    r      = (n s2 + w) / (n p (1 - p) + w),  at least 1 / k      s2: variance of the question means
    m_eff  = n / r
    limits = quantiles of Beta(m_eff p + a, m_eff (1 - p) + a)

at the tails that the t distribution with n - 1 degrees of freedom has beyond the normal quantile, because s2
is an estimate (as in Korn and Graubard 1998, with another interval of a share). Two constants were chosen
by benchmarks/eval_statistics.py:

- a = 0.7, between the priors of Jeffreys (1/2) and of Laplace (1; that one is nearly Wilson's interval). With
  one attempt each the score is binomial, and at 0.7 its coverage is nearest to nominal.
- w = 1/4, pseudo-evidence that attempts at a question are all alike. If nearly all is right or nearly all is
  wrong, the few questions that differ may not be in the sample, and s2 is far too small.

If all is right or all is wrong r is 1: the interval of n questions with one attempt each, never empty.

A score so high that no evaluation of this size, not even one in which all is right, has a lower limit above
it (`highest_lower_limit`) can be missed from one side only. There the upper limit spends all 5% on that side;
likewise the lower limit near 0. With one attempt each it is then the exact one of a share (Clopper and
Pearson 1934); the more attempts, the nearer it is to the prior a.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR: Final = 0.7
ALIKE_EVIDENCE: Final = 0.25
LEVEL: Final = 0.95
TINY: Final = 1e-12


def exact_mean(values: Iterable[float]) -> float | None:
    """Return the mean, equal in every order; None for no values."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None


def interval_of_means(
    means: Sequence[float], *, num_attempts: int | None = None, level: float = LEVEL
) -> tuple[float, float]:
    """Return the interval of the mean of `means`, each a question's share of correct attempts, in [0, 1].

    num_attempts: at all questions together, the maximum of m_eff; None = unknown. The interval contains the
    mean and does not depend on the order. It is (0, 1) for one question. ValueError for none.
    """
    mean = exact_mean(means)
    if mean is None:
        raise ValueError("no question has a score")
    variance = math.fsum((m - mean) ** 2 for m in means) / len(means)
    attempts = math.inf if num_attempts is None else num_attempts
    low, high = share_interval(np.array(mean), np.array(variance), len(means), attempts, level=level)
    return float(low), float(high)


def share_interval(
    mean_E: Floats, variance_E: Floats, num_questions: int, num_attempts: float, *, level: float = LEVEL
) -> tuple[Floats, Floats]:
    """Return lower and upper limits of E evaluations from mean and variance (divisor n) of their question
    means."""
    if num_questions == 1:
        return np.zeros_like(mean_E), np.ones_like(mean_E)
    two_sided, one_sided = _tail(num_questions, (1 - level) / 2), _tail(num_questions, 1 - level)
    size_E = effective_size(mean_E, variance_E, num_questions, num_attempts)
    low_E, high_E = _limits(mean_E, size_E, two_sided, PRIOR, PRIOR)
    single = min(1.0, num_questions / num_attempts)
    lower_E, upper_E = _limits(mean_E, size_E, one_sided, PRIOR * (1 - single), PRIOR + (1 - PRIOR) * single)
    edge = highest_lower_limit(num_questions, num_attempts, level)
    low_E = np.maximum(low_E, np.minimum(lower_E, 1 - edge))
    high_E = np.minimum(high_E, np.maximum(upper_E, edge))
    return np.minimum(low_E, mean_E), np.maximum(high_E, mean_E)


def _tail(num_questions: int, tail: float) -> float:
    """Return the tail of the t distribution beyond the normal quantile of `tail`."""
    from scipy import special  # 27 MB, not needed to read evaluations

    return float(special.ndtr(special.stdtrit(num_questions - 1, tail)))


def _limits(mean_E: Floats, size_E: Floats, tail: float, with_it: float, against: float) -> tuple[Floats, Floats]:
    """Return quantiles of a share. `with_it` is added to the outcomes on the side of the limit, `against`
    to the others."""
    from scipy import special  # as above

    right_E, wrong_E = size_E * mean_E, size_E * (1 - mean_E)
    low_E = special.betaincinv(np.maximum(right_E + with_it, TINY), wrong_E + against, tail)
    high_E = 1 - special.betaincinv(np.maximum(wrong_E + with_it, TINY), right_E + against, tail)
    return np.where(mean_E <= 0, 0.0, low_E), np.where(mean_E >= 1, 1.0, high_E)


@lru_cache(maxsize=256)
def highest_lower_limit(num_questions: int, num_attempts: float, level: float = LEVEL) -> float:
    """Return the highest lower limit of any evaluation of this size, at least 1/2; 1 if unknown.

    It belongs to an evaluation in which all or nearly all is right. With several attempts, one wrong attempt
    at some questions gives more evidence than none, because it shows that attempts are not all alike.
    """
    if not math.isfinite(num_attempts):
        return 1.0
    attempts = max(1.0, num_attempts / num_questions)
    share_J = np.arange(num_questions + 1) / num_questions
    mean_J, variance_J = 1 - share_J / attempts, share_J * (1 - share_J) / attempts**2
    size_J = effective_size(mean_J, variance_J, num_questions, num_attempts)
    low_J, _ = _limits(mean_J, size_J, _tail(num_questions, (1 - level) / 2), PRIOR, PRIOR)
    return max(0.5, float(low_J.max()))


def effective_size(mean_E: Floats, variance_E: Floats, num_questions: int, num_attempts: float) -> Floats:
    """Return the number of independent attempts with the information of `num_questions` questions of this
    spread."""
    ratio_E = (num_questions * variance_E + ALIKE_EVIDENCE) / (num_questions * mean_E * (1 - mean_E) + ALIKE_EVIDENCE)
    size_E: Floats = num_questions / np.clip(ratio_E, num_questions / num_attempts, 1.0)
    return size_E
