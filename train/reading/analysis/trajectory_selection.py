"""Select the trajectories to analyse, and the weights: of a run's step, or of one file of records.

    positions of all scored ones, by task ──shuffled──> one of each task in turn, up to the limit
                                                        ──> read one by one, in the order of the file

Memory holds only an index entry of each trajectory. Trajectories of hidden tasks, and failed ones, are
excluded.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import FRAMES, LINES, record_files
from rocstar.engine.record.json_record import RecordError, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import HIDDEN, Trajectory
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import CONFIG, TRAJECTORIES, complete_checkpoints, config_of, step_of

FAILED = "failed"
"""The bucket of unscored trajectories (train/groups/selection.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSource:
    """Records, and the weights to analyse them with."""

    file: Path
    step: int | None
    """The step of a run, or None for a file."""
    checkpoint: str
    """A directory or hub name."""
    written_before: int | None
    """Updates between the weights that wrote the records and these; negative if these are older. None:
    unknown."""
    temperature: float
    threads: int
    """As `run.threads`: 0 = the physical cores."""


def resolve_source(
    run: Path, *, step: int | None, checkpoint: str | None, temperature: float | None
) -> AnalysisSource:
    """Resolve a run directory or a file of records. ConfigError if parts are missing."""
    if run.is_file():
        if step is not None:
            raise ConfigError(f"--step {step} needs a run directory, and {str(run)!r} is a file")
        return _of_file(run, checkpoint, temperature)
    files = record_files(run / TRAJECTORIES)
    if not files:
        raise ConfigError(
            f"{str(run)!r} has no trajectories of a finished step. Pass a run directory or a file of records."
        )
    if step is None:
        step = max(files)
    if step not in files:
        steps = sorted(files)
        listed = ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]} to {steps[-1]}"
        raise ConfigError(f"{str(run)!r} has no records of step {step}; it has steps {listed}")
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
    """Resolve a file. The attempts of a run's evaluation at step N belong to its checkpoint N."""
    if file.suffix not in (LINES, FRAMES):
        raise ConfigError(f"{str(file)!r} is not a file of records: these end in {LINES} or {FRAMES}")
    folder = file.parent.parent
    is_attempts = file.parent.name == "attempts" and folder.parent.name == "evaluations"
    apart, recipe = None, None
    if is_attempts and (folder.parent.parent / CONFIG).is_file():
        run = folder.parent.parent
        recipe = load_recipe(run / CONFIG)
        if checkpoint is None and folder.name.startswith("step_") and folder.name[5:].isdecimal():
            checkpoint, apart = _nearest(run, int(folder.name[5:]))
    if checkpoint is None:
        raise ConfigError(f"the weights that wrote {str(file)!r} are unknown. Pass --checkpoint DIRECTORY.")
    sets = recipe.eval if recipe else ()
    own = next((config.temperature for config in sets if config.label == file.stem), None)
    return AnalysisSource(
        file=file,
        step=None,
        checkpoint=checkpoint,
        written_before=apart,
        temperature=_temperature(temperature, own),
        threads=recipe.run.threads if recipe else 0,
    )


def _temperature(asked: float | None, own: float | None) -> float:
    chosen = asked if asked is not None else 1.0 if own is None else own
    if not 0 < chosen < float("inf"):
        raise ConfigError(f"a temperature of {chosen:g} is invalid. Pass --temperature with a finite number above 0.")
    return chosen


def _nearest(run: Path, step: int) -> tuple[str, int]:
    """Return the complete checkpoint nearest to the weights after a step, and the updates between them."""
    found = complete_checkpoints(run)
    if not found:
        raise ConfigError(f"{str(run)!r} has no complete checkpoint; pass --checkpoint DIRECTORY")
    nearest = min(found, key=lambda path: (abs(step_of(path) - step), step_of(path)))
    return str(nearest), step_of(nearest) - step


def select_trajectories(file: Path, number: int, *, seed: int) -> list[int]:
    """Return rows of at most `number` trajectories of a file, in order: of as many tasks as possible,
    about equally many of each. ConfigError if there are none, or the file is unreadable."""
    places = _places(file)
    if not places:
        raise ConfigError(f"{str(file)!r} has no scored trajectory that may be shown; failed ones are not analysed")
    rng, by_task = random.Random(f"analyse|{seed}"), dict[Any, list[int]]()
    for row, task in places:
        by_task.setdefault(task, []).append(row)
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
    """Yield the trajectories of these rows. ConfigError if one is unreadable."""
    with _checked(file):
        if file.suffix == FRAMES:
            yield from map(StepFile(file).trajectory, rows)
            return
        wanted = set(rows)
        for row, record in enumerate(read_records(file)):
            if row in wanted:
                yield from_record(record)
            if row >= rows[-1]:
                return


def _places(file: Path) -> list[tuple[int, Any]]:
    """Return the row of each trajectory that may be shown, and what identifies its task in the file."""
    with _checked(file):
        if file.suffix == FRAMES:
            step_file = StepFile(file)
            failed = [k for k, bucket in enumerate(step_file.buckets) if bucket == FAILED]
            return [
                (row, int(entry["task"]))
                for row, entry in enumerate(step_file.rows)
                if not entry["hidden"] and entry["policy_tokens"] and int(entry["bucket"]) not in failed
            ]
        return [(row, record["task"]["id"]) for row, record in enumerate(read_records(file)) if _is_shown(record)]


@contextlib.contextmanager
def _checked(file: Path) -> Iterator[None]:
    """Turn the errors of an unreadable file, or of a record that is not whole, into ConfigError."""
    try:
        yield
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: a record is not whole: {type(error).__name__}: {error}") from None


def _is_shown(record: dict[str, Any]) -> bool:
    is_scored = "failed" not in record["outcome"]
    has_tokens = any(segment["origin"] == "policy" for segment in record["segments"])
    return is_scored and has_tokens and not (record["task"].get("meta") or {}).get(HIDDEN)
