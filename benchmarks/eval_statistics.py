"""Coverage of the intervals and size and power of the tests of train/evaluation/statistics, by simulation.

    python benchmarks/eval_statistics.py [--evaluations 10000] [--comparisons 1500] [--out FILE]

Questions are a sample: the difficulty of each is drawn, so the number of correct attempts at a question follows
one known law, and an evaluation is drawn as the histogram of these numbers over its questions.

- coverage: share of evaluations whose 95% interval holds the mean of the difficulties, which are normal in logits
  (standard deviation 2.5, wide as in AIME). With one attempt each, all outcomes are enumerated instead.
- two_values: the same with two difficulties, a low one and a high one that few questions have.
- one_attempt: the lowest coverage over all means from 0.02 to 0.98.
- paired: size, the share of comparisons of two models of the same mean with p < 0.05; the difficulties of a
  question differ by a standard deviation of 1 logit. power: the same with 8 points between them, and at the
  reported detectable difference.
- paired_coverage: share of comparisons whose interval holds the difference of the means, and the share in which
  the interval and p disagree on 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
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
MEANS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.9, 0.95, 0.98)
FEW: Final = ((15, 16), (15, 64), (20, 16), (30, 16), (60, 16), (198, 16))
"""Questions and attempts of the cells with two difficulties."""
LOW: Final = (0.002, 0.005, 0.01, 0.02)
HIGH: Final = (0.5, 0.9, 1.0)
PAIRED_MEANS: Final = ((0.5, 0.0), (0.7, 0.08), (0.9, 0.0), (0.98, 0.0), (0.9, 0.05), (0.9, 0.08), (0.95, 0.03))
"""Mean of A, and difference of B."""
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
    laws = {(m, k): law_of(k, chances_of(m, SPREAD)) for m, k in product(MEANS, ATTEMPTS)}
    found: dict[str, list[dict[str, Any]]] = {
        "coverage": [
            coverage(n, laws[m, k], options.evaluations, rng) for m, n, k in product(MEANS, QUESTIONS, ATTEMPTS)
        ],
        "two_values": [
            {"low": low, "high": high, **coverage(n, two_values(k, 0.05, low, high), options.evaluations, rng)}
            for (n, k), low, high in product(FEW, LOW, HIGH)
        ],
        "one_attempt": [one_attempt(n) for n in (20, 30, 60, 100, 198, 500)],
        "paired": [comparison(n, k, 0.7, options.comparisons, rng) for n in (30, 60) for k in ATTEMPTS],
        "paired_coverage": [
            paired_coverage(n, k, mean, gain, options.comparisons, rng)
            for n, k, (mean, gain) in product((30, 60, 198), ATTEMPTS, PAIRED_MEANS)
        ],
    }
    lowest = {name: min(cell["coverage"] for cell in cells) for name, cells in found.items() if name != "paired"}
    within = sum(WINDOW[0] <= cell["coverage"] <= WINDOW[1] for cell in found["coverage"])
    *_, (thirty, sixty) = zip(found["paired"][:3], found["paired"][3:], strict=True)
    size = max(one["size"] for one in found["paired"])
    disagree = max(one["disagree"] for one in found["paired_coverage"])
    several = min(cell["coverage"] for cell in found["coverage"] if cell["attempts"] > 1)
    claims = [
        claim("cells in which 95% intervals of a score cover 94% to 96.5%", within, f"of {len(found['coverage'])}"),
        claim("lowest coverage with several attempts", several, at_least=WINDOW[0]),
        claim("lowest coverage with one attempt, any mean from 0.02 to 0.98", lowest["one_attempt"]),
        claim("lowest coverage if difficulties have two values, at a mean of 0.05", lowest["two_values"]),
        claim("lowest coverage of the interval of a difference", lowest["paired_coverage"]),
        claim("comparisons whose interval and p disagree on 0", disagree, at_most=0.0),
        claim("largest size of the paired test at 5%", size, at_most=0.06),
        claim("power to find 8 points on 30 questions of 16 attempts", thirty["power"], at_least=0.6),
        claim("power to find 8 points on 60 questions of 16 attempts", sixty["power"], at_least=0.9),
    ]
    result = {"evaluations": options.evaluations, "comparisons": options.comparisons, "spread_logits": SPREAD}
    return finish("eval_statistics", {**result, **found}, claims, options.out, seeds=[options.seed])


@cache
def chances_of(mean: float, spread: float) -> Floats:
    """Chances of success at equally likely difficulties, with this mean."""
    shift = optimize.brentq(lambda at: special.expit(at + spread * QUANTILES).mean() - mean, -60, 60)
    return np.asarray(special.expit(shift + spread * QUANTILES))


def law_of(k: int, chances: Floats) -> Floats:
    """Chances of 0..k correct attempts at a question of equally likely difficulties."""
    law = np.array([stats.binom.pmf(correct, k, chances).mean() for correct in range(k + 1)])
    return np.asarray(law / law.sum())


def two_values(k: int, mean: float, low: float, high: float) -> Floats:
    """Chances of 0..k correct attempts at a question of one of two difficulties."""
    few = (mean - low) / (high - low)
    return (1 - few) * law_of(k, np.array([low])) + few * law_of(k, np.array([high]))


def coverage(n: int, law: Floats, evaluations: int, rng: np.random.Generator) -> dict[str, Any]:
    """Share of evaluations whose interval holds the mean. With one attempt each, an evaluation is a number of
    correct answers, and all numbers are enumerated."""
    k = len(law) - 1
    shares = np.arange(k + 1) / k
    mean = float(law @ shares)
    if k == 1:
        right = np.arange(n + 1)
        histograms, weights = np.stack([n - right, right], axis=1), stats.binom.pmf(right, n, mean)
    else:
        histograms, weights = rng.multinomial(n, law, size=evaluations), np.full(evaluations, 1 / evaluations)
    means = histograms @ shares / n
    variances = (histograms * (shares - means[:, None]) ** 2).sum(1) / n
    low, high = share_interval(means, variances, n, n * k)
    held = round(float(weights[(low <= mean) & (mean <= high)].sum()), 4)
    width = round(float(((high - low) * weights).sum()), 4)
    return {"questions": n, "attempts": k, "mean": round(mean, 4), "coverage": held, "width": width}


def one_attempt(n: int) -> dict[str, Any]:
    """The mean with the lowest coverage on a grid of means, and the average coverage."""
    right, grid = np.arange(n + 1)[:, None], np.linspace(0.02, 0.98, 961)
    low, high = share_interval(right / n, right / n * (1 - right / n), n, n)
    held = (stats.binom.pmf(right, n, grid) * ((low <= grid) & (grid <= high))).sum(0)
    return {
        "questions": n,
        "mean": round(float(grid[held.argmin()]), 4),
        "coverage": round(float(held.min()), 4),
        "average": round(float(held.mean()), 4),
    }


def comparison(n: int, k: int, mean: float, comparisons: int, rng: np.random.Generator) -> dict[str, Any]:
    """Size and power of the sign-flip test, and power at the detectable difference that it reports."""
    alike = differences(n, k, mean, 0.0, comparisons, rng)
    apart = differences(n, k, mean, GAIN, comparisons, rng)
    reported = [paired_difference([list(row / k)], rng).detectable for row in alike[: max(20, comparisons // 20)]]
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


def paired_coverage(
    n: int, k: int, mean: float, gain: float, comparisons: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Share of comparisons whose interval holds the gain, and share in which it and p disagree on 0."""
    found = [paired_difference([list(row / k)], rng) for row in differences(n, k, mean, gain, comparisons, rng)]
    ends = np.array([one.interval for one in found])
    held, alike = ((ends[:, 0] <= at) & (at <= ends[:, 1]) for at in (gain, 0.0))
    return {
        "questions": n,
        "attempts": k,
        "mean": mean,
        "difference": gain,
        "coverage": round(float(held.mean()), 4),
        "width": round(float(np.ptp(ends, axis=1).mean()), 4),
        "disagree": round(float((alike != np.array([one.p >= 0.05 for one in found])).mean()), 4),
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
