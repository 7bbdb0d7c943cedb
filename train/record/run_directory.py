"""A run's folder: claimed by one process, never written over by accident."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rocstar.engine.record.files import FRAMES, whole_file
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, recipe_of_model

Lock = IO[str]
METRICS, CONFIG, LOCK, MANIFEST = "metrics.jsonl", "config.toml", "lock", "manifest.json"
REPORT = "report.html"
CONSOLE_LOG = "logs/console.log"
TRAJECTORIES = "trajectories"
"""The folder of the records, one `records_file` per step with its index."""
COMPLETE = "COMPLETE"
"""Written last into a checkpoint: a folder without it is ignored."""
LOOKED_AT_S = (0.02, 0.1)
"""Before a folder is in use: `is_held`, which a viewer asks again and again, has the lock for a moment."""
_UP_TO = "# in force up to step "


def records_file(directory: Path, step: int) -> Path:
    """Where a run keeps the trajectory records of a step."""
    return directory / TRAJECTORIES / f"step_{step:06d}{FRAMES}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object; the file appears whole or not at all."""
    replace_text(path, json.dumps(content, indent=1) + "\n")


def cold_start_of(directory: Path) -> Path:
    """Where a run's checkpoints from inside the cold start lie, as those of a run do; gone with the first of
    its own."""
    return directory / "sft"


def complete_checkpoints(directory: Path) -> list[Path]:
    """All complete checkpoints of a run by step."""
    named = [p for p in (directory / "checkpoints").glob("step_*") if re.fullmatch(r"step_[0-9]+", p.name)]
    return sorted((p for p in named if (p / COMPLETE).is_file()), key=step_of)


def step_of(saved: Path) -> int:
    """The RL step after which a checkpoint was written."""
    return int(saved.name[len("step_") :])


def recipe_of(target: str, model: str | None, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run, a model's folder or a recipe, with the model that is meant.

    The model of a run is its last complete checkpoint.
    """
    folder, is_run = Path(target), (Path(target) / CONFIG).is_file()
    saved = complete_checkpoints(folder) if is_run and model is None else []
    if is_run and model is None and not saved:
        raise ConfigError(f"{target!r} has no complete checkpoint; let it train on, or pass --model")
    if saved or (folder / "config.json").is_file():
        recipe = recipe_of_model(saved[-1] if saved else folder, overrides)
    else:
        recipe = load_recipe(target, overrides, others=", a model's folder")
    if model is None:
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": model})})


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it holds the former text or the new one at any moment, a power cut included."""
    with whole_file(path) as file:
        file.write(text.encode())


def keep_config(directory: Path, text: str, *, step: int) -> Path | None:
    """Make `text` the run's recipe from behind `step` on; the former one stays as config.N.toml.

    Returns where the former one is now; None if there was none, or if it was the same.
    """
    path = directory / CONFIG
    former = path.read_text(encoding="utf-8") if path.exists() else None
    if former == text:
        return None
    kept = None
    if former is not None:
        number = len(_former_configs(directory)) + 1
        kept = directory / f"config.{number}.toml"
        replace_text(kept, f"{_UP_TO}{step}\n{former}")
    replace_text(path, text)
    return kept


def write_config(directory: Path, text: str, *, is_started: bool) -> None:
    """Write the recipe of a folder without a learner. ConfigError if it was started with another one."""
    path = directory / CONFIG
    # The values are compared: the formatting may differ between versions.
    if is_started and tomllib.loads(path.read_text(encoding="utf-8")) != tomllib.loads(text):
        raise ConfigError(
            f"{str(directory)!r} was started with another recipe, model or options (see its {CONFIG}). Use "
            "those, or pass another --out"
        )
    path.write_text(text, encoding="utf-8")


def config_of(directory: Path, step: int) -> Path:
    """The recipe that was in force when a step was made: that of the last resume may have changed since."""
    for path in _former_configs(directory):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        if first.startswith(_UP_TO) and step <= int(first.removeprefix(_UP_TO)):
            return path
    return directory / CONFIG


def _former_configs(directory: Path) -> list[Path]:
    named = [p for p in directory.glob("config.*.toml") if re.fullmatch(r"config\.[0-9]+\.toml", p.name)]
    return sorted(named, key=lambda path: int(path.name.split(".")[1]))


def claim(directory: Path, *, resume: bool, mark: str = METRICS) -> Lock:
    """Create and lock the folder; the lock lives as long as the returned file.

    `mark` is what `resume` goes on with: the metrics of a run, or trajectories without a learner.

    Raises:
        ConfigError: another process holds it, it has a run and `resume` is false, it has none and `resume`
            is true, or it cannot be written. Nothing was created then.
    """
    check_claim(directory, resume=resume, mark=mark)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _lock(directory / LOCK)
    except OSError as error:
        raise ConfigError(_unwritable(directory, error.strerror)) from None
    try:
        _check(directory, resume=resume, mark=mark)  # again: it may have been another's until now
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except BaseException:  # stopped, too: the directory would stay locked
        lock.close()
        raise
    return lock


def is_held(directory: Path) -> bool:
    """Return True if a process works on the run; False without a lock file."""
    try:
        with (directory / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_claim(directory: Path, *, resume: bool, mark: str = METRICS) -> None:
    """Raise ConfigError for what `claim` would refuse, without writing."""
    path = directory / LOCK
    if path.exists():  # in use comes first: what else is wrong may change while the other process works
        try:
            _lock(path).close()
        except OSError as error:
            raise ConfigError(_unwritable(directory, error.strerror)) from None
    _check(directory, resume=resume, mark=mark)
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(_unwritable(directory, f"{str(there)!r} is a file"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(_unwritable(directory, f"{str(there)!r} is read-only or another user's"))


def _unwritable(directory: Path, reason: str | None) -> str:
    return f"output directory {str(directory)!r} cannot be written ({reason}); choose another folder"


def _check(directory: Path, *, resume: bool, mark: str) -> None:
    if not resume and any((directory / name).exists() for name in (METRICS, TRAJECTORIES)):
        raise ConfigError(
            f"output directory {str(directory)!r} holds a run; pass --resume to go on with it, "
            "or choose another folder"
        )
    if resume and not (directory / mark).exists():
        raise ConfigError(f"output directory {str(directory)!r} holds no run to resume; leave --resume out")


def _lock(path: Path) -> Lock:
    lock = path.open("a+", encoding="utf-8")
    for wait_s in (*LOOKED_AT_S, None):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait_s is not None:
                time.sleep(wait_s)
            continue
        return lock
    lock.close()
    raise ConfigError(
        f"output directory {str(path.parent)!r} is in use by another process; wait for it, or choose another folder"
    )


def discard_if_unused(directory: Path) -> None:
    """Take back a claimed folder in which nothing happened: it has no row of metrics and no records."""
    metrics = directory / METRICS
    if (metrics.exists() and metrics.stat().st_size) or any((directory / TRAJECTORIES).glob("*")):
        return
    names = (METRICS, CONFIG, LOCK, MANIFEST, CONSOLE_LOG)
    for path in (*_former_configs(directory), *(directory / name for name in names)):
        with contextlib.suppress(NotADirectoryError):  # a file of the user is called `logs`
            path.unlink(missing_ok=True)
    for path in (directory / TRAJECTORIES, directory / "logs", directory):
        with contextlib.suppress(OSError):  # missing, or it has files of the user
            path.rmdir()
