"""The simulation at a small size: intervals cover, the paired test keeps its size, and has power."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from eval_statistics import SPREAD, chances_of, comparison, coverage, law_of, main, two_values

EVALUATIONS, COMPARISONS = 4_000, 1_000
SLACK = 4 * (0.95 * 0.05 / EVALUATIONS) ** 0.5
"""Four standard errors of a coverage."""


@pytest.mark.parametrize("mean", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("attempts", [4, 16])
@pytest.mark.parametrize("questions", [30, 60, 198, 500])
def test_intervals_cover(questions: int, attempts: int, mean: float) -> None:
    found = coverage(questions, law_of(attempts, chances_of(mean, SPREAD)), EVALUATIONS, np.random.default_rng(1))
    assert 0.94 - SLACK <= found["coverage"] <= 0.965 + SLACK


@pytest.mark.parametrize("mean", [0.97, 0.9, 0.1])
@pytest.mark.parametrize("questions", [15, 30, 60, 198, 500])
def test_intervals_cover_where_nearly_all_is_right_or_wrong(questions: int, mean: float) -> None:
    found = coverage(questions, law_of(16, chances_of(mean, SPREAD)), EVALUATIONS, np.random.default_rng(2))
    assert 0.94 - SLACK <= found["coverage"] <= 0.975 + SLACK


@pytest.mark.parametrize(("questions", "attempts"), [(15, 64), (30, 16), (198, 16)])
@pytest.mark.parametrize("low", [0.005, 0.02])
def test_a_score_of_few_hard_and_many_easy_questions_is_not_missed(questions: int, attempts: int, low: float) -> None:
    """In a half of evaluations of 15 questions, none is one of the 5% that the model solves."""
    found = coverage(questions, two_values(attempts, 0.05, low, 0.9), EVALUATIONS, np.random.default_rng(6))
    assert found["coverage"] >= 0.935 - SLACK


@pytest.mark.parametrize(("mean", "gain"), [(0.9, 0.08), (0.95, 0.03), (0.95, 0.0)])
def test_the_interval_of_a_difference_near_1_covers_it_and_agrees_with_p(mean: float, gain: float) -> None:
    found = comparison(30, 16, mean, gain, COMPARISONS, np.random.default_rng(7))
    assert found["coverage"] >= 0.925 - SLACK and found["disagree"] == 0


@pytest.mark.parametrize("mean", [0.95, 0.03])
def test_a_score_that_can_be_missed_from_one_side_is_missed_as_often(mean: float) -> None:
    """No evaluation of 30 x 4 has limits beyond 0.95: with 2.5% to each side coverage would be 0.978."""
    found = coverage(30, law_of(4, chances_of(mean, SPREAD)), EVALUATIONS, np.random.default_rng(5))
    assert 0.94 - SLACK <= found["coverage"] <= 0.969


@pytest.mark.parametrize(("questions", "power"), [(30, 0.60), (60, 0.90)])
def test_the_paired_test_keeps_its_size_and_finds_eight_points(questions: int, power: float) -> None:
    rng = np.random.default_rng(3)
    alike, apart = (comparison(questions, 16, 0.7, gain, COMPARISONS, rng) for gain in (0.0, 0.08))
    assert 0.04 - 4 * 0.007 < alike["rejected"] < 0.06 + 4 * 0.007 and apart["rejected"] > power - 4 * 0.015
    found = comparison(questions, 16, 0.7, alike["detectable"], COMPARISONS, rng)
    assert found["rejected"] == pytest.approx(0.8, abs=0.08)


def test_the_law_of_a_question_is_that_of_drawn_difficulties() -> None:
    rng = np.random.default_rng(4)
    shift = special.logit(np.median(chances_of(0.7, SPREAD)))
    wide = law_of(4, chances_of(0.7, SPREAD))
    drawn = rng.binomial(4, special.expit(shift + SPREAD * rng.standard_normal(200_000)))
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    assert shares == pytest.approx(wide, abs=0.006)
    assert wide @ np.arange(5) / 4 == pytest.approx(0.7, abs=1e-6)


def test_it_writes_its_claims(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert main(["--evaluations", "50", "--comparisons", "3", f"--out={out}"]) in (0, 1)
    written = json.loads(out.read_text())
    assert len(written["coverage"]) == 108 and len(written["claims"]) == 11
    (dip,) = [cell for cell in written["one_attempt"] if cell["questions"] == 100]
    assert (dip["mean"], dip["coverage"]) == (0.032, pytest.approx(0.919, abs=0.001))
