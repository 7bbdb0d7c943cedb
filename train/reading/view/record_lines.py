"""Records as JSON Lines, with random access by an index that is built by reading them once.

An export and the attempts of an evaluation have no index file. Only the fields of the list are decoded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from rocstar.engine.record.json_record import VERSION, RecordError
from rocstar.engine.record.step_file import FAMILY_CHARS, MOST_FAMILIES, NAME_BYTES, ROW, seconds_of, task_number
from rocstar.engine.types import HIDDEN, TRUNCATED, Origin, Span


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
        policy = sum(s.end - s.start for s in record.segments if s.origin == Origin.policy)
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
