"""Which trajectories are analysed, under which weights: a run's step, or one file of records.

    places of all that were scored, by task ──shuffled──> one of each task in turn, until there are enough
                                                          ──> read one by one, in the order of the file

Only what an index or one line says of a trajectory is in memory for all of them. Trajectories of tasks whose
licence asks that they are not shown, and those that failed, are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import FRAMES, LINES
from rocstar.engine.record.reading import RecordError, from_record, read_records, record_files
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import HIDDEN, Trajectory
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import (
    CONFIG,
    TRAJECTORIES,
    complete_checkpoints,
    config_of,
    step_of,
)

FAILED = "failed"
"""The bucket of what has no reward (train/groups/selection.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSource:
    """Records, and the weights under which they are looked at."""

    file: Path
    step: int | None
    """Of a run; None of a file alone."""
    checkpoint: str
    """A directory, or a name of the hub."""
    written_before: int | None
    """Updates between the weights that wrote the records and these; negative where these are the older ones.
    None: not known."""
    temperature: float
    threads: int
    """As `run.threads`: 0 = the physical cores."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a trajectory lies in its file."""

    row: int
    task: Any
    """Names its task within the file."""


def resolve_source(
    run: Path, *, step: int | None, checkpoint: str | None, temperature: float | None
) -> AnalysisSource:
    """What is meant by a run directory, or by a file of records. ConfigError for what is not there."""
    if run.is_file():
        if step is not None:
            raise ConfigError(f"--step {step} is of a run directory; {str(run)!r} is a file")
        return _of_file(run, checkpoint, temperature)
    files = record_files(run / TRAJECTORIES)
    if not files:
        raise ConfigError(
            f"{str(run)!r} has no trajectories of a finished step; give a run directory, or a file of records"
        )
    if step is None:
        step = max(files)
    if step not in files:
        raise ConfigError(f"{str(run)!r} has no records of step {step}; it has those of {_listed(files)}")
    recipe = load_recipe(config_of(run, step)) if (run / CONFIG).is_file() else None
    saved, apart = (checkpoint, None) if checkpoint else _nearest(run, step - 1)
    return AnalysisSource(
        file=files[step],
        step=step,
        checkpoint=saved,
        written_before=apart,
        temperature=_temperature(temperature, recipe.rl.temperature if recipe else None),
        threads=recipe.run.threads if recipe else 0,
    )


def _of_file(file: Path, checkpoint: str | None, temperature: float | None) -> AnalysisSource:
    """A file alone; the attempts of a run's evaluation at step N are of its checkpoint N."""
    if file.suffix not in (LINES, FRAMES):
        raise ConfigError(f"{str(file)!r} is no file of records; they end in {LINES} or {FRAMES}")
    folder = file.parent.parent
    is_attempts = file.parent.name == "attempts" and folder.parent.name == "evaluations"
    apart, recipe = None, None
    if is_attempts and (folder.parent.parent / CONFIG).is_file():
        run = folder.parent.parent
        recipe = load_recipe(run / CONFIG)
        if checkpoint is None and folder.name.startswith("step_") and folder.name[5:].isdecimal():
            checkpoint, apart = _nearest(run, int(folder.name[5:]))
    if checkpoint is None:
        raise ConfigError(f"{str(file)!r} does not say which weights wrote it; pass --checkpoint DIRECTORY")
    return AnalysisSource(
        file=file,
        step=None,
        checkpoint=checkpoint,
        written_before=apart,
        temperature=_temperature(temperature, _of_set(recipe, file.stem)),
        threads=recipe.run.threads if recipe else 0,
    )


def _of_set(recipe: Recipe | None, name: str) -> float | None:
    """The temperature of an evaluation set that has its own."""
    sets = recipe.eval if recipe else ()
    return next((config.temperature for config in sets if config.label == name), None)


def _temperature(asked: float | None, own: float | None) -> float:
    chosen = asked if asked is not None else 1.0 if own is None else own
    if not 0 < chosen < float("inf"):
        raise ConfigError(
            f"a temperature of {chosen:g} leaves no entropy; pass --temperature with a number above 0"
        )
    return chosen


def _nearest(run: Path, step: int) -> tuple[str, int]:
    """The complete checkpoint nearest to the weights after a step, and how many updates it is behind."""
    found = complete_checkpoints(run)
    if not found:
        raise ConfigError(f"{str(run)!r} has no complete checkpoint; pass --checkpoint DIRECTORY")
    nearest = min(found, key=lambda path: (abs(step_of(path) - step), step_of(path)))
    return str(nearest), step_of(nearest) - step


def _listed(files: dict[int, Path]) -> str:
    steps = sorted(files)
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]} to {steps[-1]}"


def select_trajectories(file: Path, number: int, *, seed: int) -> list[int]:
    """Rows of at most `number` trajectories of a file, in order: of as many tasks as there are, and of each
    about as many. ConfigError for a file without any, or one that cannot be read."""
    places = _places(file)
    if not places:
        raise ConfigError(
            f"{str(file)!r} has no scored trajectory that may be shown; failed ones have no say here"
        )
    rng, by_task = random.Random(f"analyse|{seed}"), dict[Any, list[int]]()
    for place in places:
        by_task.setdefault(place.task, []).append(place.row)
    for rows in by_task.values():
        rng.shuffle(rows)
    chosen: list[int] = []
    while by_task and len(chosen) < number:
        tasks = sorted(by_task, key=str)
        rng.shuffle(tasks)
        for task in tasks[: number - len(chosen)]:
            chosen.append(by_task[task].pop())
        by_task = {task: rows for task, rows in by_task.items() if rows}
    return sorted(chosen)


def read_chosen(file: Path, rows: Sequence[int]) -> Iterator[Trajectory]:
    """The trajectories of these rows, one at a time. ConfigError for one that cannot be read."""
    try:
        if file.suffix == FRAMES:
            step_file = StepFile(file)
            for row in rows:
                yield step_file.trajectory(row)
            return
        wanted = set(rows)
        for row, record in enumerate(read_records(file)):
            if row in wanted:
                yield from_record(record)
            if row >= rows[-1]:
                return
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: a record is not whole: {type(error).__name__}: {error}") from None


def _places(file: Path) -> list[_Place]:
    try:
        if file.suffix == FRAMES:
            return _of_index(StepFile(file))
        return [
            _Place(row, record["task"]["id"])
            for row, record in enumerate(read_records(file))
            if _is_shown(record)
        ]
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: a record is not whole: {type(error).__name__}: {error}") from None


def _of_index(step_file: StepFile) -> list[_Place]:
    rows = step_file.rows
    failed = [k for k, bucket in enumerate(step_file.buckets) if bucket == FAILED]
    return [
        _Place(row, int(told["task"]))
        for row, told in enumerate(rows)
        if not told["hidden"] and told["policy_tokens"] and int(told["bucket"]) not in failed
    ]


def _is_shown(record: dict[str, Any]) -> bool:
    is_scored = "failed" not in record["outcome"]
    has_tokens = any(segment["origin"] == "policy" for segment in record["segments"])
    return is_scored and has_tokens and not (record["task"].get("meta") or {}).get(HIDDEN)
