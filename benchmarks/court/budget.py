"""Ends an arm at its budget, and writes down what each of its steps cost."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rocstar.train.record.callbacks import Callback, RunStart, StopRun

SPENT: Final = "spent.jsonl"
"""In the run's folder: a row per step with `step`, `tokens` and `cpu_s`, both from the first step on."""
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Budget(Callback):
    """Stops the run at the step whose end is nearest to a limit of generated tokens, or of the CPU seconds of the
    steps. Start-up and evaluations cost nothing."""

    def __init__(self, tokens: float = float("inf"), cpu_s: float = float("inf")) -> None:
        self._limits = {"tokens": tokens, "cpu_s": cpu_s}

    def on_run_start(self, run: RunStart) -> None:
        self._file, self._mark = run.directory / SPENT, 0.0
        self._rows = [row for row in read_spent(run.directory) if row["step"] <= run.step]
        self._file.write_text("".join(json.dumps(row) + "\n" for row in self._rows))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._mark = cpu_of_tree(os.getpid())

    def on_step(self, row: Mapping[str, Any]) -> None:
        now, before = cpu_of_tree(os.getpid()), self._rows[-1] if self._rows else {"tokens": 0.0, "cpu_s": 0.0}
        spent = {"tokens": before["tokens"] + row["tokens/generated"], "cpu_s": before["cpu_s"] + now - self._mark}
        self._mark = now
        self._rows.append({"step": row["step"], **spent})
        with self._file.open("a") as file:
            file.write(json.dumps(self._rows[-1]) + "\n")
        if is_spent(self._rows, self._limits):
            raise StopRun(", ".join(f"{spent[n]:.0f} {n} of {limit:.0f}" for n, limit in self._limits.items()))


def is_spent(rows: Sequence[Mapping[str, float]], limits: Mapping[str, float]) -> bool:
    """Return whether a further step, as costly as the last one, would end farther from a limit."""
    costs = {n: rows[-1][n] - (rows[-2][n] if len(rows) > 1 else 0) for n in limits} if rows else {}
    return any(rows[-1][n] + cost / 2 >= limits[n] for n, cost in costs.items())


def read_spent(run: Path) -> list[dict[str, float]]:
    file = run / SPENT
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cpu_of_tree(root: int) -> float:
    """CPU seconds of a process, its descendants, and the children that these have waited for."""
    ticks: dict[int, int] = {}
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile, and its parent has its time
        pid = int(stat.parent.name)
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children[pid]
    return total / TICKS_PER_S
