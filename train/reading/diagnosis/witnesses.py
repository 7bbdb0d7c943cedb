"""Trajectories that show an alarm, from the records of a step.

Properties counted in the index (truncated, failed, errors, answers, calls, tokens) need no read of a
trajectory; for the others at most MOST_READ are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.record.files import FRAMES, record_files
from rocstar.engine.record.signs import is_looping, is_timed_out
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import Trajectory
from rocstar.train.reading.diagnosis.alarm import Witness
from rocstar.train.record.run_directory import TRAJECTORIES

SHOWN: Final = 3
MOST_READ: Final = 256


def witnesses(run: Path, step: int, what: Witness | None) -> list[dict[str, Any]]:
    """At most SHOWN trajectories of a step that show an alarm: step, task, sibling and the record's id, with
    the name of the file and the row that have it.

    None where the run keeps no columns of that step. RecordError for damaged ones.
    """
    path = record_files(run / TRAJECTORIES).get(step)
    if what is None or path is None or path.suffix != FRAMES:
        return []
    file = StepFile(path)
    chosen: list[dict[str, Any]] = []
    for row in _candidates(file, what):
        trajectory = file.trajectory(row)
        if _shows(trajectory, what):
            key = trajectory.key
            found = {"step": step, "task": key.task_id, "sibling": key.sibling, "id": str(key)}
            chosen.append(found | {"file": path.stem, "row": row})
        if len(chosen) == SHOWN:
            break
    return chosen


def _candidates(file: StepFile, what: Witness) -> list[int]:
    """Return rows that may show it, the most informative first; hidden tasks are left out."""
    rows = file.rows
    weight: npt.NDArray[Any]
    if what == "truncated":
        weight = rows["is_truncated"] * rows["tokens"]
    elif what == "failed":
        failed = file.buckets.index("failed") if "failed" in file.buckets else -1
        weight = rows["bucket"] == failed
    elif what == "tool_errors":
        weight = rows["is_correct"] * rows["tool_errors"]
    elif what == "answers":
        weight = np.where(rows["num_answers"] > 1, rows["num_answers"], 0)
    elif what in ("calls", "undecodable"):
        weight = rows["tool_calls"] if what == "calls" else rows["tool_errors"]
    elif what == "timeouts":
        weight = ~rows["is_correct"]
    else:
        weight = rows["tokens"]
    weight = np.where(rows["hidden"], 0, weight).astype(np.int64)
    order = np.argsort(-weight, kind="stable")
    return [int(row) for row in order[: min(MOST_READ, int((weight > 0).sum()))]]


def _shows(trajectory: Trajectory, what: Witness) -> bool:
    if what == "undecodable":
        return any(result.status == "malformed_call" for result in trajectory.results)
    if what == "timeouts":
        return is_timed_out(trajectory)
    return what != "loops" or is_looping(trajectory)
