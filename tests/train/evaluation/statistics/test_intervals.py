"""The interval holds its score, is never empty, and counts questions, not attempts."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rocstar.train.evaluation.statistics.intervals import (
    effective_size,
    highest_lower_limit,
    interval_of_means,
    share_interval,
)

MEANS = st.lists(st.integers(0, 16).map(lambda c: c / 16), min_size=1, max_size=40)


@given(MEANS, st.randoms(use_true_random=False))
def test_it_holds_the_mean_in_any_order_and_is_not_empty(means: list[float], shuffled: object) -> None:
    low, high = interval_of_means(means, num_attempts=16 * len(means))
    assert 0 <= low <= fmean(means) + 1e-12 and fmean(means) - 1e-12 <= high <= 1 and low < high
    other = list(means)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert interval_of_means(other, num_attempts=16 * len(means)) == (low, high)


@pytest.mark.parametrize("n", [2, 5, 30, 500])
def test_all_right_and_all_wrong_leave_room(n: int) -> None:
    """About 3 / n: as one attempt each would, for the questions that were not asked may be the hard ones."""
    low, high = interval_of_means([1.0] * n, num_attempts=16 * n)
    assert high == 1.0 and low < 1 - 2 / (n + 5)
    mirrored = interval_of_means([0.0] * n, num_attempts=16 * n)
    assert mirrored == pytest.approx((0.0, 1 - low), abs=1e-12)


def test_a_limit_that_nothing_can_pass_spends_the_whole_error_on_its_side() -> None:
    """0.9 at 30 x 4: scores above the edge can only be missed from below, at 5%; the others at 2.5%."""
    means, edge = [1.0] * 24 + [0.5] * 6, highest_lower_limit(30, 120)
    low, high = interval_of_means(means, num_attempts=120)
    size = float(effective_size(np.array(0.9), np.var(means), 30, 120))
    tail, one = (stats.norm.cdf(stats.t.ppf(p, 29)) for p in (0.025, 0.05))
    with_it, against = 0.7 * 3 / 4, 0.7 + 0.3 / 4
    assert high == pytest.approx(stats.beta.ppf(1 - one, 0.9 * size + against, 0.1 * size + with_it))
    assert high < stats.beta.ppf(1 - tail, 0.9 * size + 0.7, 0.1 * size + 0.7) - 0.005 and high > edge
    assert low == pytest.approx(stats.beta.ppf(tail, 0.9 * size + 0.7, 0.1 * size + 0.7))
    mirrored = interval_of_means([1 - mean for mean in means], num_attempts=120)
    assert mirrored == pytest.approx((1 - high, 1 - low))
    assert highest_lower_limit(30, 30) == interval_of_means([1.0] * 30, num_attempts=30)[0]


def test_an_edge_is_of_the_best_evaluation_there_can_be() -> None:
    """With several attempts that is not the one in which all is right; unknown numbers have no edge."""
    assert highest_lower_limit(30, 480) > interval_of_means([1.0] * 30, num_attempts=480)[0] + 0.02
    assert highest_lower_limit(2, 2) == 0.5 and highest_lower_limit(30, math.inf) == 1.0


def test_one_question_tells_nothing_and_none_is_an_error() -> None:
    assert interval_of_means([0.5], num_attempts=16) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no question"):
        interval_of_means([])


def test_with_one_attempt_each_it_is_a_binomial_interval() -> None:
    """400 questions, half of them solved: 0.5 +- 1.96 * 0.025, and m_eff is the number of questions."""
    assert interval_of_means([1.0] * 200 + [0.0] * 200) == pytest.approx((0.451, 0.549), abs=1e-3)
    assert effective_size(np.array(0.5), np.array(0.25), 400, 400) == 400


def test_attempts_at_a_question_are_alike() -> None:
    """Of 960 attempts, those at 60 questions solved always or never give less information than mixed ones."""
    alike = interval_of_means([1.0, 0.0] * 30, num_attempts=960)
    mixed = interval_of_means([0.75, 0.25] * 30, num_attempts=960)
    assert alike[1] - alike[0] > 1.8 * (mixed[1] - mixed[0])
    assert alike == pytest.approx(interval_of_means([1.0, 0.0] * 30, num_attempts=60), abs=1e-12)
    low, high = interval_of_means([0.5] * 30, num_attempts=60)
    assert high - low > 2 * 1.96 * (0.25 / 60) ** 0.5 * 0.98, "at most as certain as independent attempts"


@pytest.mark.parametrize(("n", "p"), [(30, 0.5), (60, 0.2), (198, 0.7), (198, 0.95), (500, 0.95)])
def test_its_coverage_of_a_binomial_is_nominal(n: int, p: float) -> None:
    """Over all outcomes; between 0.94 and 0.965 as closely as whole numbers of questions allow."""
    correct = np.arange(n + 1)
    low, high = share_interval(correct / n, correct / n * (1 - correct / n), n, n)
    coverage = stats.binom.pmf(correct, n, p)[(low <= p) & (p <= high)].sum()
    assert 0.94 <= coverage <= 0.965
