"""Workloads from our own trajectory records: the length of each turn in tokens.

Records hold no wall time (contract 5), so the seconds of a tool call are drawn: exp(normal) around a median,
the same for the same seed. A record of a trajectory that failed before its first turn ended has no work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.reading import read_records
from rocstar.engine.sim.workload import TrajectoryWork, TurnWork, Workload


def find_records(path: Path) -> list[Path]:
    """The record files of a run directory, of a directory of them, or the file itself."""
    if path.is_file():
        return [path]
    for folder in (path / "trajectories", path):
        if files := list(record_files(folder).values()) or sorted(folder.glob("*.jsonl")):
            return files
    raise ValueError(f"{path}: no trajectory records here; give a run directory or a file of records")


def load_trace(
    path: Path,
    *,
    step: int | None = None,
    limit_tokens: int | None = None,
    tool_s: float = 0.3,
    tasks: int | None = None,
    seed: int = 0,
) -> tuple[Workload, Workload | None]:
    """Return one step of the records as a workload, the last one unless `step` names another, and the step
    before it in the files, from which a scheduler has learnt.

    `limit_tokens` bounds responses, prompt excluded; default: the longest response of all the steps. `tasks`
    draws that many groups with replacement instead of taking each once.
    """
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    longest = 0
    for file in find_records(path):
        try:
            for record in read_records(file):
                slim = {key: record[key] for key in ("id", "step", "stage", "turns")}
                slim["task"] = record["task"]["id"]
                slim["prompt"] = record["segments"][0]["end"] if record["segments"] else 0
                by_step.setdefault(record["step"], []).append(slim)
                longest = max(longest, len(record["ids"]) - slim["prompt"])
        except RecordError as error:
            raise ValueError(str(error)) from error
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{file}: a record lacks {error}; is it whole?") from error
    steps = sorted(by_step)
    if not steps:
        raise ValueError(f"{path}: the files hold no record")
    chosen = steps[-1] if step is None else step
    if chosen not in by_step:
        raise ValueError(f"{path}: no step {chosen}; there are {steps[0]} to {steps[-1]}")
    rng = np.random.default_rng(seed)
    limit = limit_tokens or longest
    work = list(_work(by_step[chosen], limit, tool_s, rng))
    if not work:
        raise ValueError(f"{path}: step {chosen} has no trajectory with a turn")
    earlier = [s for s in steps if s < chosen]
    before = list(_work(by_step[earlier[-1]], limit, tool_s, rng)) if earlier else []
    if tasks is not None:
        work = _resample(work, tasks, rng)
        before = _resample(before, tasks, rng) if before else []
    return (
        Workload(name=f"{path.name}, step {chosen}", trajectories=tuple(work)),
        Workload(name="before", trajectories=tuple(before)) if before else None,
    )


def _work(
    records: Iterable[Mapping[str, Any]], limit: int, tool_s: float, rng: np.random.Generator
) -> Iterable[TrajectoryWork]:
    prompts: dict[str, int] = {}
    for record in records:
        turns, prompt = record["turns"], record["prompt"]
        if not turns:
            continue
        # Groups share a prompt; a task whose prompt changed in between is another group.
        group = str(record["task"])
        if prompts.setdefault(group, prompt) != prompt:
            group = f"{group}@{prompt}"
            prompts[group] = prompt
        response = turns[-1]["end"] - prompt
        if response > limit:
            raise ValueError(
                f"{record['id']}: {response} response tokens exceed the limit of {limit}; raise the limit"
            )
        waits = np.exp(rng.normal(math.log(tool_s), 0.6, len(turns))) if tool_s else np.zeros(len(turns))
        results = [after["start"] - turn["end"] for turn, after in itertools.pairwise(turns)]
        behind = zip(turns, [*results, 0], [*waits.tolist()[:-1], 0.0], strict=True)
        yield TrajectoryWork(
            traj=str(record["id"]),
            group=group,
            stage=str(record["stage"]),
            prompt_tokens=prompt,
            max_tokens=limit,
            turns=tuple(TurnWork(turn["end"] - turn["start"], result, wait) for turn, result, wait in behind),
        )


def _resample(work: Sequence[TrajectoryWork], tasks: int, rng: np.random.Generator) -> list[TrajectoryWork]:
    groups: dict[str, list[TrajectoryWork]] = {}
    for item in work:
        groups.setdefault(item.group, []).append(item)
    names = sorted(groups)
    drawn: list[TrajectoryWork] = []
    for copy, pick in enumerate(rng.integers(len(names), size=tasks).tolist()):
        name = f"{copy}:{names[pick]}"
        drawn += [replace(item, traj=f"{copy}:{item.traj}", group=name) for item in groups[names[pick]]]
    return drawn
