"""examples/own_callback: a recipe whose callbacks write a CSV file and end the run; and its resume."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest

from rocstar.train.record.metrics import read_metrics

from ..warm_python import warm

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_callback" / "own_callback.toml"
DEADLINE_S = 300.0


def train(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(warm().executable), "-m", "rocstar.train", str(EXAMPLE), "--output-dir", "run", *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    """The run's folder after a start and a resume, and how they ended."""
    folder = tmp_path_factory.mktemp("own_callback")
    return folder / "run", [train(folder=folder), train("--resume", folder=folder)]


def test_the_run_ends_early_and_goes_on_with_resume(
    runs: tuple[Path, list[subprocess.CompletedProcess[str]]],
) -> None:
    folder, ended = runs
    for k, one in enumerate(ended, start=1):
        assert one.returncode == 0, one.stderr
        assert f"stopped behind step {2 * k} by EarlyStop: reward/mean was at least 0.0" in one.stderr
        assert (folder / "checkpoints" / f"step_{2 * k}" / "COMPLETE").exists()
    assert (folder / "report.html").exists()
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, 0, 2, 4]


def test_the_file_says_what_the_metrics_say(
    runs: tuple[Path, list[subprocess.CompletedProcess[str]]],
) -> None:
    folder, _ = runs
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["phase"] == "rl"]
    names = ["step", "reward/mean", "seq_len/mean"]
    with (folder / "steps.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [names, *([str(row[name]) for name in names] for row in rows)]
