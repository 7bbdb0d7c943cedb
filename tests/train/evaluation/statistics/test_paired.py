"""Paired differences: the sign-flip test is its enumeration, the interval agrees with it, Holm is Holm's."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rocstar.train.evaluation.statistics import paired
from rocstar.train.evaluation.statistics.paired import UNSEEN, holm, paired_difference, sign_flip_p

RNG = np.random.default_rng(0)


def enumerated(differences: list[float], *, equal: float) -> float:
    """The share of all signs whose sum is as large; `equal`: how much those that are just as large count."""
    signs = np.array(list(product((1, -1), repeat=len(differences))))
    sums, seen = np.abs(signs @ np.array(differences)), abs(sum(differences))
    return float((sums > seen + 1e-9).mean() + equal * (np.abs(sums - seen) <= 1e-9).mean())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-16, 16), min_size=1, max_size=9), st.sampled_from([16, 12, 1000]))
def test_up_to_sixteen_questions_p_is_exact(steps: list[int], k: int) -> None:
    differences = [step / k for step in steps]
    assert sign_flip_p(differences, RNG) == pytest.approx(enumerated(differences, equal=1.0))


def test_sixteen_is_still_exact_and_seventeen_counts_equal_sums_half() -> None:
    sixteen = [(-1) ** n * n / 16 for n in range(1, 16)] + [1.0]
    assert sign_flip_p(sixteen, RNG) == pytest.approx(enumerated(sixteen, equal=1.0))
    seventeen = [1.0] * 11 + [-1.0] * 4 + [0.0] * 2
    assert sign_flip_p(seventeen, RNG) == pytest.approx(2 * stats.binom.sf(11, 15, 0.5) + stats.binom.pmf(11, 15, 0.5))


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=30))
def test_p_is_of_sizes_not_of_order_or_side(steps: list[int]) -> None:
    p = sign_flip_p([step / 4 for step in steps], RNG)
    assert 0 < p <= 1
    assert p == pytest.approx(sign_flip_p([-step / 4 for step in reversed(steps)], RNG))


def test_mixed_numbers_of_attempts_are_exact_and_irrational_ones_are_drawn() -> None:
    """Thirteen scored of sixteen here, fifteen there; and scores that are no fraction of anything."""
    mixed = [13 / 15 - 5 / 13, 2 / 7 - 1 / 16, 0.125, -1 / 11]
    assert sign_flip_p(mixed, RNG) == pytest.approx(enumerated(mixed, equal=1.0))
    odd = [np.sqrt(2) / 10, np.pi / 10, -np.e / 20, np.sqrt(3) / 10, 0.05]
    assert sign_flip_p(odd, RNG) == pytest.approx(enumerated(odd, equal=1.0), abs=0.01)


def test_too_much_work_is_drawn_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [(n % 5 - 1) / 16 for n in range(40)]
    exact = sign_flip_p(differences, RNG)
    monkeypatch.setattr(paired, "MAX_WORK", 10)
    assert sign_flip_p(differences, RNG) == pytest.approx(exact, abs=0.02)


def test_difference_interval_and_detectable_are_students() -> None:
    differences = list(np.random.default_rng(1).normal(0.1, 0.2, 30).round(4))
    found = paired_difference([differences], RNG)
    error = np.std(differences, ddof=1) / np.sqrt(30)
    assert found.difference == pytest.approx(np.mean(differences))
    wide = np.sqrt(error**2 + UNSEEN / (30 * 29))
    assert found.interval == pytest.approx(stats.t.interval(0.95, 29, np.mean(differences), wide))
    assert found.detectable == pytest.approx((stats.t.ppf(0.975, 29) + stats.t.ppf(0.8, 29)) * error)
    shuffled = paired_difference([differences[::-1]], RNG)
    assert (shuffled.difference, shuffled.interval, shuffled.p) == (found.difference, found.interval, found.p)


@pytest.mark.parametrize(("n", "half"), [(30, 1 - 0.05 ** (1 / 30)), (500, 1 - 0.05 ** (1 / 500))])
def test_two_equal_evaluations_are_not_known_to_be_equal(n: int, half: float) -> None:
    found = paired_difference([[0.0] * n], RNG)
    assert found.p == pytest.approx(1.0) and found.difference == 0
    assert found.interval == pytest.approx((-half, half)) and found.detectable == pytest.approx(half)


def test_one_question_tells_nothing_and_none_is_an_error() -> None:
    found = paired_difference([[0.5]], RNG)
    assert (found.interval, found.p, found.detectable) == ((-1.0, 1.0), 1.0, 2.0)
    with pytest.raises(ValueError, match="in both"):
        paired_difference([[]], RNG)


def test_all_sets_weigh_the_same() -> None:
    rng = np.random.default_rng(2)
    small, large = list(rng.normal(0.2, 0.1, 30).round(3)), list(rng.normal(0.0, 0.1, 300).round(3))
    found = paired_difference([small, large], RNG)
    parts = [paired_difference([each], RNG) for each in (small, large)]
    assert found.difference == pytest.approx((parts[0].difference + parts[1].difference) / 2)
    assert found.num_questions == 330 and found.p < 0.001
    halves = [(part.interval[1] - part.interval[0]) / 2 for part in parts]
    half = (found.interval[1] - found.interval[0]) / 2
    assert half == pytest.approx(math.hypot(*halves) / 2, rel=0.05)
    with pytest.raises(ValueError, match="a set"):
        paired_difference([small, []], RNG)


@pytest.mark.parametrize(
    ("differences", "low"),
    [
        ([0.25] * 5 + [-0.125] + [0.0] * 24, 1e-9),
        ([0.0625] * 11 + [0.0] * 19, 1e-9),
        ([0.0625] * 30, 1e-9),
        ([0.7, 0.8, 0.8, 0.9, 0.75], 0.0),
    ],
)
def test_an_interval_holds_zero_if_and_only_if_p_is_not_below_alpha(differences: list[float], low: float) -> None:
    """The first three reach beyond 0 at p < 0.05; five questions have no p below 1/16, but a small spread."""
    found = paired_difference([differences], RNG)
    assert found.interval[0] == low and (found.p < 0.05) is (low > 0) and found.interval[1] > found.difference
    mirrored = paired_difference([[-d for d in differences]], RNG)
    assert mirrored.interval == pytest.approx((-found.interval[1], -low)) and mirrored.p == found.p


@given(st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=20), min_size=1, max_size=2))
def test_interval_and_p_agree(steps: list[list[int]]) -> None:
    found = paired_difference([[step / 4 for step in each] for each in steps], RNG)
    low, high = found.interval
    assert (low <= 0 <= high) is (found.p >= 0.05) and low <= found.difference <= high


def test_holm_steps_down() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.2}) == {"a": 0.2} and holm({}) == {}
