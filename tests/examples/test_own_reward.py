"""examples/own_reward as a user runs it: from its recipe and from Python, without a change to the package."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.json_lines import read_folder

from ..warm_python import warm

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_reward"
DEADLINE_S = 300.0


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHONWARNINGS"))}
    return subprocess.run(
        [str(warm().executable), *command],
        cwd=folder,
        env=keep,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`rocstar train own_reward.toml` in the folder of the example."""
    command = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    return run(folder, "-c", command, "train", "own_reward.toml", *options)


def rows(run_dir: Path, phase: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["phase"] == phase]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example's folder, so that nothing is written into the repository."""
    return shutil.copytree(EXAMPLE, tmp_path / "own")


def test_the_recipe_learns_from_partial_credit(example: Path) -> None:
    ended = train(example, "--output-dir", "runs/one")
    assert ended.returncode == 0, ended.stderr
    run_dir = example / "runs" / "one"
    steps = rows(run_dir, "rl")
    assert len(steps) == 2
    for row in steps:
        assert 0 < row["reward/mean"] < 1 and row["reward/correct_share"] <= row["reward/mean"]
        assert row["ledger/kept"] and row["ledger/failed"] == 0 and "loss/policy" in row
    records = list(read_folder(run_dir / "trajectories"))
    methods = {record["outcome"]["method"] for record in records}
    assert "digits" in methods and methods <= {"digits", "exact", "no_answer"}
    assert all(record["outcome"]["is_correct"] == (record["outcome"]["method"] == "exact") for record in records)
    kept = [record for record in records if record["decision"]["kept"]]
    assert len({record["outcome"]["reward"] for record in kept}) > 1
    # The recipe beside the run finds the function from anywhere.
    assert f'kind = "{example / "reward.py"}:digits"' in (run_dir / "config.toml").read_text()


def test_the_reward_that_runs_programs(example: Path) -> None:
    """The policy of this tiny model calls no tool: nothing is correct, and nothing fails."""
    kind = ("--reward.kind=reward:program", "--reward.args={}")
    ended = train(example, *kind, "--sft.steps=2", "--output-dir", "runs/two")
    assert ended.returncode == 0, ended.stderr
    assert all(row["reward/mean"] == 0 == row["ledger/failed"] for row in rows(example / "runs/two", "rl"))
