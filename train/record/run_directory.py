"""A run's folder, claimed by one process, and the targets of `--out`: checked first, never written over."""

import contextlib
import fcntl
import json
import os
import re
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rocstar.engine.record.files import FRAMES, whole_file
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, recipe_of_model

PROBE_BYTES = 1 << 16
"""Bytes that are written and synced to check a folder: only this detects a full disk."""


def check_file(out: Path, *, force: bool, option: str = "--out", instead: str = "") -> None:
    """Check that a file can be written at `out`; with `force` also over an existing one.

    Args:
        out: the file.
        force: replace it.
        option: its name in messages.
        instead: the alternative in the message for a folder.

    Raises:
        ConfigError: it exists, or it cannot be written.
    """
    if out.is_dir():
        raise ConfigError(f"{option} {str(out)!r} is a folder; give a file{instead}")
    folder = out.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {str(out)!r} is in no folder that exists; make {str(folder)!r} first")
    if out.exists() and not out.is_file():
        raise ConfigError(f"{option} {str(out)!r} is a device or a pipe; give a regular file")
    if out.exists() and not force:
        raise ConfigError(
            f"{option} {str(out)!r} exists; take another file, or pass --force: it is replaced when the "
            "new one is whole"
        )
    _probe(out, folder, option)


def check_folder(out: Path) -> None:
    """Check that `out` is a new or empty folder that can be written. ConfigError if not."""
    _check_unused(out)
    there = out.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"--out {str(out)!r} cannot be made: {str(there)!r} is a file; choose another --out")
    _probe(out, there)


def _check_unused(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; give a folder that is new or empty")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} is not empty, and nothing is written over; give a new folder")


def make_folder(out: Path) -> None:
    """Create the folder `out`, which must be new or empty, and check that it can be written.

    Raises:
        ConfigError: it is in use, or cannot be written; nothing was created then.
    """
    _check_unused(out)
    was_there = out.is_dir()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _target_error(out, error) from None
    try:
        _probe(out, out)
    except ConfigError:
        if not was_there:
            out.rmdir()
        raise


def _probe(out: Path, folder: Path, option: str = "--out") -> None:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rocstar-") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _target_error(out, error, option) from None


def _target_error(out: Path, error: OSError, option: str = "--out") -> ConfigError:
    return ConfigError(f"{option} {str(out)!r} cannot be written ({error.strerror}); choose another {option}")


def write_or_rescue(folder: Path, write: Callable[[Path], object]) -> None:
    """Call `write(folder)`; if it fails, call it with a new temporary folder.

    Raises:
        ConfigError: the folder could not be written; the message says where the results are.
    """
    try:
        write(folder)
    except OSError as error:
        rescue = Path(tempfile.mkdtemp(prefix="rocstar-"))
        write(rescue)
        raise ConfigError(
            f"--out: {str(folder)!r} could not be written when the work was done ({error.strerror}); "
            f"the results are in {str(rescue)!r}"
        ) from None


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
