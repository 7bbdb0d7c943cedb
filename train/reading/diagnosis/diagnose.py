"""`rocstar doctor RUN`: diagnose a run from its files, step by step, with example trajectories. Read-only.

manifest, lock, age of the last row ──> State          metrics.jsonl, evaluations ──> Ringing ──> Diagnosis
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.record.files import FRAMES, record_files
from rocstar.engine.record.signs import is_looping, is_timed_out
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import Trajectory
from rocstar.train.reading.diagnosis.alarms import STRETCH, History, Row, patience_s, usual, work_s
from rocstar.train.reading.diagnosis.ringing import ALARMS, QUIET, Episode, Ringing, Witness
from rocstar.train.record.manifest import KILLED, RUNNING, read_status
from rocstar.train.record.metrics import read_metrics
from rocstar.train.record.run_directory import METRICS, TRAJECTORIES

SILENT: Final = "silent"
UNKNOWN: Final = "unknown"
LEAST_SILENCE_S: Final = 60.0
SHOWN: Final = 3
LEAST_STEPS: Final = 2 * STRETCH
"""RL steps of two stretches, which most alarms compare."""
MOST_READ: Final = 256
"""Trajectories of a step that are read for an alarm whose property the index does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of a run."""

    run: Path
    steps: int
    state: str
    """running, complete, stopped by a callback, interrupted, failed; killed: no process works on it and it
    has no end; silent: it runs and has written nothing for longer than its steps explain; unknown: it has no
    manifest."""
    state_note: str
    """The message on this state; empty if nothing is wrong."""
    standing: Sequence[Episode]
    """Alarms at the last step, liveness first."""
    over: Sequence[Episode]
    shown: dict[str, list[dict[str, Any]]]
    """Trajectories that show an alarm, by its name."""
    not_looked_at: dict[str, str]
    """Alarms that this run cannot have, with the metric that is missing."""

    @property
    def is_ill(self) -> bool:
        """True if an alarm other than advice is active."""
        is_bad = self.state in (KILLED, SILENT, "failed")
        return is_bad or any(episode.alarm.kind != "advice" for episode in self.standing)


def diagnose(run: Path, *, clock: Callable[[], float] = time.time) -> Diagnosis:
    """Everything that the alarms say of a run directory; `clock` is the wall clock.

    Raises:
        ConfigError, RecordError: a file of the run is damaged.
        OSError: it cannot be read.
    """
    rows = read_metrics(run / METRICS)
    ringing = Ringing(run)
    for row in rows:
        ringing.add_row(row)
    steps, standing = ringing.rows, ringing.standing
    silent = {episode.alarm.name for episode in standing}
    known = {name for row in steps for name in row}
    missing = {alarm.name: [name for name in alarm.needs if name not in known] for alarm in ALARMS}
    state, state_note = state_of(run, steps, clock)
    return Diagnosis(
        run=run,
        steps=len(steps),
        state=state,
        state_note=state_note,
        standing=standing,
        over=[one for one in ringing.episodes if one not in standing],
        shown={
            episode.alarm.name: _shown(run, episode)
            for episode in (*ringing.episodes, *standing)
            if episode.alarm.name not in silent or episode in standing
        },
        not_looked_at={name: names[0] for name, names in missing.items() if names},
    )


def state_of(run: Path, steps: Sequence[Row], clock: Callable[[], float]) -> tuple[str, str]:
    """Return the state of a run and a message on it, by manifest, lock and age of the last row."""
    name = read_status(run) or UNKNOWN
    if name == KILLED:
        return name, "no process works on it; go on with --resume"
    if name != RUNNING:
        return name, "logs/console.log says why" if name == "failed" else ""
    age_s = clock() - (run / METRICS).stat().st_mtime
    step_s = usual(History(rows=[*steps, {}]), work_s, least=3)
    if step_s is not None and age_s > max(LEAST_SILENCE_S, patience_s(step_s)):
        return SILENT, f"nothing was written for {age_s:.0f} s, a step takes {step_s:.1f} s; see logs/"
    return RUNNING, ""


def _shown(run: Path, episode: Episode) -> list[dict[str, Any]]:
    """Trajectories of the episode's last step that has some."""
    for step in range(episode.last, max(episode.first, episode.last - QUIET) - 1, -1):
        if found := witnesses(run, step, episode.alarm.witness):
            return found
    return []


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
