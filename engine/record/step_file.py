"""The records of one step: a file of frames that grows as groups end, and an index written after judging.

    step_000001.columns   <8s magic> <u32 bytes> about (JSON), then frames (columns.py) as they came
    step_000001.index     <8s magic> <u32 bytes> about (JSON), then a ROW for each trajectory with its
    position and
                          the facts that a list shows, in the order of decisions; then per-token
                          advantages, as float64; appears complete
    step_000001.r000.learned    token statistics of the learner's rank 0 (learned.py); one file for each rank

So a killed process leaves every group that was written, and one of a million trajectories is opened by one
index lookup and one read. A file without an index is a journal: only the run that wrote it reads it. Frames
without a row belong to a group that was rolled out again, or learned in another step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.record.columns import HEAD, Framed, FrameError, decode_frame, frame_json, frame_key, frame_size
from rocstar.engine.record.compression import MAX_PART_BYTES
from rocstar.engine.record.files import INDEX, whole_file
from rocstar.engine.record.json_record import RecordError, Verdict, record_of
from rocstar.engine.types import HIDDEN, Scored, Span, Task, Trajectory, TrajectoryTimes

VERSION = 2
INDEX_VERSION = 4
"""Version 2 had no families and no times, version 3 no branches; both are still read."""
_FRAMES_MAGIC, _INDEX_MAGIC = b"rcsFram\n", b"rcsIndx\n"
STEP_HEAD = struct.Struct("<8sI")
MAX_ABOUT_BYTES = 1 << 20
NAME_BYTES, BRANCH_BYTES = 40, 24

_ROW_OF_2: Final = [
    ("offset", "<u8"), ("size", "<u4"),
    ("advantages", "<u4"), ("first_advantage", "<u8"),
    ("step", "<i8"), ("sibling", "<i8"), ("policy_version", "<i8"),
    ("task", "<u8"), ("name", f"S{NAME_BYTES}"),
    ("tokens", "<u4"), ("policy_tokens", "<u4"), ("num_answers", "<u4"), ("turns", "<u4"),
    ("tool_calls", "<u4"), ("tool_errors", "<u4"),
    ("bucket", "u1"), ("kept", "?"), ("is_correct", "?"), ("is_truncated", "?"), ("hidden", "?"),
    ("reward", "<f8"), ("penalty_error", "<f8"), ("penalty_format", "<f8"), ("advantage", "<f8"),
]  # fmt: skip
_ROW_OF_3: Final = [
    *_ROW_OF_2,
    ("family", "<u2"), ("began", "<f8"), ("seconds", "<f4"), ("writing_s", "<f4"), ("tools_s", "<f4"),
]  # fmt: skip
ROW = np.dtype([*_ROW_OF_3, ("branch", f"S{BRANCH_BYTES}")])
"""One trajectory. `task` is `task_number` of its id, of which `name` has the first bytes; a number that is
not there (the reward of a trajectory that failed) is NaN. `advantages`: so many there are where each token
has its own, from `first_advantage` on; 0 where `advantage` is that of all. `family` is a place in
`StepFile.families`. `began` is in seconds since 1970; of its `seconds` the policy was asked for `writing_s`
and its tools for `tools_s`; NaN where no times are known. `branch` is that of its key, or the beginning of it."""
_ROWS: Final = {2: np.dtype(_ROW_OF_2), 3: np.dtype(_ROW_OF_3), INDEX_VERSION: ROW}
MOST_FAMILIES: Final = 256
"""Tasks of a step that come from more places than these have no family in the index."""
FAMILY_CHARS: Final = 100


def task_number(task_id: str) -> int:
    """Bytes of a task's id in the index."""
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlace:
    """The position of a frame."""

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """The frame's bytes. RecordError if the file ends before."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                frame = file.read(self.size)
        except OverflowError:
            raise RecordError(f"{self.path}: there is no byte {self.offset}") from None
        if len(frame) != self.size:
            raise RecordError(f"{self.path}: ends inside the trajectory at byte {self.offset}")
        return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A future row: a trajectory whose frame is written, with the decision on it."""

    trajectory: Trajectory
    verdict: Verdict
    num_answers: int
    place: FramePlace


class FrameFile:
    """The frames of a step, open for appending by one thread.

    Invariant: `end` is the end of the last complete frame and of the file.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Go on with the file at `path` if it is about the same; begin it anew, without its index, if not."""
        self.path, self._about = path, dict(about)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.places: list[FramePlace] = []
        """Positions of the complete frames of an existing file."""
        begin = frames_offset(path, self._about)
        if begin is None:
            path.with_suffix(INDEX).unlink(missing_ok=True)
        self._file: BinaryIO = path.open("w+b" if begin is None else "r+b")
        try:
            self._settle(begin)
        except OSError:
            with contextlib.suppress(OSError):  # the buffer cannot be written either
                self._file.close()
            raise

    def _settle(self, begin: int | None) -> None:
        """Write the head of a new file, or find the end of the last whole frame."""
        if begin is None:
            self._file.write(_head(_FRAMES_MAGIC, self._about))
            self.end = self._file.tell()
        else:
            self.places = list(complete_frames(self.path))
            while self.places and _is_branch(self.places[-1]):  # a root ends its attempt, which was torn
                self.places.pop()
            self.end = self.places[-1].offset + self.places[-1].size if self.places else begin
        self._file.seek(self.end)
        self._file.truncate()
        self._file.flush()

    def __enter__(self) -> FrameFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, frames: Sequence[bytes]) -> list[FramePlace]:
        """Where the frames lie, now that they do; OSError leaves none of them."""
        places, at = [], self.end
        for frame in frames:
            places.append(FramePlace(path=self.path, offset=at, size=len(frame)))
            at += len(frame)
        try:
            self._file.write(b"".join(frames))
            self._file.flush()
        except OSError:
            self._file.seek(self.end)
            self._file.truncate()
            raise
        self.end = at
        return places

    def seal(self, judged: Sequence[Judged], *, stage: str) -> None:
        """Write the index of a judged step. Frames in another file are copied here first."""
        local = [one.place for one in judged]
        abroad = [k for k, place in enumerate(local) if place.path != self.path]
        abroad.sort(key=lambda k: judged[k].trajectory.fork is None)
        for k, place in zip(abroad, self.append([local[k].read() for k in abroad]), strict=True):
            local[k] = place
        rows = np.zeros(len(judged), ROW)
        buckets = sorted({one.verdict.bucket for one in judged})
        sources = sorted({one.trajectory.task.source[:FAMILY_CHARS] for one in judged})
        families = {name: k for k, name in enumerate(sources if len(sources) <= MOST_FAMILIES else [""])}
        advantages: list[npt.NDArray[Any]] = []
        num_advantages = 0
        for k, one in enumerate(judged):
            given, own = one.verdict.advantage, np.zeros(0, "<f8")
            if not isinstance(given, float | int | None):
                own, given = np.asarray(given, dtype="<f8"), None
            rows[k] = (
                local[k].offset,
                local[k].size,
                len(own),
                num_advantages,
                *_facts(one, buckets.index(one.verdict.bucket)),
                _number(given),
                families.get(one.trajectory.task.source[:FAMILY_CHARS], 0),
                *_times(one.trajectory.times),
                one.trajectory.key.branch.encode()[:BRANCH_BYTES],
            )
            advantages.append(own)
            num_advantages += len(own)
        os.fsync(self._file.fileno())
        about = {
            "stage": stage,
            "buckets": buckets,
            "families": list(families),
            "rows": len(rows),
            "advantages": num_advantages,
        }
        with whole_file(self.path.with_suffix(INDEX)) as file:
            file.write(_head(_INDEX_MAGIC, about, INDEX_VERSION))
            file.writelines(column.tobytes() for column in (rows, *advantages))


def _facts(one: Judged, bucket: int) -> tuple[Any, ...]:
    """Return the fields of a row from `step` to `penalty_format`."""
    t, verdict = one.trajectory, one.verdict
    scored = t.outcome if isinstance(t.outcome, Scored) else None
    return (
        t.key.step,
        t.key.sibling,
        max((span.version for span in t.version_spans), default=-1),
        task_number(t.task.id),
        t.task.id.encode("utf-8", "replace")[:NAME_BYTES],
        len(t.ids),
        t.num_policy_tokens,
        one.num_answers,
        len(t.turns),
        len(t.results),
        sum(result.is_error for result in t.results),
        bucket,
        verdict.bucket == "kept",
        scored is not None and scored.is_correct,
        t.is_truncated,
        bool(t.task.meta.get(HIDDEN)),
        _number(scored.reward if scored else None),
        _number(verdict.penalty_error),
        _number(verdict.penalty_format),
    )


def _times(times: TrajectoryTimes | None) -> tuple[float, float, float, float]:
    """Return the fields of a row from `began` to `tools_s`."""
    if times is None:
        return math.nan, math.nan, math.nan, math.nan
    writing_s = math.fsum(turn.written.seconds for turn in times.turns)
    tools_s = math.fsum(seconds_of(turn.calls) for turn in times.turns)
    return times.began, times.ended_s, writing_s, tools_s


def seconds_of(calls: Sequence[Span | None]) -> float:
    """Seconds in which some of a turn's calls ran."""
    known = [call for call in calls if call is not None]
    if not known:
        return 0.0
    return max(call.end_s for call in known) - min(call.start_s for call in known)


class StepFile:
    """The records of a step that was judged; `rows` has a ROW for each trajectory, in the verdicts' order.

    RecordError for files that are not whole, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        index = path.with_suffix(INDEX)
        try:
            with index.open("rb") as file:
                about = read_head(file, index, _INDEX_MAGIC, tuple(_ROWS))
                _check_index(about, index)
                self.rows: npt.NDArray[Any] = _read_rows(file, about)
                self._advantages: npt.NDArray[Any] = np.fromfile(file, "<f8", about["advantages"])
        except FileNotFoundError:
            raise RecordError(f"{path}: has no index: the step was not finished") from None
        if (len(self.rows), len(self._advantages)) != (about["rows"], about["advantages"]):
            raise RecordError(f"{index}: {len(self.rows)} rows, {about['rows']} were written")
        _check_rows(self.rows, about, index)
        self.stage: str = about["stage"]
        self.buckets: list[str] = about["buckets"]
        self.families: list[str] = about.get("families") or [""]
        """Where the tasks come from; "" where an index does not say."""

    def __len__(self) -> int:
        return len(self.rows)

    def trajectory(self, row: int, task: Task | None = None) -> Trajectory:
        """The trajectory of a row; `task` as for `decode_frame`."""
        return self._decoded(row, task).trajectory

    def trajectories(self, tasks: Mapping[str, Task]) -> Iterator[Trajectory]:
        """All of them, in order, with these tasks by id. KeyError for one of another task."""
        known = {task_number(name): task for name, task in tasks.items()}
        for row, number in enumerate(self.rows["task"].tolist()):
            yield self.trajectory(row, known[number])

    def verdict(self, row: int) -> Verdict:
        """The decision on it."""
        told = self.rows[row]
        advantage: Any = _known(told["advantage"])
        if told["advantages"]:
            first = int(told["first_advantage"])
            advantage = self._advantages[first : first + int(told["advantages"])].tolist()
        return Verdict(
            bucket=self.buckets[told["bucket"]],
            penalty_error=_known(told["penalty_error"]),
            penalty_format=_known(told["penalty_format"]),
            advantage=advantage,
        )

    def record(self, row: int) -> dict[str, Any]:
        """The row as a JSON record (plain.py)."""
        trajectory, texts = self._decoded(row, None)
        return record_of(
            trajectory,
            self.verdict(row),
            stage=self.stage,
            num_answers=int(self.rows[row]["num_answers"]),
            texts=texts,
        )

    def metadata(self, row: int) -> bytes:
        """Return the texts of a row and all else but its tokens, as ASCII JSON; cheaper than `record`."""
        try:
            return frame_json(self._frame(row))
        except FrameError as error:
            raise RecordError(f"{self.path}: trajectory {row}: {error}") from None

    def find(self, task_id: str, sibling: int) -> int | None:
        """The row of an attempt, not of its branches; None if it is not here."""
        of_task = self.rows["task"] == task_number(task_id)
        hits = of_task & (self.rows["sibling"] == sibling) & (self.rows["branch"] == b"")
        found = np.flatnonzero(hits)
        return int(found[0]) if len(found) else None

    def _decoded(self, row: int, task: Task | None) -> Framed:
        try:
            return decode_frame(self._frame(row), task)
        except FrameError as error:
            raise RecordError(f"{self.path}: trajectory {row}: {error}") from None

    def _frame(self, row: int) -> bytes:
        told = self.rows[row]
        place = FramePlace(path=self.path, offset=int(told["offset"]), size=int(told["size"]))
        try:
            return place.read()
        except FileNotFoundError:
            raise RecordError(f"{self.path}: is not there, its index is") from None


def _is_branch(place: FramePlace) -> bool:
    try:
        return bool(frame_key(place.read()).branch)
    except FrameError:
        return False


def complete_frames(path: Path, about: Mapping[str, Any] | None = None) -> Iterator[FramePlace]:
    """Yield the frames of a file up to the first incomplete one; none without a file of frames. With `about`,
    none of a file with another."""
    begin = frames_offset(path, about)
    if begin is None:
        return
    at, end = begin, path.stat().st_size
    with path.open("rb") as file:
        while True:
            file.seek(at)
            head = file.read(HEAD.size)
            try:
                size = frame_size(head)
            except FrameError:
                return
            if at + size > end:
                return
            yield FramePlace(path=path, offset=at, size=size)
            at += size


def frames_offset(path: Path, about: Mapping[str, Any] | None = None) -> int | None:
    """Return where the frames of a file begin; None if it has none, or another `about`."""
    try:
        with path.open("rb") as file:
            found = read_head(file, path, _FRAMES_MAGIC)
            return file.tell() if about is None or found == {"v": VERSION, **about} else None
    except (FileNotFoundError, RecordError):
        return None


def _check_index(about: Mapping[str, Any], path: Path) -> None:
    """RecordError for an index that claims more than its file holds, or is none of ours."""
    rows, advantages = about.get("rows"), about.get("advantages")
    if type(rows) is not int or type(advantages) is not int or rows < 0 or advantages < 0:
        raise RecordError(f"{path}: its head has no numbers of rows and advantages")
    row_bytes = _ROWS[about["v"]].itemsize
    if rows * row_bytes + advantages * 8 > path.stat().st_size:
        raise RecordError(f"{path}: claims {rows} rows, more than it holds")
    names = [about.get("buckets"), about.get("families", [])]
    if not isinstance(about.get("stage"), str) or not all(
        isinstance(one, list) and all(isinstance(name, str) for name in one) for one in names
    ):
        raise RecordError(f"{path}: its head has no stage, buckets or families")


def _check_rows(rows: npt.NDArray[Any], about: Mapping[str, Any], path: Path) -> None:
    """RecordError for rows that name a bucket, a frame or advantages beyond what there is."""
    if not len(rows):
        return
    own = rows[rows["advantages"] > 0]
    left = about["advantages"] - np.minimum(own["first_advantage"], about["advantages"]).astype(np.int64)
    if (
        int(rows["bucket"].max()) >= len(about["buckets"])
        or int(rows["size"].max()) > MAX_PART_BYTES
        or bool((own["advantages"] > left).any())
    ):
        raise RecordError(f"{path}: a row names a bucket, a frame or advantages that are not there")


def _read_rows(file: BinaryIO, about: Mapping[str, Any]) -> npt.NDArray[Any]:
    old = np.fromfile(file, _ROWS[about["v"]], about["rows"])
    if about["v"] == INDEX_VERSION:
        return old
    rows = np.zeros(len(old), ROW)
    for column in old.dtype.names or ():
        rows[column] = old[column]
    if about["v"] == 2:
        for column in ("began", "seconds", "writing_s", "tools_s"):
            rows[column] = math.nan
    return rows


def _head(magic: bytes, about: Mapping[str, Any], version: int = VERSION) -> bytes:
    told = json.dumps({"v": version, **about}, separators=(",", ":")).encode("ascii")
    return STEP_HEAD.pack(magic, len(told)) + told


def read_head(
    file: BinaryIO, path: Path, magic: bytes, versions: Sequence[int] = (VERSION,), what: str = "records"
) -> dict[str, Any]:
    """Return the JSON in the head of a file. Raises RecordError for another magic or version."""
    head = file.read(STEP_HEAD.size)
    if len(head) != STEP_HEAD.size or not head.startswith(magic):
        raise RecordError(f"{path}: not {what} of version {versions[0]}")
    size = STEP_HEAD.unpack(head)[1]
    try:
        about = json.loads(file.read(min(size, MAX_ABOUT_BYTES)))
    except (ValueError, RecursionError):
        raise RecordError(f"{path}: its head is torn") from None
    if not isinstance(about, dict) or about.get("v") not in versions:
        raise RecordError(f"{path}: not {what} of version {versions[0]}")
    return about


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _known(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)
