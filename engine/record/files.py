"""Files that hold records: which step a name is of, whether that step was judged, how one comes to be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

FRAMES: Final = ".columns"
"""A step's trajectories (step_file.py); with an INDEX beside it the step was judged."""
INDEX: Final = ".index"
LEARNED: Final = ".learned"
"""Suffix of the learner's token statistics of a step (learned.py), a file for each rank."""
LINES: Final = ".jsonl"
"""Records as JSON Lines (plain.py)."""


@contextmanager
def whole_file(path: Path, *, is_synced: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when it is complete; the old file stays until then.

    is_synced: also after a power failure. Without it, the call does not wait for the disk.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def is_sealed(path: Path) -> bool:
    """Whether the step of these frames was judged."""
    return path.with_suffix(INDEX).is_file()


def learned_files(path: Path) -> list[Path]:
    """Return the token statistics beside a step's frames, in the order of the ranks."""
    return sorted(path.parent.glob(f"{path.stem}.r*{LEARNED}"))


def record_files(folder: Path) -> dict[int, Path]:
    """The files of a folder that hold a finished step, by step; of two of one step the columns."""
    found: dict[int, Path] = {}
    for suffix in (LINES, FRAMES):
        for path in folder.glob(f"step_*{suffix}"):
            match = re.fullmatch(r"step_([0-9]+)", path.stem)
            if match and (suffix == LINES or is_sealed(path)):
                found[int(match[1])] = path
    return dict(sorted(found.items()))
