"""Pass rates from records, and the rules that leave tasks out by them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from rocstar.engine.types import Scored
from rocstar.train.data.build import build
from rocstar.train.data.build_config import DifficultyConfig, load_build
from rocstar.train.data.difficulty import PassRate, probability_above, rate_interval, read_attempts
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import load_tasks
from tests.fakes.json_lines import read_lines, write_lines

from ...needs import modules
from ..reading.analysis.made_trajectories import told, write_step


def rule(**fields: Any) -> DifficultyConfig:
    return DifficultyConfig.model_validate({"rollouts": ["r"], **fields})


def reason(correct: int, attempts: int, by: DifficultyConfig) -> str | None:
    return PassRate(correct, attempts).rejection_reason(by)


def test_all_solved_of_enough_attempts_too_easy_and_unsolved_are_dropped() -> None:
    paper, sure, agree = rule(solved=8), rule(easy_above=0.9, certainty=0.95), rule(min_correct=2)
    assert reason(8, 8, paper) == reason(16, 16, paper) == "solved"
    assert reason(7, 8, paper) is None and reason(7, 7, paper) is None
    assert reason(8, 8, sure) is None, "a task of rate 0.9 is solved 8 times of 8 with probability 0.43"
    assert reason(32, 32, sure) == "too_easy" and reason(28, 32, sure) is None
    assert reason(1, 16, agree) == "unsolved" and reason(2, 16, agree) is None


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


def record(task: str, **outcome: Any) -> dict[str, Any]:
    return {"v": 1, "id": "x", "ids": [1, 2], "task": {"id": task, "question": "q"}, "outcome": outcome}


def test_attempts_are_read_from_lines_and_failures_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    scored = [
        record("a", reward=1.0, method="m", is_correct=True),
        record("a", reward=0.5, method="m", is_correct=False),
    ]
    failed = record("b", failed={"kind": "timeout", "retryable": True, "detail": ""})
    write_lines(path, [*scored, failed, record("c", reward=1.0, method="m")])
    assert list(read_attempts(path)) == [("a", True), ("a", False), ("c", True)]
    write_lines(path, [record("a", reward=1.0), {}])
    with pytest.raises(ConfigError, match="line 2"):
        list(read_attempts(path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no records"):
        list(read_attempts(tmp_path / "empty"))


WRONG = Scored(reward=0.0, method="exact")


def write_run(run: Path, *attempts: tuple[str, bool | None]) -> Path:
    """A run of one step with these attempts, by task and whether they were correct; None: it failed."""
    modules("zstandard")
    rows = []
    for k, (task, is_correct) in enumerate(attempts):
        row = told(("1", "", None), task=task, sibling=k, failed=is_correct is None)
        rows.append(replace(row, outcome=WRONG) if is_correct is False else row)
    write_step(run, 1, rows)
    return run


def test_attempts_of_a_run_are_those_of_its_columns(tmp_path: Path) -> None:
    """Also under an id that the index has the beginning of, cut inside a letter."""
    long, other = "x" + "é" * 30 + "one", "x" + "é" * 30 + "two"
    attempts = [("a", True), (long, False), ("a", None), (other, True), (long, True)]
    run = write_run(tmp_path / "run", *attempts)
    scored = [("a", True), (long, False), (other, True), (long, True)]
    assert list(read_attempts(run)) == scored
    (file,) = (run / "trajectories").glob("*.columns")
    assert list(read_attempts(file)) == scored
    file.with_suffix(".index").unlink()
    with pytest.raises(ConfigError, match="the step was not finished"):
        list(read_attempts(file))


def test_a_build_leaves_out_what_a_run_has_solved(tmp_path: Path) -> None:
    rows = [{"question": f"What is ${k}$ and ${k}$ together?", "answer": str(2 * k)} for k in range(3)]
    write_lines(tmp_path / "raw.jsonl", rows)
    first, second, _ = (task.id for task in load_tasks(DataConfig(source="raw.jsonl"), base=tmp_path))
    write_run(tmp_path / "run", *[(first, True)] * 8, *[(second, True)] * 7, (second, False))
    (tmp_path / "build.toml").write_text(
        'kind = "tasks"\n[[sources]]\nname = "raw"\nsource = "raw.jsonl"\nlicence = "mit"\n'
        '[difficulty]\nrollouts = ["run"]\nsolved = 8\n'
    )
    funnel = build(load_build(tmp_path / "build.toml"), tmp_path / "out")
    assert funnel.dropped == {"solved": {"raw": 1}} and funnel.kept == {"raw": 2}
    kept = read_lines(tmp_path / "out" / "tasks.jsonl")
    rates = {row["id"]: row["provenance"]["decided"].get("pass_rate") for row in kept}
    assert rates.pop(second)["correct"] == 7 and list(rates.values()) == [None]
