"""Pass rates from records, and the rules that leave tasks out by them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from rocstar.train.data.build_config import DifficultyConfig
from rocstar.train.data.difficulty import PassRate, probability_above, rate_interval, read_attempts
from rocstar.train.recipe.errors import ConfigError


def rule(**fields: Any) -> DifficultyConfig:
    return DifficultyConfig.model_validate({"rollouts": ["r"], **fields})


def test_all_solved_of_enough_attempts_is_dropped() -> None:
    paper = rule(solved=8)
    assert PassRate(8, 8).refused(paper) == PassRate(16, 16).refused(paper) == "solved"
    assert PassRate(7, 8).refused(paper) is None and PassRate(7, 7).refused(paper) is None


def test_the_posterior_says_when_a_task_is_too_easy() -> None:
    sure = rule(easy_above=0.9, certainty=0.95)
    assert PassRate(8, 8).refused(sure) is None, (
        "a task of rate 0.9 is solved 8 times of 8 with probability 0.43"
    )
    assert PassRate(32, 32).refused(sure) == "too_easy" and PassRate(28, 32).refused(sure) is None


def test_a_label_that_no_attempt_meets_is_dropped() -> None:
    agree = rule(min_correct=2)
    assert PassRate(1, 16).refused(agree) == "unsolved" and PassRate(2, 16).refused(agree) is None


@pytest.mark.parametrize(("correct", "attempts"), [(0, 8), (3, 8), (8, 8), (31, 32), (100, 1000)])
def test_the_posterior_is_that_of_a_beta(correct: int, attempts: int) -> None:
    beta = stats.beta(correct + 1, attempts - correct + 1)
    for limit in (0.1, 0.5, 0.9, 0.95):
        assert probability_above(limit, correct, attempts) == pytest.approx(beta.sf(limit), abs=1e-9)
    assert rate_interval(correct, attempts) == pytest.approx(beta.ppf([0.025, 0.975]), abs=1e-9)


def test_intervals_hold_the_rate_as_often_as_they_say() -> None:
    rng, held = random.Random(0), 0
    for _ in range(1000):
        rate = rng.random()
        correct = sum(rng.random() < rate for _ in range(8))
        low, high = rate_interval(correct, 8)
        held += low <= rate <= high
    assert 930 <= held <= 970


def line(task: str, outcome: dict[str, Any]) -> str:
    record = {"v": 1, "id": "x", "ids": [1, 2], "task": {"id": task, "question": "q"}, "outcome": outcome}
    return json.dumps(record) + "\n"


def test_attempts_are_read_from_lines_and_failures_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(
        line("a", {"reward": 1.0, "method": "m", "is_correct": True})
        + line("a", {"reward": 0.5, "method": "m", "is_correct": False})
        + line("b", {"failed": {"kind": "timeout", "retryable": True, "detail": ""}})
        + line("c", {"reward": 1.0, "method": "m"})
    )
    assert list(read_attempts(path)) == [("a", True), ("a", False), ("c", True)]
    path.write_text(line("a", {"reward": 1.0}) + "{}\n")
    with pytest.raises(ConfigError, match="line 2"):
        list(read_attempts(path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no records"):
        list(read_attempts(tmp_path / "empty"))
