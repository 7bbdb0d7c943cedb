"""Read the attempts at a set once, with bounded memory.

    attempts/NAME.jsonl ──line by line──> Cell ──of one question──> QuestionRow
    SetSummary: the hardest rows, and lengths, turns and counts of all attempts

Records are decoded without tokens and texts. Memory holds a bounded number of rows with a bounded number of
cells, and counts. A reader opens a full attempt again at its `offset`.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from rocstar.engine.record.reading import VERSION
from rocstar.engine.types import TRUNCATED

MAX_QUESTION = 600
"""Characters of a question in memory."""
MAX_NOTES = 5


@dataclass(slots=True)
class Histogram:
    """Counts of whole numbers from 0 in a few bins.

    Invariant: bin i holds the count of numbers in [i * width, (i + 1) * width); there are at most `MOST`
    bins, and `width` is a power of two.
    """

    MOST = 32

    width: int = 1
    bins: list[int] = field(default_factory=list)
    number: int = 0
    total: int = 0
    """The sum of the numbers, for their mean."""

    def add(self, value: int) -> None:
        """Count a number, 0 or more."""
        while value // self.width >= self.MOST:
            self._double()
        at = value // self.width
        self.bins += [0] * (at + 1 - len(self.bins))
        self.bins[at] += 1
        self.number += 1
        self.total += value

    def _double(self) -> None:
        self.bins = [sum(self.bins[i : i + 2]) for i in range(0, len(self.bins), 2)]
        self.width *= 2

    def at_width(self, width: int) -> list[int]:
        """Return the bins at another width: this one times a power of two."""
        size = width // self.width
        return [sum(self.bins[i : i + size]) for i in range(0, len(self.bins), size)]

    @property
    def mean(self) -> float | None:
        return self.total / self.number if self.number else None


class CellKind(StrEnum):
    """The result of an attempt."""

    correct = "correct"
    wrong = "wrong"
    truncated = "truncated"
    """wrong: a limit ended it before it answered"""
    failed = "failed"
    """a system failure: no verdict"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An attempt in brief."""

    kind: CellKind
    sibling: int
    tokens: int
    """The length of the response: all turns with tool results."""
    turns: int
    line: int
    """The line of its file, from 1."""
    offset: int
    """The offset of the line's first byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """A question with its attempts. Rows sort from the hardest to the easiest; those whose attempts all
    failed come last, because their difficulty is unknown."""

    id: str
    place: int
    """The index among the questions of its set."""
    question: str
    answer: str
    cells: tuple[Cell, ...]
    num_attempts: int
    """May exceed the number of cells."""
    num_correct: int
    num_scored: int

    @property
    def share(self) -> float | None:
        """The share of correct attempts among the scored ones, or None if all failed."""
        return self.num_correct / self.num_scored if self.num_scored else None

    @property
    def key(self) -> tuple[float, int, int]:
        """The sort key: share, longer attempts first, index."""
        length = sum(cell.tokens for cell in self.cells)
        return (2.0 if self.share is None else self.share, -length, self.place)


@dataclass(slots=True)
class Solved:
    """Counts of questions by how often they were solved; those without a verdict are in none."""

    never: int = 0
    at_times: int = 0
    always: int = 0

    def add(self, row: QuestionRow) -> None:
        if row.num_scored:
            self.never += row.num_correct == 0
            self.always += row.num_correct == row.num_scored
            self.at_times += 0 < row.num_correct < row.num_scored


@dataclass(slots=True, kw_only=True)
class SetSummary:
    """The data of a set that its page shows, of bounded size.

    Invariant: `rows` are the hardest `max_rows` questions in order; the histograms count every attempt.
    """

    max_rows: int
    max_cells: int
    """The cells of a row."""
    rows: list[QuestionRow] = field(default_factory=list)
    num_questions: int = 0
    kinds: Counter[CellKind] = field(default_factory=Counter)
    tokens: dict[CellKind, Histogram] = field(
        default_factory=lambda: {kind: Histogram() for kind in CellKind}
    )
    turns: dict[CellKind, Histogram] = field(default_factory=lambda: {kind: Histogram() for kind in CellKind})
    solved: Solved = field(default_factory=Solved)
    notes: list[str] = field(default_factory=list)
    """The first few sentences about unreadable records."""
    num_unread: int = 0

    def add(self, row: QuestionRow) -> None:
        """Count a question whose attempts were all passed to `counted`."""
        self.num_questions += 1
        self.solved.add(row)
        bisect.insort(self.rows, row, key=lambda one: one.key)
        del self.rows[self.max_rows :]

    def counted(self, cell: Cell) -> None:
        """Count an attempt."""
        self.kinds[cell.kind] += 1
        self.tokens[cell.kind].add(cell.tokens)
        self.turns[cell.kind].add(cell.turns)

    def unread(self, note: str) -> None:
        self.num_unread += 1
        if self.num_unread <= MAX_NOTES:
            self.notes.append(note)


# A record without its long fields: msgspec skips the fields that are not named here.
class _TaskSeen(msgspec.Struct):
    id: str
    question: str = ""
    answer: Any = ""


class _SegmentSeen(msgspec.Struct):
    end: int


class _OutcomeSeen(msgspec.Struct):
    reward: float | None = None
    is_correct: bool | None = None
    failed: Any = None


class _TurnSeen(msgspec.Struct):
    finish: str = ""


class _RecordSeen(msgspec.Struct):
    v: int
    task: _TaskSeen
    sibling: int
    segments: list[_SegmentSeen]
    turns: list[_TurnSeen]
    finish_reason: str
    outcome: _OutcomeSeen


_DECODER = msgspec.json.Decoder(_RecordSeen)


def read_set(path: Path, *, max_rows: int, max_cells: int, keep_texts: bool) -> SetSummary:
    """Read the records of a set. Without `keep_texts`, no question and no answer is kept.

    The records of a question are adjacent, as AttemptsFile writes them. Invalid lines are skipped, with a
    note.
    """
    found = SetSummary(max_rows=max_rows, max_cells=max_cells)
    if not path.is_file():
        found.unread(f"{path.name} does not exist")
        return found
    of_question = groupby(_records(path, found), key=lambda seen: seen[0].task.id)
    for place, (task_id, records) in enumerate(of_question):
        found.add(_row(task_id, place, records, found, keep_texts=keep_texts))
    return found


def _row(
    task_id: str,
    place: int,
    records: Iterator[tuple[_RecordSeen, int, int]],
    found: SetSummary,
    *,
    keep_texts: bool,
) -> QuestionRow:
    cells: list[Cell] = []
    counts: Counter[CellKind] = Counter()
    question = answer = ""
    for record, line, offset in records:
        cell = _cell(record, line, offset)
        found.counted(cell)
        counts[cell.kind] += 1
        if len(cells) < found.max_cells:
            cells.append(cell)
        if keep_texts and not question:
            question, answer = record.task.question[:MAX_QUESTION], str(record.task.answer)[:MAX_QUESTION]
    return QuestionRow(
        id=task_id,
        place=place,
        question=question,
        answer=answer,
        cells=tuple(sorted(cells, key=lambda cell: cell.sibling)),
        num_attempts=counts.total(),
        num_correct=counts[CellKind.correct],
        num_scored=counts.total() - counts[CellKind.failed],
    )


def _cell(record: _RecordSeen, line: int, offset: int) -> Cell:
    ends = [segment.end for segment in record.segments]
    return Cell(
        kind=classify_attempt(record),
        sibling=record.sibling,
        tokens=ends[-1] - ends[0] if ends else 0,
        turns=len(record.turns),
        line=line,
        offset=offset,
    )


def classify_attempt(record: _RecordSeen) -> CellKind:
    """Return the kind of an attempt. In records without a verdict, a reward of 1 is correct."""
    outcome = record.outcome
    if outcome.failed is not None or outcome.reward is None:
        return CellKind.failed
    if outcome.reward == 1.0 if outcome.is_correct is None else outcome.is_correct:
        return CellKind.correct
    return CellKind.truncated if record.finish_reason in TRUNCATED else CellKind.wrong


def _records(path: Path, found: SetSummary) -> Iterator[tuple[_RecordSeen, int, int]]:
    """Yield records with their lines and offsets."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            record = _decoded(line)
            if record is not None and record.v == VERSION:
                yield record, number, offset
            else:
                found.unread(f"{path.name}, line {number}: not a trajectory record of version {VERSION}")
            offset += len(line)


def _decoded(line: bytes) -> _RecordSeen | None:
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:  # half a surrogate pair, which Python's JSON accepts
        return _decoded_slowly(line)


def _decoded_slowly(line: bytes) -> _RecordSeen | None:
    try:
        return msgspec.convert(json.loads(line), _RecordSeen)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def read_record(path: Path, cell: Cell) -> dict[str, Any] | None:
    """Return the full record of an attempt, or None if the file has changed."""
    with path.open("rb") as file:
        file.seek(cell.offset)
        try:
            record = json.loads(file.readline())
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) and record.get("v") == VERSION else None
