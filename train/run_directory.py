"""A run's folder: claimed by one process, never written over by accident."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from rocstar.train.config import ConfigError

Lock = IO[str]


def claim(directory: Path, *, resume: bool) -> Lock:
    """Create and lock the folder; the lock lives as long as the returned file.

    ConfigError if another process holds it, if it has a run and `resume` is false, or if it has none and
    `resume` is true.
    """
    has_run = (directory / "metrics.jsonl").exists()
    if has_run and not resume:
        raise ConfigError(
            f"output directory {str(directory)!r} holds a run; pass --resume to go on with it, "
            "or another --output-dir"
        )
    if resume and not has_run:
        raise ConfigError(f"output directory {str(directory)!r} holds no run to resume; leave --resume out")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output directory {str(directory)!r} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"output directory {str(directory)!r} is in use by another process; wait for it or choose another"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
