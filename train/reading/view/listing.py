"""The table of trajectories; the files of their records are opened one at a time.

    step_N.index, NAME.jsonl ──read once──> LISTED rows ──trajectory_filter.py──> selection and order
    step_N.columns, NAME.jsonl ──one place──> the record of a row

A row takes LISTED.itemsize bytes, so that a million of them fit into memory; other data is read from the
trajectory's record.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from rocstar.engine.record.files import FRAMES, INDEX
from rocstar.engine.record.json_record import VERSION, RecordError
from rocstar.engine.record.step_file import (
    BRANCH_BYTES,
    FAMILY_CHARS,
    MOST_FAMILIES,
    NAME_BYTES,
    ROW,
    StepFile,
    seconds_of,
    task_number,
)
from rocstar.engine.types import HIDDEN, TRUNCATED, Origin, Span
from rocstar.train.reading.view.conversation import row_texts


class _TaskLine(msgspec.Struct):
    id: str
    source: str = ""
    meta: dict[str, Any] = {}


class _SegmentLine(msgspec.Struct):
    start: int
    end: int
    origin: str = ""


class _CallLine(msgspec.Struct):
    is_error: bool = False
    status: str = ""


class _TurnLine(msgspec.Struct):
    calls: list[_CallLine] = []


class _OutcomeLine(msgspec.Struct):
    reward: float | None = None
    is_correct: bool | None = None


class _TimesLine(msgspec.Struct):
    began: float
    ended_s: float
    turns: list[tuple[float, float, list[tuple[float, float] | None]]] = []


class _ForkLine(msgspec.Struct):
    start: int


class _RecordLine(msgspec.Struct):
    v: int
    task: _TaskLine
    outcome: _OutcomeLine
    decision: dict[str, Any]
    segments: list[_SegmentLine] = []
    turns: list[_TurnLine] = []
    step: int = 0
    sibling: int = 0
    policy_version: int = -1
    num_answers: int = 0
    finish_reason: str = ""
    penalty: dict[str, float] | None = None
    advantage: float | list[float] | None = None
    times: _TimesLine | None = None
    seed: list[Any] = []
    fork: _ForkLine | None = None


_Decoded = TypeVar("_Decoded")


def decode_json(data: bytes, kind: type[_Decoded], place: str) -> _Decoded:
    """Decode the JSON of a record. RecordError, which names the place, for invalid JSON."""
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # half a surrogate pair, which Python's JSON takes
            return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: not a trajectory record: {error}") from None


class LinesFile:
    """A file of JSON lines. RecordError names an invalid line; an incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.buckets: list[str] = []
        self.families: list[str] = []
        self._offsets: list[tuple[int, int]] = []
        rows, at = [], 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    try:
                        json.loads(line)
                    except (ValueError, RecursionError):
                        break
                place = f"{path}:{number}"
                record = decode_json(line, _RecordLine, place)
                if record.v != VERSION:
                    raise RecordError(f"{place}: not a trajectory record of version {VERSION}")
                rows.append(self._row(record))
                self._offsets.append((at, len(line)))
                at += len(line)
        self.rows: npt.NDArray[Any] = np.array(rows, ROW) if rows else np.zeros(0, ROW)

    def _row(self, record: _RecordLine) -> tuple[Any, ...]:
        bucket = str(record.decision.get("reason", ""))
        if bucket not in self.buckets:
            self.buckets.append(bucket)
        reward, penalty = record.outcome.reward, record.penalty or {}
        calls = [call for turn in record.turns for call in turn.calls]
        is_correct = record.outcome.is_correct
        own = 0 if record.fork is None else record.fork.start
        policy = sum(s.end - s.start for s in record.segments if s.origin == Origin.policy and s.start >= own)
        return (
            *(0, 0, 0, 0),
            *(record.step, record.sibling, record.policy_version),
            task_number(record.task.id),
            record.task.id.encode("utf-8", "replace")[:NAME_BYTES],
            record.segments[-1].end if record.segments else 0,
            policy,
            *(record.num_answers, len(record.turns)),
            sum(call.status != "not_executed" for call in calls),
            sum(call.is_error for call in calls),
            self.buckets.index(bucket),
            bool(record.decision.get("kept")),
            reward == 1.0 if is_correct is None else is_correct,
            record.finish_reason in TRUNCATED,
            bool(record.task.meta.get(HIDDEN)),
            _number(reward),
            _number(penalty.get("error")),
            _number(penalty.get("format")),
            _number(None if isinstance(record.advantage, list) else record.advantage),
            self._family(record.task.source),
            *_times(record.times),
            "".join(map(str, record.seed[3:])).encode()[:BRANCH_BYTES],
        )

    def _family(self, source: str) -> int:
        source = source[:FAMILY_CHARS]
        if source not in self.families:
            if len(self.families) == MOST_FAMILIES:
                return 0
            self.families.append(source)
        return self.families.index(source)

    def metadata(self, row: int) -> bytes:
        """Return the line, which has all texts of the record."""
        offset, size = self._offsets[row]
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a line."""
        return decode_json(self.metadata(row), dict[str, Any], f"{self._path}:{row + 1}")


def _times(times: _TimesLine | None) -> tuple[float, float, float, float]:
    """Return the times of a row, from `began` to `tools_s`."""
    if times is None:
        return (float("nan"),) * 4
    tools_s = sum(seconds_of([None if call is None else Span(*call) for call in calls]) for _, _, calls in times.turns)
    return times.began, times.ended_s, sum(end - start for start, end, _ in times.turns), tools_s


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


LISTED = np.dtype([
    ("file", "<u4"), ("row", "<u4"),
    ("step", "<i4"), ("sibling", "<i4"), ("branch", f"S{BRANCH_BYTES}"), ("version", "<i4"), ("task", "<u8"),
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
            num = end + end // SPARE
            try:
                self._table.resize(num)  # in place or by remapping pages, without a second copy
            except ValueError:  # a view of the rows exists
                table = np.zeros(num, LISTED)
                table[: len(self._table)] = self._table
                self._table = table
        self._table[start:end] = rows
        self._table["file"][start:end] = number
        self._read[path] = _FileRows(stamp, start, end, problem)

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
            "attempt": "~".join(filter(None, (str(row["sibling"]), row["branch"].decode("ascii", "replace")))),
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
        """Return the places of the trajectories of the same task and step, by sibling, each before its branches."""
        rows, row = self.rows, self.rows[at]
        places = np.flatnonzero((rows["task"] == row["task"]) & (rows["step"] == row["step"]))
        ordered: list[int] = places[np.lexsort((rows["branch"][places], rows["sibling"][places]))].tolist()
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
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size
