"""Coverage of the intervals and size and power of the tests of train/evaluation/statistics, by simulation.

    python benchmarks/eval_statistics.py [--evaluations 10000] [--comparisons 1500] [--out FILE]

Questions are a sample: the difficulty of each is drawn, so the number of correct attempts at a question follows
one known law, and an evaluation is drawn as the histogram of these numbers over its questions.

- coverage: share of evaluations whose 95% interval holds the mean of the difficulties, which are normal in logits
  (standard deviation 2.5, wide as in AIME). With one attempt each, all outcomes are enumerated instead.
- two_values: the same with two difficulties, a low one and a high one that few questions have.
- one_attempt: the lowest coverage over all means from 0.02 to 0.98.
- paired: share of comparisons of two models whose interval holds the difference of their means, whose interval and
  p disagree on 0, and whose p is below 0.05 (the size of the test where there is no difference, else its power).
  The difficulties of a question differ by a standard deviation of 1 logit.
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
from rocstar.train.evaluation.statistics.paired import paired_difference

Floats = NDArray[np.float64]

SPREAD: Final = 2.5
"""Standard deviation of the questions' difficulties in logits."""
APART: Final = 1.0
"""Standard deviation, in logits, of the difference between two models at a question."""
QUESTIONS: Final = (30, 60, 198, 500)
ATTEMPTS: Final = (1, 4, 16)
MEANS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.9, 0.95, 0.98)
GRID: Final = np.linspace(0.02, 0.98, 481)
"""Means of questions with one attempt each."""
FEW: Final = ((15, 16), (15, 64), (20, 16), (30, 16), (60, 16), (198, 16))
"""Questions and attempts of the cells with two difficulties."""
LOW: Final = (0.002, 0.005, 0.01, 0.02)
HIGH: Final = (0.5, 0.9, 1.0)
PAIRS: Final = ((30, 1), (30, 4), (30, 16), (60, 1), (60, 4), (60, 16), (198, 4))
"""Questions and attempts of the comparisons."""
GAINS: Final = (
    *((mean, 0.0) for mean in (0.5, 0.7, 0.9, 0.98)),
    *((0.5, 0.08), (0.7, 0.08), (0.9, 0.05), (0.9, 0.08), (0.95, 0.03)),
)
"""Mean of A, and difference of B."""
WINDOW: Final = (0.94, 0.965)
POINTS: Final = 20_001
QUANTILES: Final = stats.norm.ppf((np.arange(POINTS) + 0.5) / POINTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--evaluations", type=int, default=10_000, help="for each cell")
    parser.add_argument("--comparisons", type=int, default=4_000, help="for each cell")
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
        "one_attempt": [
            min((coverage(n, np.array([1 - m, m]), 0, rng) for m in GRID), key=lambda cell: cell["coverage"])
            for n in (20, 30, 60, 100, 198, 500)
        ],
        "paired": [
            comparison(n, k, mean, gain, options.comparisons, rng) for (n, k), (mean, gain) in product(PAIRS, GAINS)
        ],
    }
    lowest = {name: min(cell["coverage"] for cell in cells) for name, cells in found.items()}
    within = sum(WINDOW[0] <= cell["coverage"] <= WINDOW[1] for cell in found["coverage"])
    rejected = {
        (one["questions"], one["attempts"], one["mean"], one["difference"]): one["rejected"] for one in found["paired"]
    }
    size = max(share for (*_, gain), share in rejected.items() if gain == 0)
    disagree = max(one["disagree"] for one in found["paired"])
    several = min(cell["coverage"] for cell in found["coverage"] if cell["attempts"] > 1)
    claims = [
        claim("cells in which 95% intervals of a score cover 94% to 96.5%", within, f"of {len(found['coverage'])}"),
        claim("lowest coverage with several attempts", several, at_least=WINDOW[0]),
        claim("lowest coverage with one attempt, any mean from 0.02 to 0.98", lowest["one_attempt"]),
        claim("lowest coverage if difficulties have two values, at a mean of 0.05", lowest["two_values"]),
        claim("lowest coverage of the interval of a difference", lowest["paired"]),
        claim("comparisons whose interval and p disagree on 0", disagree, at_most=0.0),
        claim("largest size of the paired test at 5%", size, at_most=0.06),
        *(
            claim(f"power to find 8 points at {m}, {n} x 16", rejected[n, 16, m, 0.08], at_least=bar)
            for m, (n, bar) in product((0.5, 0.7), ((30, 0.6), (60, 0.9)))
        ),
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


def comparison(n: int, k: int, mean: float, gain: float, comparisons: int, rng: np.random.Generator) -> dict[str, Any]:
    """Shares of comparisons of two models with a gain, and the median of the detectable differences."""
    found = [paired_difference([list(row / k)], rng) for row in differences(n, k, mean, gain, comparisons, rng)]
    ends, ps = np.array([one.interval for one in found]), np.array([one.p for one in found])
    held, zero = ((ends[:, 0] <= at) & (at <= ends[:, 1]) for at in (gain, 0.0))
    return {
        "questions": n,
        "attempts": k,
        "mean": mean,
        "difference": gain,
        "coverage": round(float(held.mean()), 4),
        "width": round(float(np.ptp(ends, axis=1).mean()), 4),
        "disagree": round(float((zero != (ps >= 0.05)).mean()), 4),
        "rejected": round(float((ps < 0.05).mean()), 4),
        "detectable": round(float(np.median([one.detectable for one in found])), 4),
    }


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
