"""kill -9 inside a difficulty filter, --resume, and no attempt that had ended is rolled out again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.columns import frame_key
from rocstar.engine.record.step_file import complete_frames
from rocstar.engine.types import Trajectory
from rocstar.train.evaluation.during_training import FILTERS
from rocstar.train.groups.journal import Journal
from rocstar.train.record.run_directory import records_file

from ..warm_python import warm

Rows = Callable[..., list[dict[str, Any]]]
DYING = """
import os, signal, sys
from rocstar.train.groups.journal import Journal

real, left = Journal._append, 3

def dying(self, step, trajectories):
    global left
    real(self, step, trajectories)
    if self.folder.parent.name == "filters":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

Journal._append = dying
from rocstar.train.cli import main
sys.exit(main())
"""
OPTIONS = (
    "--sft.steps=0",
    "--stages.0.steps=1",
    "--stages.1.steps=1",
    "--engine.max_running=4",
    "--eval.samples_per_task=1",
    "--eval.data.limit=1",
)


def test_a_filter_that_is_killed_goes_on_behind_its_last_attempt(
    workshop: Any, finished: Path, read_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = workshop.directory / "killed_filter"
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    command = ["train", "coin.toml", "--output-dir", str(directory), model, *OPTIONS]
    journal = records_file(directory / FILTERS, 1)
    for resume, ended in [((), 3), (("--resume",), 6)]:
        killed = subprocess.run(
            [str(warm().executable), "-c", DYING, *command, *resume],
            cwd=workshop.directory,
            env=workshop.environment(),
            capture_output=True,
            text=True,
            timeout=300.0,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        before = [str(frame_key(place.read())) for place in complete_frames(journal)]
        assert len(before) == len(set(before)) == ended

    made: list[str] = []
    append = Journal._append

    def counted(self: Journal, step: int, trajectories: Sequence[Trajectory]) -> None:
        append(self, step, trajectories)
        if self.folder == journal.parent:
            made.extend(str(t.key) for t in trajectories)

    monkeypatch.setattr(Journal, "_append", counted)
    workshop.succeed(*command, "--resume")
    (row,) = (row for row in read_rows(directory) if "difficulty/tasks_seen" in row)
    assert len({*before, *made}) == len(before) + len(made) == 2 * row["difficulty/tasks_seen"]
    assert [path.name for path in (directory / FILTERS).iterdir()] == ["step_000001.json"]
