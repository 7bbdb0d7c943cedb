"""How often the intervals and tests of train/evaluation/statistics keep what they say, by simulation.

    python benchmarks/eval_statistics.py --out benchmarks/results/eval_statistics.json
    python benchmarks/eval_statistics.py --evaluations 500 --comparisons 50

Questions are a sample: the difficulty of each is drawn from a normal distribution in logits (standard
deviation 2.5, wide as in AIME: many questions are nearly always or nearly never solved), shifted to the
wanted mean score. So the number of correct attempts at a question follows one known law, and an evaluation
is drawn as the histogram of these numbers over its questions, which is the same and takes less time.

- coverage: share of evaluations whose 95% interval holds the mean of the difficulties. Beside ours stand
  Wilson's interval on the effective sample size with a t quantile, and Student's of the question means.
  With one attempt each, all outcomes are gone through instead: they are whole numbers, so that at 30
  questions and a mean of 0.95 an interval covers 0.939 (27 correct and more) or 0.984 (26 and more).
  The constants of ours were chosen on these cells and on spreads of 2 and 3. `unseen` cells, on which nothing
  was chosen, have other numbers of questions and attempts, other means, and difficulties from a beta
  distribution.
- size: share of comparisons of two models of the same mean with p < 0.05. Their difficulties for a question
  differ by a standard deviation of 1 logit. power: the same with 8 points between them; also at the told
  detectable difference. most_powerful: the power of the best test of that size that treats A and B alike and
  knows both laws, of equals and of models 8 points apart (Neyman and Pearson's): no test can have more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from rocstar.train.evaluation.statistics.intervals import share_interval
from rocstar.train.evaluation.statistics.paired import exact_p, paired_difference

Floats = NDArray[np.float64]
Limits = Callable[[Floats, Floats, int, int], tuple[Floats, Floats]]

SPREAD: Final = 2.5
"""Standard deviation of the questions' difficulties in logits."""
APART: Final = 1.0
"""Standard deviation, in logits, of the difference between two models at a question."""
QUESTIONS: Final = (30, 60, 198, 500)
ATTEMPTS: Final = (1, 4, 16)
MEANS: Final = (0.2, 0.5, 0.7, 0.95)
CORNER: Final = 0.03
WINDOW: Final = (0.94, 0.965)
GAIN: Final = 0.08
POINTS: Final = 20_001
QUANTILES: Final = stats.norm.ppf((np.arange(POINTS) + 0.5) / POINTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evaluations", type=int, default=10_000, help="for each cell")
    parser.add_argument(
        "--comparisons",
        type=int,
        default=1_500,
        help="for each cell; three times as many at 16 attempts and a mean of 0.7",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to write the object to as well")
    options = parser.parse_args(arguments)
    found = simulated(options.evaluations, options.comparisons, options.seed)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return 0


def simulated(evaluations: int, comparisons: int, seed: int) -> dict[str, Any]:
    """Everything, with the seconds that it took."""
    began, used = time.monotonic(), time.process_time()
    rng = np.random.default_rng(seed)
    cells = [
        coverage(n, k, m, evaluations, rng) for m in (*MEANS, CORNER) for n in QUESTIONS for k in ATTEMPTS
    ]
    asked = [cell for cell in cells if cell["mean"] != CORNER]
    outside = [cell for cell in asked if not WINDOW[0] <= cell["coverage"] <= WINDOW[1]]
    other = [
        coverage(n, k, m, evaluations, rng, law=law_of(k, m, spread))
        for spread in (2.0, 3.0)
        for m in MEANS
        for n in QUESTIONS
        for k in (4, 16)
    ]
    unseen = [
        coverage(n, k, m, evaluations, rng, law=beta_law_of(k, m, weight))
        for weight in (0.6, 2.0)
        for m in (0.1, 0.35, 0.6, 0.85, 0.9)
        for n in (20, 40, 100, 300)
        for k in (2, 8, 32)
    ]
    tests = [
        comparison(n, k, m, 3 * comparisons if (m, k) == (0.7, 16) else comparisons, rng)
        for m, ks in ((0.7, (16, 4, 1)), (0.5, (16,)), (0.2, (16,)))
        for n in (30, 60)
        for k in ks
    ]
    return {
        "evaluations": evaluations,
        "comparisons": comparisons,
        "spread_logits": SPREAD,
        "cells": len(asked),
        "cells_within": len(asked) - len(outside),
        "lowest": min(cell["coverage"] for cell in asked),
        "highest": max(cell["coverage"] for cell in asked),
        "lowest_corner": min(cell["coverage"] for cell in cells if cell["mean"] == CORNER),
        "highest_corner": max(cell["coverage"] for cell in cells if cell["mean"] == CORNER),
        "lowest_wilson_t": min(cell["wilson_t"] for cell in asked),
        "lowest_student": min(cell["student"] for cell in asked),
        "outside": [
            [cell["questions"], cell["attempts"], cell["mean"], cell["coverage"]] for cell in outside
        ],
        "other_spreads": summary(other),
        "unseen_20": summary([cell for cell in unseen if cell["questions"] == 20]),
        "unseen_40": summary([cell for cell in unseen if cell["questions"] >= 40]),
        "coverage": cells,
        "paired": tests,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of how many cells the coverage is within the window, and its range."""
    covered = [cell["coverage"] for cell in cells]
    within = sum(WINDOW[0] <= value <= WINDOW[1] for value in covered)
    return {"cells": len(cells), "within": within, "lowest": min(covered), "highest": max(covered)}


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


@cache
def beta_law_of(k: int, mean: float, weight: float) -> Floats:
    """The same for difficulties from a beta distribution; `weight` is the sum of its parameters."""
    return np.asarray(stats.betabinom.pmf(np.arange(k + 1), k, mean * weight, (1 - mean) * weight))


def drawn(n: int, k: int, law: Floats, evaluations: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean and variance of the question means, of each evaluation."""
    histograms = rng.multinomial(n, law, size=evaluations)
    shares = np.arange(k + 1) / k
    means = histograms @ shares / n
    variances = (histograms * (shares - means[:, None]) ** 2).sum(1) / n
    return means, variances


def coverage(
    n: int, k: int, mean: float, evaluations: int, rng: np.random.Generator, *, law: Floats | None = None
) -> dict[str, Any]:
    """Share of evaluations whose interval holds the mean, for ours and two others.

    With one attempt each an evaluation is a number of correct answers: then all are gone through.
    """
    if k == 1:
        means = np.arange(n + 1) / n
        variances, weights = means * (1 - means), stats.binom.pmf(np.arange(n + 1), n, mean)
    else:
        means, variances = drawn(n, k, law_of(k, mean, SPREAD) if law is None else law, evaluations, rng)
        weights = np.full(evaluations, 1 / evaluations)
    ways: dict[str, Limits] = {"coverage": share_interval, "wilson_t": wilson_t, "student": student}
    held = {}
    for name, limits in ways.items():
        low, high = limits(means, variances, n, n * k)
        held[name] = round(float(weights[(low <= mean) & (mean <= high)].sum()), 4)
    low, high = share_interval(means, variances, n, n * k)
    width = round(float(((high - low) * weights).sum()), 4)
    return {"questions": n, "attempts": k, "mean": mean, **held, "width": width}


def wilson_t(means: Floats, variances: Floats, n: int, attempts: int) -> tuple[Floats, Floats]:
    """Wilson's interval on the effective sample size, with Student's quantile."""
    spread = np.where(variances > 1e-12, variances, means * (1 - means))
    size = n * np.where(spread > 0, means * (1 - means) / np.maximum(spread, 1e-300), 1.0)
    q2 = stats.t.ppf(0.975, n - 1) ** 2
    middle = (means + q2 / (2 * size)) / (1 + q2 / size)
    half = np.sqrt(q2 * (means * (1 - means) / size + q2 / (4 * size**2))) / (1 + q2 / size)
    return middle - half, middle + half


def student(means: Floats, variances: Floats, n: int, attempts: int) -> tuple[Floats, Floats]:
    """Student's interval of the question means."""
    half = stats.t.ppf(0.975, n - 1) * np.sqrt(variances / (n - 1))
    return means - half, means + half


def comparison(n: int, k: int, mean: float, comparisons: int, rng: np.random.Generator) -> dict[str, Any]:
    """Size and power of the sign-flip test, and power at the detectable difference that is told."""
    alike = differences(n, k, mean, 0.0, comparisons, rng)
    apart = differences(n, k, mean, GAIN, comparisons, rng)
    told = [paired_difference(list(row / k), rng).detectable for row in alike[: max(20, comparisons // 20)]]
    detectable = float(np.median(told))
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
        "most_powerful": most_powerful(n, k, mean, 20 * comparisons, rng),
    }


def most_powerful(n: int, k: int, mean: float, comparisons: int, rng: np.random.Generator) -> float:
    """Power at a size of 5% of the test by the ratio of likelihoods, either way round, to that of equals.

    Equals have the mean in between: a test that keeps its size for all equals keeps it for these.
    """
    apart, equal = pair_law(k, mean, mean + GAIN), pair_law(k, mean + GAIN / 2, mean + GAIN / 2)
    ratios = [np.log(one / equal).ravel() for one in (apart, apart.T)]

    def told(law: Floats) -> Floats:
        counts = rng.multinomial(n, law.ravel(), size=comparisons)
        return np.asarray(np.logaddexp(*(counts @ ratio for ratio in ratios)))

    return round(float((told(apart) > np.quantile(told(equal), 0.95)).mean()), 4)


@cache
def pair_law(k: int, mean_a: float, mean_b: float) -> Floats:
    """Chances of the numbers of correct attempts of two models at a question."""
    own = APART / np.sqrt(2)
    shared, noise = (stats.norm.ppf((np.arange(m) + 0.5) / m) for m in (1001, 101))
    laws = []
    for mean in (mean_a, mean_b):
        shift = special.logit(chances_of(mean, float(np.hypot(SPREAD, own)))[POINTS // 2])
        chances = special.expit(shift + SPREAD * shared[:, None] + own * noise)
        laws.append([stats.binom.pmf(correct, k, chances).mean(1) for correct in range(k + 1)])
    law = np.asarray(laws[0]) @ np.asarray(laws[1]).T
    return np.asarray(law / law.sum())


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
