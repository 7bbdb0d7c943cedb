"""The alarms of a running training: reported on the console and written into its rows, and so to its
trackers.

    Run.log ──Watch.measured──> `alarm/*` of the row ──> metrics.jsonl, trackers
    Listeners ──on_step, on_evaluation──> Watch ──on_note──> console, console.log, callbacks

A resumed run restores its alarms by replaying its rows silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocstar.train.reading.diagnosis.alarm import HeldOutChange, History, Row
from rocstar.train.reading.diagnosis.held_out import HeldOut
from rocstar.train.reading.diagnosis.ringing import Episode, Ringing
from rocstar.train.record.callbacks import Callback, RunStart
from rocstar.train.record.metrics import read_metrics
from rocstar.train.record.run_directory import METRICS


class Watch(Callback):
    """Listens to a run. Invariant: after any row its state is that of a replay of all rows so far."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        """Reports a note; set when the listeners exist."""
        self._rows: list[Row] = []
        self._ringing = Ringing()
        self._change: HeldOutChange | None = None
        self._run = Path()
        self._untold: list[Episode] = []

    def on_run_start(self, run: RunStart) -> None:
        """Replay the rows of an earlier start. Raise MetricsFileError for a damaged file."""
        self._run = run.directory
        path = run.directory / METRICS
        evaluations = HeldOut(run.directory)
        for row in read_metrics(path) if run.step and path.exists() else []:
            if row["step"] > run.step:
                continue
            if row["phase"] == "rl":
                self._hear(row)
            elif is_evaluation(row):
                self._change = evaluations.change(row["step"])
                self._ringing.hear(History(rows=self._rows, held_out=self._change), row["step"])

    def measured(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics `alarm/NAME` of a step: 1 if active, 0 if over."""
        told = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._untold += self._hear({**told, "step": step})
        found = {f"alarm/{episode.alarm.name}": 0.0 for episode in self._ringing.episodes}
        return found | {f"alarm/{episode.alarm.name}": 1.0 for episode in self._ringing.standing}

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Tell of the alarms that began with this row."""
        untold, self._untold = self._untold, []
        for episode in untold:
            self.tell(self._told(episode))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Check the change of an evaluation."""
        if is_evaluation(row):
            self._change = HeldOut(self._run).change(row["step"])
            for episode in self._ringing.hear(History(rows=self._rows, held_out=self._change), row["step"]):
                self.tell(self._told(episode))

    def _hear(self, row: Row) -> list[Episode]:
        self._rows.append(row)
        return self._ringing.hear(History(rows=self._rows, held_out=self._change), int(row["step"]))

    def _told(self, episode: Episode) -> str:
        alarm = episode.alarm
        return (
            f"{alarm.kind} alarm {alarm.name} at step {episode.first}: {alarm.says} {episode.seen}. "
            f"More: rocstar doctor {self._run}"
        )


def is_evaluation(row: Row) -> bool:
    """Whether a row is of an evaluation, and not of a difficulty filter."""
    return row["phase"] == "eval" and any(name.startswith("eval/") for name in row)
