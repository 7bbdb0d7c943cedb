"""Two callbacks: one writes a CSV file beside the run, one ends a run whose reward is high enough."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstar.train.record.callbacks import Callback, RunStart, StopRun


class Csv(Callback):
    """Writes a line per RL step. A resumed run goes on in the same file."""

    def __init__(self, columns: list[str]) -> None:
        """`columns`: names of metrics (`train/record/metrics.py` lists them)."""
        self.columns = columns
        self.path = Path()

    def on_run_start(self, run: RunStart) -> None:
        self.path = run.directory / "steps.csv"
        if not run.step:
            self._write("w", ["step", *self.columns])

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._write("a", [row["step"], *(row.get(name) for name in self.columns)])

    def _write(self, mode: str, line: list[Any]) -> None:
        with self.path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(line)


class EarlyStop(Callback):
    """Ends the run once the mean reward was high enough for some steps in a row."""

    def __init__(self, reward: float = 0.9, steps: int = 3) -> None:
        self.reward = reward
        self.last: deque[float] = deque(maxlen=steps)

    def on_step(self, row: Mapping[str, Any]) -> None:
        self.last.append(row["reward/mean"])
        if len(self.last) == self.last.maxlen and min(self.last) >= self.reward:
            raise StopRun(f"reward/mean was at least {self.reward} for {len(self.last)} steps")
