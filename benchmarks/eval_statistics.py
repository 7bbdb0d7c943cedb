"""Coverage of the intervals and size and power of the tests of train/evaluation/statistics, by simulation.

    python benchmarks/eval_statistics.py [--evaluations 10000] [--comparisons 1500] [--out FILE]

Questions are a sample: the difficulty of each is drawn from a normal distribution in logits (standard
deviation 2.5, wide as in AIME), shifted to the wanted mean score. So the number of correct attempts at a
question follows one known law, and an evaluation is drawn as the histogram of these numbers over its
questions.

- coverage: share of evaluations whose 95% interval holds the mean of the difficulties. With one attempt each,
  all outcomes are enumerated instead.
- size: share of comparisons of two models of the same mean with p < 0.05; the difficulties of a question
  differ by a standard deviation of 1 logit. power: the same with 8 points between them, and at the reported
  detectable difference.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from report import claim, finish, result_parser
from scipy import optimize, special, stats

from rocstar.train.evaluation.statistics.intervals import share_interval
from rocstar.train.evaluation.statistics.paired import exact_p, paired_difference

Floats = NDArray[np.float64]

SPREAD: Final = 2.5
"""Standard deviation of the questions' difficulties in logits."""
APART: Final = 1.0
"""Standard deviation, in logits, of the difference between two models at a question."""
QUESTIONS: Final = (30, 60, 198, 500)
ATTEMPTS: Final = (1, 4, 16)
MEANS: Final = (0.2, 0.5, 0.7, 0.95)
WINDOW: Final = (0.94, 0.965)
GAIN: Final = 0.08
POINTS: Final = 20_001
QUANTILES: Final = stats.norm.ppf((np.arange(POINTS) + 0.5) / POINTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--evaluations", type=int, default=10_000, help="for each cell")
    parser.add_argument("--comparisons", type=int, default=1_500, help="for each cell")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    cells = [coverage(n, k, m, options.evaluations, rng) for m in MEANS for n in QUESTIONS for k in ATTEMPTS]
    tests = [comparison(n, k, 0.7, options.comparisons, rng) for n in (30, 60) for k in (1, 4, 16)]
    covered = [cell["coverage"] for cell in cells]
    within = sum(WINDOW[0] <= value <= WINDOW[1] for value in covered)
    *_, (thirty, sixty) = zip(tests[:3], tests[3:], strict=True)
    claims = [
        claim("cells in which 95% intervals of an evaluation cover 94% to 96.5%", within, f"of {len(cells)}"),
        claim("lowest coverage of a 95% interval of an evaluation", min(covered), at_least=WINDOW[0]),
        claim("largest size of the paired test at 5%", max(one["size"] for one in tests), at_most=0.06),
        claim("power to find 8 points on 30 questions of 16 attempts", thirty["power"], at_least=0.6),
        claim("power to find 8 points on 60 questions of 16 attempts", sixty["power"], at_least=0.9),
    ]
    result = {"evaluations": options.evaluations, "comparisons": options.comparisons, "spread_logits": SPREAD}
    return finish(
        "eval_statistics", {**result, "coverage": cells, "paired": tests}, claims, options.out, seeds=[options.seed]
    )


def chances_of(mean: float, spread: float) -> Floats:
    """Chances of success at equally likely difficulties, with this mean."""
    shift = optimize.brentq(lambda at: special.expit(at + spread * QUANTILES).mean() - mean, -60, 60)
    return np.asarray(special.expit(shift + spread * QUANTILES))


@cache
def law_of(k: int, mean: float, spread: float) -> Floats:
    """Chances of 0..k correct attempts at a question."""
    chances = chances_of(mean, spread)
    law = np.array([stats.binom.pmf(correct, k, chances).mean() for correct in range(k + 1)])
    return np.asarray(law / law.sum())


def drawn(n: int, k: int, law: Floats, evaluations: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean and variance of the question means, of each evaluation."""
    histograms = rng.multinomial(n, law, size=evaluations)
    shares = np.arange(k + 1) / k
    means = histograms @ shares / n
    variances = (histograms * (shares - means[:, None]) ** 2).sum(1) / n
    return means, variances


def coverage(n: int, k: int, mean: float, evaluations: int, rng: np.random.Generator) -> dict[str, Any]:
    """Share of evaluations whose interval holds the mean. With one attempt each, an evaluation is a number of
    correct answers, and all numbers are enumerated."""
    if k == 1:
        means = np.arange(n + 1) / n
        variances, weights = means * (1 - means), stats.binom.pmf(np.arange(n + 1), n, mean)
    else:
        means, variances = drawn(n, k, law_of(k, mean, SPREAD), evaluations, rng)
        weights = np.full(evaluations, 1 / evaluations)
    low, high = share_interval(means, variances, n, n * k)
    held = round(float(weights[(low <= mean) & (mean <= high)].sum()), 4)
    width = round(float(((high - low) * weights).sum()), 4)
    return {"questions": n, "attempts": k, "mean": mean, "coverage": held, "width": width}


def comparison(n: int, k: int, mean: float, comparisons: int, rng: np.random.Generator) -> dict[str, Any]:
    """Size and power of the sign-flip test, and power at the detectable difference that it reports."""
    alike = differences(n, k, mean, 0.0, comparisons, rng)
    apart = differences(n, k, mean, GAIN, comparisons, rng)
    reported = [paired_difference(list(row / k), rng).detectable for row in alike[: max(20, comparisons // 20)]]
    detectable = float(np.median(reported))
    reachable = mean + detectable < 0.98
    moved = differences(n, k, mean, detectable, comparisons // 2, rng) if reachable else None
    return {
        "questions": n,
        "attempts": k,
        "mean": mean,
        "size": round(rejected(alike), 4),
        "power": round(rejected(apart), 4),
        "detectable": round(detectable, 4),
        "power_at_detectable": rejected(moved) if moved is not None else None,
    }


def rejected(steps: NDArray[np.int64]) -> float:
    return float(np.mean([exact_p(row) < 0.05 for row in steps]))


def differences(
    n: int, k: int, mean: float, gain: float, comparisons: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Correct attempts of B minus those of A, by comparison and question; in the mean B gains `gain`."""
    own = APART / np.sqrt(2)
    spread = float(np.hypot(SPREAD, own))
    shared = rng.normal(0, SPREAD, (comparisons, n))
    scores = []
    for wanted in (mean, mean + gain):
        shift = special.logit(chances_of(wanted, spread)[POINTS // 2])
        chances = special.expit(shift + shared + rng.normal(0, own, (comparisons, n)))
        scores.append(rng.binomial(k, chances))
    return np.asarray(scores[1] - scores[0], dtype=np.int64)


if __name__ == "__main__":
    sys.exit(main())
