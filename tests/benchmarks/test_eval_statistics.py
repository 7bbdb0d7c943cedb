"""The simulation at a small size: intervals cover, the paired test keeps its size, and has power."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from eval_statistics import SPREAD, chances_of, comparison, coverage, law_of, main, most_powerful

EVALUATIONS, COMPARISONS = 4_000, 1_000
SLACK = 4 * (0.95 * 0.05 / EVALUATIONS) ** 0.5
"""Four standard errors of a coverage."""


@pytest.mark.parametrize("mean", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("attempts", [4, 16])
@pytest.mark.parametrize("questions", [30, 60, 198, 500])
def test_intervals_cover(questions: int, attempts: int, mean: float) -> None:
    found = coverage(questions, attempts, mean, EVALUATIONS, np.random.default_rng(1))
    assert 0.94 - SLACK <= found["coverage"] <= 0.965 + SLACK


@pytest.mark.parametrize("mean", [0.95, 0.03])
@pytest.mark.parametrize("questions", [30, 60, 198, 500])
def test_intervals_cover_where_nearly_all_is_right_or_wrong(questions: int, mean: float) -> None:
    """Where Wilson's covers 0.88: the few hard questions may not be in the sample."""
    found = coverage(questions, 16, mean, EVALUATIONS, np.random.default_rng(2))
    assert 0.94 - SLACK <= found["coverage"] <= 0.965 + SLACK
    if questions == 30:
        assert found["wilson_t"] < 0.9 and found["student"] < 0.86


@pytest.mark.parametrize("mean", [0.95, 0.03])
def test_a_score_that_can_be_missed_from_one_side_is_missed_as_often(mean: float) -> None:
    """No evaluation of 30 x 4 has limits beyond 0.95: with 2.5% to each side coverage would be 0.978."""
    found = coverage(30, 4, mean, EVALUATIONS, np.random.default_rng(5))
    assert 0.94 - SLACK <= found["coverage"] <= 0.969


def test_no_test_can_find_eight_points_at_a_half_in_nine_of_ten() -> None:
    """With 60 x 16: not even the one that knows all laws. At a mean of 0.7 there is room."""
    half, more = (most_powerful(60, 16, mean, 10_000, np.random.default_rng(6)) for mean in (0.5, 0.7))
    assert 0.88 < half < 0.905 and 0.94 < more < 0.965


@pytest.mark.parametrize(("questions", "power"), [(30, 0.60), (60, 0.90)])
def test_the_paired_test_keeps_its_size_and_finds_eight_points(questions: int, power: float) -> None:
    found = comparison(questions, 16, 0.7, COMPARISONS, np.random.default_rng(3))
    assert 0.04 - 4 * 0.007 < found["size"] < 0.06 + 4 * 0.007 and found["power"] > power - 4 * 0.015
    assert found["power_at_detectable"] == pytest.approx(0.8, abs=0.08)


def test_the_law_of_a_question_is_that_of_drawn_difficulties() -> None:
    rng = np.random.default_rng(4)
    shift = special.logit(np.median(chances_of(0.7, SPREAD)))
    drawn = rng.binomial(4, special.expit(shift + SPREAD * rng.standard_normal(200_000)))
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    assert shares == pytest.approx(law_of(4, 0.7, SPREAD), abs=0.006)
    assert law_of(4, 0.7, SPREAD) @ np.arange(5) / 4 == pytest.approx(0.7, abs=1e-6)


def test_it_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--evaluations", "50", "--comparisons", "10"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cells"] == 48 and len(told["coverage"]) == 60 and told["cells_within"] <= 48
