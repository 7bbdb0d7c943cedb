"""How often the alarms of `rocstar doctor` ring over real runs, and how late they are for signatures planted
in them.

    python benchmarks/alarms_on_runs.py RUN ... [--out benchmarks/results/alarms.json]

False alarms: the runs are taken for healthy, so every episode of liveness or health counts, per 100 steps.
Advice is counted apart. Planted: into each run's own rows, from step FIRST on, as
tests/train/reading/diagnosis/made_runs.py has them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from quickstart_seeds import machine

from rocstar.engine.record.step_file import StepFile
from rocstar.train.groups.text_metrics import text_metrics
from rocstar.train.reading.diagnosis.alarm import History
from rocstar.train.reading.diagnosis.diagnose import episodes_of
from rocstar.train.reading.diagnosis.ringing import Ringing
from rocstar.train.record.metrics import Row, read_metrics
from rocstar.train.record.run_directory import METRICS, records_file

ROOT = Path(__file__).parents[1]
FIRST = 12
LATE = 5


def made_runs() -> ModuleType:
    """The signatures that the tests plant."""
    path = ROOT / "tests" / "train" / "diagnosis" / "made_runs.py"
    spec = importlib.util.spec_from_file_location("made_runs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_runs"] = module
    spec.loader.exec_module(module)
    return module


def rows_of(run: Path) -> list[Row]:
    """The rows of a run; metrics of texts that an older run lacks are counted from its records."""
    rows = read_metrics(run / METRICS)
    for row in rows:
        path = records_file(run, row["step"])
        if row["phase"] == "rl" and "text/looping" not in row and path.with_suffix(".index").is_file():
            file = StepFile(path)
            row |= text_metrics([file.trajectory(k) for k in range(len(file))])
    return rows


def false_alarms(runs: dict[Path, list[Row]]) -> dict[str, Any]:
    """Episodes of each alarm over all runs."""
    counts: Counter[str] = Counter()
    steps, listed = 0, []
    for run, told_rows in runs.items():
        rows, ringing = episodes_of(run, told_rows)
        steps += len(rows)
        for episode in ringing.episodes:
            counts[episode.alarm.kind] += 1
            told = {"run": run.name, "alarm": episode.alarm.name, "kind": episode.alarm.kind}
            listed.append(told | {"first": episode.first, "last": episode.last, "seen": episode.seen})
    alarms = counts["liveness"] + counts["health"]
    return {
        "runs": len(runs),
        "steps": steps,
        "alarms": alarms,
        "alarms_per_100_steps": 100 * alarms / max(1, steps),
        "advice": counts["advice"],
        "episodes": listed,
    }


def detection(runs: dict[Path, list[Row]]) -> list[dict[str, Any]]:
    """Of each signature: in how many runs it was told within LATE steps, and how many it took on average."""
    plants = made_runs().PLANTS
    found = []
    for name, plant in plants.items():
        delays: list[int] = []
        for told_rows in runs.values():
            rows = [dict(row) for row in told_rows if row["phase"] == "rl"]
            for row in rows[FIRST - 1 :]:
                plant(row, row["step"] - FIRST)
            ringing = Ringing()
            for k, row in enumerate(rows, 1):
                for episode in ringing.hear(History(rows=rows[:k]), row["step"]):
                    if episode.alarm.name == name:
                        delays.append(episode.first - FIRST + 1)
        in_time = sum(0 < delay <= LATE for delay in delays)
        steps = sum(delays) / len(delays) if delays else None
        found.append({"alarm": name, "in_time": in_time, "runs": len(runs), "steps": steps})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms over real runs, and planted signatures.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = {run: rows_of(run) for run in options.runs}
    command = "python benchmarks/alarms_on_runs.py RUN ..."
    found = {
        "machine": machine(),
        "command": command,
        "false": false_alarms(runs),
        "planted": detection(runs),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
