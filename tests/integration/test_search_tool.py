"""examples/search_tool: a class beside a recipe is a tool of the policy, together with Python's."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main
from tests.fakes.json_lines import read_folder

from ..kept_pool import kept_pools
from ..patience import PATIENCE_S
from .conftest import TOOL

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_tool"
SHORT = ("--stages.0.steps=2", "--run.threads=1", "--eval.samples_per_task=1")


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its data."""
    folder = tmp_path_factory.mktemp("example") / "search_tool"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.jsonl", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=PATIENCE_S)
    return folder


@pytest.fixture(scope="session")
def finished(example: Path) -> Path:
    """Two steps of it, started from another folder."""
    directory = example.parent / "run"
    with contextlib.chdir(example.parent), kept_pools():
        assert main(["train", "search_tool/recipe.toml", "--output-dir", str(directory), *SHORT]) == 0
    return directory


def answered(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and result of every call that ended well."""
    calls = [call for turn in record["turns"] for call in turn["calls"]]
    return [(call["name"], call["result"]) for call in calls if call["status"] == "ok"]


def test_two_steps_call_both_tools_in_one_trajectory(finished: Path) -> None:
    records = list(read_folder(finished / "trajectories"))
    assert {record["step"] for record in records} == {1, 2}
    both = [calls for calls in map(answered, records) if {name for name, _ in calls} == {"search", TOOL}]
    assert both, "searched and calculated"
    assert any("costs" in text for calls in both for name, text in calls if name == "search")
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "rl"]
    assert all(row["tool/calls/search"] and row[f"tool/calls/{TOOL}"] for row in steps)
