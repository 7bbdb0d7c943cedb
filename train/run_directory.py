"""A run's folder: claimed by one process, never written over by accident."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rocstar.train.config import ConfigError

Lock = IO[str]
METRICS, CONFIG, LOCK, MANIFEST = "metrics.jsonl", "config.toml", "lock", "manifest.json"
TRAJECTORIES = "trajectories"
"""The folder of the records, one `records_file` per step."""


def records_file(directory: Path, step: int) -> Path:
    """Where a run keeps the trajectory records of a step."""
    return directory / TRAJECTORIES / f"step_{step:06d}.jsonl"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def claim(directory: Path, *, resume: bool, mark: str = METRICS) -> Lock:
    """Create and lock the folder; the lock lives as long as the returned file.

    `mark` is what `resume` goes on with: the metrics of a run, or trajectories without a learner.

    Raises:
        ConfigError: another process holds it, it has a run and `resume` is false, it has none and `resume`
            is true, or it cannot be written. Nothing was created then.
    """
    path = directory / LOCK
    if path.exists():  # in use comes first: what else is wrong may change while the other process works
        _lock(path).close()
    _check(directory, resume=resume, mark=mark)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise ConfigError(
            f"output directory {str(directory)!r} cannot be written ({error.strerror}); "
            "choose another --output-dir"
        ) from None
    try:
        _check(directory, resume=resume, mark=mark)  # again: it may have been another's until now
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except BaseException:
        lock.close()
        raise
    return lock


def _check(directory: Path, *, resume: bool, mark: str) -> None:
    if not resume and any((directory / name).exists() for name in (METRICS, TRAJECTORIES)):
        raise ConfigError(
            f"output directory {str(directory)!r} holds a run; pass --resume to go on with it, "
            "or another --output-dir"
        )
    if resume and not (directory / mark).exists():
        raise ConfigError(f"output directory {str(directory)!r} holds no run to resume; leave --resume out")


def _lock(path: Path) -> Lock:
    lock = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"output directory {str(path.parent)!r} is in use by another process; wait for it, "
            "or choose another --output-dir"
        ) from None
    return lock


def discard_if_unused(directory: Path) -> None:
    """Take back a claimed folder in which nothing happened: it has no row of metrics and no records."""
    metrics = directory / METRICS
    if (metrics.exists() and metrics.stat().st_size) or any((directory / TRAJECTORIES).glob("*")):
        return
    for name in (METRICS, CONFIG, LOCK, MANIFEST):
        (directory / name).unlink(missing_ok=True)
    for path in (directory / TRAJECTORIES, directory / "logs", directory):
        with contextlib.suppress(OSError):  # not there, or somebody's files are in it
            path.rmdir()
