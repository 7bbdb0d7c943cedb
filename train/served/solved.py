"""A question that a run solved with its tool, for a person who does not know what to ask."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rocstar.engine.record.files import FRAMES
from rocstar.engine.record.reading import RecordError
from rocstar.engine.record.step_file import StepFile
from rocstar.train.record.run_directory import CONFIG, TRAJECTORIES

MAX_CHARS = 240
"""Longest question in characters: users do not type longer ones."""
MAX_READ = 32
"""Trajectories whose questions are read."""


def solved_question(target: Path) -> str | None:
    """The question of the first trajectory of the run's last judged step that was solved with calls of which
    none failed.

    `target` is the run's folder, or a checkpoint in it. None: there is no such trajectory, all questions are
    long or of several lines, or the licence of its task asks that it is not shown.
    """
    run = next((folder for folder in (target, *target.absolute().parents[:2]) if _is_run(folder)), None)
    if run is None:
        return None
    for path in sorted((run / TRAJECTORIES).glob(f"step_*{FRAMES}"), reverse=True):
        try:
            return _solved_in(StepFile(path))
        except (RecordError, OSError):  # not judged yet, or not whole: the step before it
            continue
    return None


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / TRAJECTORIES).is_dir()


def _solved_in(step: StepFile) -> str | None:
    rows = step.rows
    found = rows["is_correct"] & (rows["tool_calls"] > 0) & (rows["tool_errors"] == 0) & ~rows["hidden"]
    for row in np.flatnonzero(found)[:MAX_READ].tolist():
        question = str(step.record(row)["task"]["question"]).strip()
        if len(question) <= MAX_CHARS and question.isprintable():
            return question
    return None
