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

from rocstar.sandbox.extras import shell_command
from rocstar.train.reading.diagnosis.ringing import Episode, Ringing
from rocstar.train.record.callbacks import Callback, RunStart
from rocstar.train.record.metrics import read_metrics
from rocstar.train.record.run_directory import METRICS


class Watch(Callback):
    """Listens to a run. Invariant: after any row its state is that of a replay of all rows so far."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        """Reports a note; set when the listeners exist."""
        self._run = Path()
        self._ringing = Ringing(self._run)
        self._unreported: list[Episode] = []

    def on_run_start(self, run: RunStart) -> None:
        """Replay the rows of an earlier start. Raise MetricsFileError for a damaged file."""
        self._run, self._ringing = run.directory, Ringing(run.directory)
        path = run.directory / METRICS
        for row in read_metrics(path) if run.step and path.exists() else []:
            if row["step"] <= run.step:
                self._ringing.add_row(row)

    def measured(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics `alarm/NAME` of a step: 1 if active, 0 if over."""
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._unreported += self._ringing.add_row({**row, "step": step, "phase": "rl"})
        found = {f"alarm/{episode.alarm.name}": 0.0 for episode in self._ringing.episodes}
        return found | {f"alarm/{episode.alarm.name}": 1.0 for episode in self._ringing.standing}

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Report the alarms that began with this row."""
        for episode in self._unreported:
            alarm = episode.alarm
            self.tell(
                f"{alarm.kind} alarm {alarm.name} at step {episode.first}: {alarm.says} {episode.seen}. "
                f"More: {shell_command('doctor', self._run)}"
            )
        self._unreported.clear()

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Check the change of an evaluation."""
        self._unreported += self._ringing.add_row(row)
        self.on_step(row)
