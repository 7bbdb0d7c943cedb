"""Questions by attempts as cells: which are shown, what each says, and which attempts are shown whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rocstar.train.evaluation.report.reading import Cell, CellKind, QuestionRow

MAX_ROWS, MAX_CELLS = 200, 64
"""Rows of a set, cells of a row."""
PAGE_CELLS = 12_000
"""Cells of all sets; each is about a hundred bytes."""
PAGE_ATTEMPTS = 40
"""Attempts shown whole, of all sets."""
CODES = {
    CellKind.correct: "k",
    CellKind.wrong: "w",
    CellKind.truncated: "t",
    CellKind.failed: "f",
}
"""Class of a cell."""


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell as the template takes it."""

    code: str
    text: str
    anchor: str
    """Of the attempt, where it is on the page; else empty."""


def rows_of_a_set(num_sets: int, k: int) -> int:
    """So many rows that all sets together have at most `PAGE_CELLS` cells."""
    return max(1, min(MAX_ROWS, PAGE_CELLS // max(num_sets, 1) // max(1, min(k, MAX_CELLS))))


def attempts_of_a_set(num_sets: int) -> int:
    """How many are shown whole."""
    return max(1, PAGE_ATTEMPTS // max(num_sets, 1))


def anchor(set_place: int, row: QuestionRow, cell: Cell) -> str:
    """What links call an attempt: made of numbers alone, for ids are foreign text."""
    return f"a{set_place}-{row.place}-{cell.sibling}"


def cells_of(row: QuestionRow, set_place: int, shown: Iterable[str]) -> Iterator[ShownCell]:
    """The cells of a row; `shown` are the anchors that the page has."""
    for cell in row.cells:
        name = anchor(set_place, row, cell)
        turns = "1 turn" if cell.turns == 1 else f"{cell.turns} turns"
        text = f"attempt {cell.sibling}: {cell.kind}, {cell.tokens:,} tokens, {turns}; line {cell.line}"
        yield ShownCell(CODES[cell.kind], text, name if name in shown else "")


def chosen(rows: Sequence[QuestionRow], num: int) -> list[tuple[QuestionRow, Cell]]:
    """At most `num` attempts to read: by turns from the hardest questions that were solved at times, and from
    the hardest that never were; of each question the first attempt of each kind."""
    solved = [row for row in rows if row.num_correct and row.num_correct < row.num_attempts]
    never = [row for row in rows if not row.num_correct]
    always = [row for row in rows if row.num_correct and row.num_correct == row.num_attempts]
    pairs = (row for pair in zip_longest(solved, never) for row in pair if row is not None)
    found: list[tuple[QuestionRow, Cell]] = []
    for row in (*pairs, *always):
        first: dict[CellKind, Cell] = {}
        for cell in row.cells:
            first.setdefault(cell.kind, cell)
        found += [(row, first[kind]) for kind in CellKind if kind in first]
        if len(found) >= num:
            break
    return found[:num]
