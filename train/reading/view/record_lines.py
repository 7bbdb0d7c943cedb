"""Records as JSON Lines, with random access by an index that is built by reading them once.

An export and the attempts of an evaluation have no index file. Only the fields of the list are decoded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from rocstar.engine.record.json_record import VERSION, RecordError, decode_times
from rocstar.engine.record.learned import LearnedTokens
from rocstar.engine.record.step_file import (
    FAMILY_CHARS,
    MOST_FAMILIES,
    NAME_BYTES,
    ROW,
    seconds_of,
    task_number,
)
from rocstar.engine.types import HIDDEN, TRUNCATED, Origin, Span, TrajectoryTimes


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


class _PenaltyLine(msgspec.Struct):
    error: float
    format: float


class _DecisionLine(msgspec.Struct):
    kept: bool = False
    reason: str = ""


class _TimesLine(msgspec.Struct):
    began: float
    ended_s: float
    turns: list[tuple[float, float, list[tuple[float, float] | None]]] = []


class _RecordLine(msgspec.Struct):
    v: int
    task: _TaskLine
    outcome: _OutcomeLine
    decision: _DecisionLine
    segments: list[_SegmentLine] = []
    turns: list[_TurnLine] = []
    step: int = 0
    sibling: int = 0
    policy_version: int = -1
    num_answers: int = 0
    finish_reason: str = ""
    penalty: _PenaltyLine | None = None
    advantage: float | list[float] | None = None
    times: _TimesLine | None = None


_DECODER: Final = msgspec.json.Decoder(_RecordLine)


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
                if not line.endswith(b"\n") and not _is_whole(line):
                    break
                rows.append(self._row(_record(line, f"{path}:{number}")))
                self._offsets.append((at, len(line)))
                at += len(line)
        self.rows: npt.NDArray[Any] = np.array(rows, ROW) if rows else np.zeros(0, ROW)

    def _row(self, told: _RecordLine) -> tuple[Any, ...]:
        if told.decision.reason not in self.buckets:
            self.buckets.append(told.decision.reason)
        reward, penalty = told.outcome.reward, told.penalty
        calls = [call for turn in told.turns for call in turn.calls]
        is_correct = told.outcome.is_correct
        policy = sum(s.end - s.start for s in told.segments if s.origin == Origin.policy)
        return (
            *(0, 0, 0, 0),
            *(told.step, told.sibling, told.policy_version),
            task_number(told.task.id),
            told.task.id.encode("utf-8", "replace")[:NAME_BYTES],
            told.segments[-1].end if told.segments else 0,
            policy,
            *(told.num_answers, len(told.turns)),
            sum(call.status != "not_executed" for call in calls),
            sum(call.is_error for call in calls),
            self.buckets.index(told.decision.reason),
            told.decision.kept,
            reward == 1.0 if is_correct is None else is_correct,
            told.finish_reason in TRUNCATED,
            bool(told.task.meta.get(HIDDEN)),
            _number(reward),
            _number(penalty.error if penalty else None),
            _number(penalty.format if penalty else None),
            _number(None if isinstance(told.advantage, list) else told.advantage),
            self._family(told.task.source),
            *_times(told.times),
        )

    def _family(self, source: str) -> int:
        source = source[:FAMILY_CHARS]
        if source not in self.families:
            if len(self.families) == MOST_FAMILIES:
                return 0
            self.families.append(source)
        return self.families.index(source)

    def searched(self, row: int) -> bytes:
        """The line."""
        offset, size = self._offsets[row]
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def times(self, row: int) -> TrajectoryTimes | None:
        """Return the times, or None if the line has none."""
        return decode_times(self.record(row).get("times"))

    def learned(self, name: str) -> LearnedTokens | None:
        """Return None: lines have no values of a learner."""
        return None

    def record(self, row: int) -> dict[str, Any]:
        """The record of a line."""
        try:
            record = json.loads(self.searched(row))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{self._path}:{row + 1}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise RecordError(f"{self._path}:{row + 1}: is another than it was")
        return record


def _times(told: _TimesLine | None) -> tuple[float, float, float, float]:
    """Return the times of a row, from `began` to `tools_s`."""
    if told is None:
        return (float("nan"),) * 4
    tools_s = sum(
        seconds_of([None if call is None else Span(*call) for call in calls]) for _, _, calls in told.turns
    )
    return told.began, told.ended_s, sum(end - start for start, end, _ in told.turns), tools_s


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _record(line: bytes, place: str) -> _RecordLine:
    try:
        try:
            told = _DECODER.decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # half a surrogate pair, which Python's JSON takes
            told = msgspec.convert(json.loads(line), _RecordLine)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: not a trajectory record: {error}") from None
    if told.v != VERSION:
        raise RecordError(f"{place}: not a trajectory record of version {VERSION}")
    return told


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
