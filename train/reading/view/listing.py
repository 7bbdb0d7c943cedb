"""The table of trajectories; the files of their records are opened one at a time.

    step_N.index, NAME.jsonl ──read once──> LISTED rows ──trajectory_filter.py──> selection and order
    step_N.columns, NAME.jsonl ──one place──> the record of a row

A row takes LISTED.itemsize bytes, so that a million of them fit into memory; other data is read from the
trajectory's record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from rocstar.engine.record.files import FRAMES, INDEX
from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.step_file import MOST_FAMILIES, StepFile
from rocstar.train.reading.view.conversation import row_texts
from rocstar.train.reading.view.record_lines import LinesFile, decode_json

LISTED = np.dtype([
    ("file", "<u4"), ("row", "<u4"),
    ("step", "<i4"), ("sibling", "<i4"), ("version", "<i4"), ("task", "<u8"),
    ("tokens", "<u4"), ("policy_tokens", "<u4"), ("answers", "<u4"), ("turns", "<u4"),
    ("calls", "<u4"), ("errors", "<u4"),
    ("family", "u1"), ("seconds", "<f4"), ("tools_s", "<f4"),
    ("bucket", "u1"), ("kept", "?"), ("is_correct", "?"), ("is_truncated", "?"), ("hidden", "?"),
    ("reward", "<f8"), ("penalty_error", "<f8"), ("penalty_format", "<f8"), ("advantage", "<f8"),
])  # fmt: skip
"""A trajectory. `file`: an index into `Listing.files`; `row`: the index in the file; `task`: the number of
its name in `Listing.names`; NaN: a missing number."""
EMPTY: Final[npt.NDArray[Any]] = np.zeros(0, LISTED)

_RENAMED: Final = {
    "version": "policy_version",
    "answers": "num_answers",
    "calls": "tool_calls",
    "errors": "tool_errors",
}
"""Columns that an index calls otherwise."""
OPEN_FILES: Final = 4
"""Indexes that stay in memory."""
SPARE: Final = 16
"""The table grows by a sixteenth more than it must."""


OpenRecords = StepFile | LinesFile


class _Texts(msgspec.Struct):
    """The fields of a record's JSON that `row_texts` reads; the columns of tokens are skipped."""

    task: dict[str, Any] = {}
    turns: list[dict[str, Any]] = []
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class _FileRows:
    """The rows of a file in the table, for the file's `stamp`."""

    stamp: tuple[int, int]
    start: int
    end: int
    problem: str = ""
    """Why it could not be read, and so has none."""


class Listing:
    """The trajectories of some files, in the order of the files; `refresh` adds new rows.

    Not thread-safe. Invariant: `rows` has the rows of every readable file of `files`, and `problems` a
        sentence for each other file. A row is in memory once, also during a refresh; joining tables would
        copy it.
    """

    def __init__(self) -> None:
        self.rows = EMPTY
        """Do not keep it over a `refresh`."""
        self.files: list[Path] = []
        self.names: dict[int, str] = {}
        self.buckets: list[str] = []
        self.families: list[str] = []
        """The sources of tasks, at most MOST_FAMILIES; `family` of a row is an index."""
        self.problems: list[str] = []
        self.generation = 0
        """Grows with every change."""
        self.folder_changed: int | None = None
        """The date of the folder of `files` at the last `refresh`; None if unknown."""
        self._table: npt.NDArray[Any] = np.zeros(0, LISTED)
        """The buffer of `rows`, with spare capacity."""
        self._read: dict[Path, _FileRows] = {}
        self._opened = lru_cache(OPEN_FILES)(lambda path, stamp: open_records(path))
        """The indexes of the files with these stamps."""

    def refresh(self, files: Iterable[Path]) -> bool:
        """Read the new rows of these files, the complete list. Return True if there were any."""
        stamps = {path: stamp for path in files if (stamp := stamp_of(path)) is not None}
        known = [(path, found.stamp) for path, found in self._read.items()]
        if known == list(stamps.items()):
            return False
        old, before = EMPTY, self._read
        if known != list(stamps.items())[: len(known)]:  # files were replaced: rebuild the table
            old, self._table, self._read = self.rows, np.zeros(0, LISTED), {}
        self.rows, self.files = EMPTY, list(stamps)
        for number, (path, stamp) in enumerate(stamps.items()):
            if path in self._read:
                continue
            same = before.get(path)
            if same is not None and same.stamp == stamp:
                self._append(path, stamp, number, old[same.start : same.end], same.problem)
                continue
            try:
                self._append(path, stamp, number, self._listed(open_records(path)))
            except RecordError as error:
                self._append(path, stamp, number, EMPTY, str(error))
        self.rows = self._table[: self._end()]
        self.problems = [found.problem for found in self._read.values() if found.problem]
        self.generation += 1
        return True

    def _end(self) -> int:
        """The end of the last file's rows."""
        return next(reversed(self._read.values())).end if self._read else 0

    def _append(
        self, path: Path, stamp: tuple[int, int], number: int, rows: npt.NDArray[Any], problem: str = ""
    ) -> None:
        """Append the rows of a file."""
        start = self._end()
        end = start + len(rows)
        if end > len(self._table):
            self._make_room(end + end // SPARE)
        self._table[start:end] = rows
        self._table["file"][start:end] = number
        self._read[path] = _FileRows(stamp, start, end, problem)

    def _make_room(self, num: int) -> None:
        try:
            self._table.resize(num)  # in place or by remapping pages, without a second copy
        except ValueError:  # a view of the rows exists
            table = np.zeros(num, LISTED)
            table[: len(self._table)] = self._table
            self._table = table

    def _listed(self, records: OpenRecords) -> npt.NDArray[Any]:
        """The rows of a file; `file` is filled in later."""
        given = records.rows
        rows = np.zeros(len(given), LISTED)
        for column in LISTED.names or ():
            if column not in ("file", "row", "bucket", "family"):
                rows[column] = given[_RENAMED.get(column, column)]
        rows["row"] = np.arange(len(given), dtype="<u4")
        for name in records.buckets:
            if name not in self.buckets:
                self.buckets.append(name)
        codes = np.array([self.buckets.index(name) for name in records.buckets] or [0], "u1")
        rows["bucket"] = codes[given["bucket"]]
        for name in records.families:
            if name not in self.families and len(self.families) < MOST_FAMILIES:
                self.families.append(name)
        known = {name: number for number, name in enumerate(self.families)}
        codes = np.array([known.get(name, 0) for name in records.families] or [0], "u1")
        rows["family"] = codes[given["family"]]
        numbers, firsts = np.unique(given["task"], return_index=True)
        for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
            self.names.setdefault(number, given["name"][first].decode("utf-8", "replace"))
        return rows

    def opened(self, number: int) -> OpenRecords:
        """Open a file of `files`. RecordError if it is incomplete or missing."""
        path = self.files[number]
        stamp = stamp_of(path)
        if stamp is None:
            raise RecordError(f"{path}: is gone")
        return self._opened(path, stamp)

    def number_of(self, stem: str) -> int | None:
        """The number of the file of this name without its ending; None if there is none."""
        return next((n for n, path in enumerate(self.files) if path.stem == stem), None)

    def row_as_json(self, at: int) -> Mapping[str, Any]:
        """Return a row of the table by its place."""
        row = self.rows[at]
        verdict = "no reward" if np.isnan(row["reward"]) else "correct" if row["is_correct"] else "wrong"
        return {
            "file": self.files[row["file"]].stem,
            "row": int(row["row"]),
            "step": int(row["step"]),
            "sibling": int(row["sibling"]),
            "version": int(row["version"]),
            "task": format(int(row["task"]), "x"),
            "name": self.names[int(row["task"])],
            "verdict": verdict,
            "bucket": self.buckets[row["bucket"]],
            "family": self.families[row["family"]] if self.families else "",
            "truncated": bool(row["is_truncated"]),
            "hidden": bool(row["hidden"]),
            "kept": bool(row["kept"]),
            **{name: int(row[name]) for name in ("tokens", "policy_tokens", "turns", "calls", "errors")},
            **{
                name: None if np.isnan(row[name]) else float(row[name])
                for name in ("reward", "penalty_error", "penalty_format", "advantage", "seconds", "tools_s")
            },
        }

    def row_with_texts(self, at: int, *, reveal: bool) -> dict[str, Any]:
        """Return a row with the texts of its record, without them if it is withheld or damaged."""
        row = dict(self.row_as_json(at))
        if row["hidden"] and not reveal:
            return row
        with contextlib.suppress(RecordError):
            metadata = self.opened(int(self.rows[at]["file"])).metadata(row["row"])
            row |= row_texts(msgspec.structs.asdict(decode_json(metadata, _Texts, row["name"])))
        return row

    def group_at(self, at: int) -> list[int]:
        """Return the places of the trajectories of the same task and step, by sibling."""
        rows, row = self.rows, self.rows[at]
        places = np.flatnonzero((rows["task"] == row["task"]) & (rows["step"] == row["step"]))
        ordered: list[int] = places[np.argsort(rows["sibling"][places], kind="stable")].tolist()
        return ordered


def open_records(path: Path) -> OpenRecords:
    """Open a file. RecordError if it is incomplete or missing."""
    try:
        return StepFile(path) if path.suffix == FRAMES else LinesFile(path)
    except FileNotFoundError:
        raise RecordError(f"{path}: is gone") from None


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Return a stamp that changes when the file is written, or None if it is missing."""
    file = path.with_suffix(INDEX) if path.suffix == FRAMES else path
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
