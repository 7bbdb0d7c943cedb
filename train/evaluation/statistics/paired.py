"""Two evaluations of the same questions: the difference, its interval and its p, question by question.

    differences d_q of the question means -> mean d, interval, sign-flip p, minimal detectable difference

Questions are a sample, and each is its own control: its difficulty is common to both. A test that takes the n
k attempts, or the k runs, for independent rejects in a fifth of the cases without a difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXACT_QUESTIONS: Final = 16
POWER: Final = 0.8
ALPHA: Final = 0.05
UNSEEN: Final = 0.1
"""Added to the sum of squared differences: near 0 and 1 the few questions that differ much may not be in the
sample. Chosen by benchmarks/eval_statistics.py."""
BESIDE_ZERO: Final = 1e-9
"""The end of an interval that is open at 0."""
MAX_WORK: Final = 200_000_000
"""Additions for an exact null distribution; above, sign flips are sampled."""
MAX_DENOMINATOR: Final = 10_000
DRAWS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """B minus A over the questions of a set, or over several sets."""

    difference: float
    interval: tuple[float, float]
    """At 95%. It holds 0 if and only if p is at least 0.05."""
    p: float
    """Two-sided: the probability of so large a difference if neither is better."""
    detectable: float
    """The difference that 80% of such comparisons, with this spread, would find (p below 0.05)."""
    num_questions: int


def paired_difference(sets: Sequence[Sequence[float]], rng: np.random.Generator) -> PairedDifference:
    """Compare question means, given their differences in [-1, 1] by set, in any order; sets have equal weights.

    The interval is Student's, with `UNSEEN` in the sum of squares of each set and Welch's degrees of freedom. If
    all differences are equal there is no spread; then it is the bound on the share of questions that differ
    otherwise when n have not, 1 - 0.05^(1/n). Its end beside 0 yields to the test: 0 is inside if and only if p
    is at least 0.05. ValueError for a set without questions.
    """
    from scipy import special  # 27 MB, not needed to read evaluations

    if not sets or not all(sets):
        raise ValueError("a set has no question with a score in both")
    mean = math.fsum(math.fsum(each) / len(each) for each in sets) / len(sets)
    size = sum(map(len, sets))
    p = sign_flip_p(sorted(size * d / (len(sets) * len(each)) for each in sets for d in each), rng)
    error, freedom = _standard_error(sets)
    if freedom < 1:
        half = detectable = 2.0
    elif error < 1e-12:
        half = detectable = 1 - ALPHA ** (1 / size)
    else:
        half = float(special.stdtrit(freedom, 1 - ALPHA / 2)) * _standard_error(sets, UNSEEN)[0]
        detectable = float(special.stdtrit(freedom, 1 - ALPHA / 2) + special.stdtrit(freedom, POWER)) * error
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    if p >= ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    elif mean > 0:
        low = max(low, BESIDE_ZERO)
    else:
        high = min(high, -BESIDE_ZERO)
    return PairedDifference(
        difference=mean, interval=(low, high), p=p, detectable=min(2.0, detectable), num_questions=size
    )


def _standard_error(sets: Sequence[Sequence[float]], unseen: float = 0.0) -> tuple[float, float]:
    """Return the standard error of the mean of the sets' means, and Welch's degrees of freedom."""
    variances = []
    for each in sets:
        mean, n = math.fsum(each) / len(each), len(each)
        variances.append((math.fsum((d - mean) ** 2 for d in each) + unseen) / max(1, n - 1) / n / len(sets) ** 2)
    total = math.fsum(variances)
    below = math.fsum(v**2 / (len(each) - 1) for v, each in zip(variances, sets, strict=True) if len(each) > 1)
    return math.sqrt(total), total**2 / below if below else float(min(map(len, sets)) - 1)


def sign_flip_p(differences: Sequence[float], rng: np.random.Generator) -> float:
    """Return the two-sided p of the sum under random signs: without a difference, -d_q is as likely as d_q.

    It is exact over all 2^n signs, with n times the sum of the differences in steps of their common
    denominator (Pagano and Tritchler 1983), or sampled with 100,000 draws of `rng` if that is too expensive.
    Up to 16 questions it is the share of signs with at least this sum. Beyond, signs with exactly this sum
    count half (mid-P, Lancaster 1961): with few attempts there are many of them, and the test would be too
    conservative.
    """
    steps = _steps(differences)
    if steps is not None:
        return exact_p(steps)
    values = np.array(differences)
    seen, times, batch = abs(math.fsum(differences)), 0, max(1, 2_000_000 // len(values))
    for begin in range(0, DRAWS, batch):
        signs = rng.integers(0, 2, size=(min(batch, DRAWS - begin), len(values))) * 2 - 1
        times += int((np.abs(signs @ values) >= seen - 1e-12).sum())
    return (times + 1) / (DRAWS + 1)


def exact_p(steps: NDArray[np.int64]) -> float:
    """Return `sign_flip_p` of whole numbers, at any cost."""
    seen = abs(int(steps.sum()))
    chances = _null(np.abs(steps))
    distances = np.abs(np.arange(len(chances)) - len(chances) // 2)
    equal = float(chances[distances == seen].sum())
    beyond = float(chances[distances > seen].sum())
    is_whole = len(steps) <= EXACT_QUESTIONS or seen == 0
    return min(1.0, beyond + equal * (1.0 if is_whole else 0.5))


def _steps(differences: Sequence[float]) -> NDArray[np.int64] | None:
    """Return the differences as multiples of one fraction, or None if there is none or it is too small."""
    fractions = [Fraction(d).limit_denominator(MAX_DENOMINATOR) for d in differences]
    if any(abs(float(f) - d) > 1e-9 for f, d in zip(fractions, differences, strict=True)):
        return None
    common = math.lcm(*(f.denominator for f in fractions))
    whole = [f.numerator * (common // f.denominator) for f in fractions]
    if sum(map(abs, whole)) * len(whole) > MAX_WORK:
        return None
    step = math.gcd(*whole) or 1
    return np.array([w // step for w in whole], dtype=np.int64)


def _null(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probabilities of the sums -S..S of `sizes` under independent random signs; S is their
    sum."""
    reach = 0
    chances = np.ones(1)
    for size in sizes[sizes > 0]:
        grown = np.zeros(2 * (reach + int(size)) + 1)
        grown[: len(chances)] += chances / 2
        grown[2 * int(size) :] += chances / 2
        chances, reach = grown, reach + int(size)
    return chances


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Return p by name, adjusted so that a false rejection has a probability of at most 5% (Holm 1979)."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, name in enumerate(sorted(ps, key=lambda name: (ps[name], name))):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in ps}
