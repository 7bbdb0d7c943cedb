"""Targets of `--out`: checked before the work begins, never overwritten, never lost.

check -> hours of work -> write_or_rescue ── the target took it
                                          └─ it did not: a new temporary folder, and an error that names it
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from rocstar.train.recipe.errors import ConfigError

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
        raise _unwritable(out, error) from None
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
        raise _unwritable(out, error, option) from None


def _unwritable(out: Path, error: OSError, option: str = "--out") -> ConfigError:
    return ConfigError(f"{option} {str(out)!r} cannot be written ({error.strerror}); choose another {option}")


def write_or_rescue(folder: Path, write: Callable[[Path], None]) -> None:
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
