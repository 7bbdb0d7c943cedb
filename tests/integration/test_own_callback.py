"""examples/own_callback: a recipe whose callbacks write a CSV file and end the run; and its resume."""

import csv
import subprocess
from pathlib import Path

from rocstar.train.record.metrics import read_metrics

from ..warm_python import warm

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_callback" / "own_callback.toml"
DEADLINE_S = 300.0


def train(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(warm().executable), "-m", "rocstar.train", str(EXAMPLE), "--output-dir", "run", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_the_run_ends_early_and_goes_on_with_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for step, options in ((2, ()), (4, ("--resume",))):
        ended = train(*options, "--eval.0.every=2", folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert f"stopped behind step {step} by EarlyStop: reward/mean was at least 0.0" in ended.stderr
        assert (folder / "checkpoints" / f"step_{step}" / "COMPLETE").exists()
    assert (folder / "report.html").exists()
    rows = read_metrics(folder / "metrics.jsonl")
    steps = [row for row in rows if row["phase"] == "rl"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, 0, 2, 4]
    names = ["step", "reward/mean", "seq_len/mean"]
    with (folder / "steps.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [names, *([str(row[name]) for name in names] for row in steps)]
