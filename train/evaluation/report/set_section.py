"""The section of a set: distributions, grid, hardest questions, and the attempts shown in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rocstar.train.evaluation.report.figures import length_chart
from rocstar.train.evaluation.report.set_reader import (
    Cell,
    CellKind,
    Histogram,
    QuestionRow,
    SetSummary,
    read_record,
)
from rocstar.train.evaluation.report.tables import SetNumbers, number
from rocstar.train.record.report.page import clipped, figure, part_of
from rocstar.train.record.report.trajectories import trajectory_html

PARTS = Path(__file__).with_name("templates") / "evaluation.html"
HARDEST = 5
"""The number of questions shown in full."""
LONG = 40
"""A grid with more rows scrolls in its own frame."""
MAX_ID, MAX_LINE = 80, 140
"""Characters of a question's id, and of the question in the grid."""
HIDDEN = (
    "The licence of this set asks that its questions are not shown. This page has neither them nor the "
    "attempts, which repeat them; `rocstar report FOLDER --reveal` includes both."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPage:
    """A set with its summary.

    Invariant: without `is_shown`, neither `reading` nor `cards` has a text of a question, answer or attempt.
    """

    place: int
    """The index among the sets."""
    name: str
    numbers: SetNumbers
    file: Path
    reading: SetSummary
    is_shown: bool
    cards: Mapping[str, Markup]
    """The attempts on the page, by anchor."""


def select_cards(place: int, file: Path, reading: SetSummary, *, num: int, room: int) -> dict[str, Markup]:
    """Return at most `num` attempts of a set, within `room` characters."""
    cards: dict[str, Markup] = {}
    for row, cell in select_attempts(reading.rows, num):
        record = read_record(file, cell)
        if record is None:
            continue
        name, where = anchor(place, row, cell), f"attempts/{file.name}, line {cell.line}"
        card = attempt_card(record, lead=f"attempt {cell.sibling}", anchor=name, place=where)
        if len(card) > room:
            break
        cards[name], room = card, room - len(card)
    return cards


def set_section(one: SetPage, settings: str) -> Markup:
    """Return the section; `settings` is a sentence about the settings."""
    figures = [
        figure(
            partial(length_chart, "Response length", "tokens", one.reading.tokens),
            "Attempts by the tokens of their response, tool results included. " + _means(one.reading.tokens),
        ),
        figure(
            partial(length_chart, "Turns", "completions", one.reading.turns),
            "Attempts by the number of completions of the policy. " + _means(one.reading.turns),
        ),
    ]
    notes = [*([] if one.is_shown else [HIDDEN]), *one.reading.notes]
    if (more := one.reading.num_unread - len(one.reading.notes)) > 0:
        notes.append(f"and {more} more")
    hardest = part_of(PARTS, "hardest", [_hard(one, row) for row in one.reading.rows[:HARDEST]])
    return part_of(PARTS, "set", one.place, one.name, settings, figures, _grid(one), hardest, notes)


def _means(histograms: Mapping[CellKind, Histogram]) -> str:
    """Return a sentence with the mean of each scored kind."""
    means = [
        f"{number(mean)} where {kind}"
        for kind in (CellKind.correct, CellKind.wrong, CellKind.truncated)
        if (mean := histograms[kind].mean) is not None
    ]
    return f"Mean: {', '.join(means)}." if means else ""


def _grid(one: SetPage) -> Markup:
    """Return the grid of the hardest questions."""
    reading = one.reading
    if not reading.rows:
        return Markup("")
    shown, all_of_them = len(reading.rows), reading.num_questions
    which = "All questions" if shown == all_of_them else f"The {shown:,} hardest of {all_of_them:,} questions"
    counts = reading.solved
    caption = (
        f"{which}, the hardest first. A square is an attempt; it names its line of attempts/{one.file.name}. "
        f"Never solved: {counts.never:,}, sometimes: {counts.at_times:,}, always: {counts.always:,}."
    )
    rows = [
        {
            "id": clipped(row.id, MAX_ID),
            "question": row.question[:MAX_LINE],
            "solved": f"{row.num_correct}/{row.num_scored}",
            "cells": list(shown_cells(row, one.place, one.cards)),
            "more": row.num_attempts - len(row.cells),
        }
        for row in reading.rows
    ]
    return part_of(PARTS, "grid", rows, caption, shown > LONG)


def _hard(one: SetPage, row: QuestionRow) -> dict[str, Any]:
    """Return a question in full, with links to its attempts on the page."""
    tokens = sum(cell.tokens for cell in row.cells) / len(row.cells) if row.cells else 0.0
    names = [(str(cell.kind), anchor(one.place, row, cell)) for cell in row.cells]
    return {
        "id": clipped(row.id, MAX_ID),
        "detail": f"{row.num_correct} of {row.num_scored} correct, {number(tokens)} tokens on average",
        "links": [(kind, name) for kind, name in names if name in one.cards],
        "question": row.question,
        "answer": row.answer,
    }


MAX_ROWS, MAX_CELLS = 200, 64
"""The rows of a set and the cells of a row."""
PAGE_CELLS = 12_000
"""The cells of all sets; each has about a hundred bytes."""
PAGE_ATTEMPTS = 40
"""The attempts of all sets that are shown in full."""
CODES = {
    CellKind.correct: "k",
    CellKind.wrong: "w",
    CellKind.truncated: "t",
    CellKind.failed: "f",
}
"""The class of a cell."""


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell for the template."""

    code: str
    text: str
    anchor: str
    """The anchor of the attempt, or "" if it is not on the page."""


def row_limit(num_sets: int, k: int) -> int:
    """Return the rows of a set that keep all sets within `PAGE_CELLS` cells."""
    return max(1, min(MAX_ROWS, PAGE_CELLS // max(num_sets, 1) // max(1, min(k, MAX_CELLS))))


def attempt_limit(num_sets: int) -> int:
    """Return the attempts of a set that are shown in full."""
    return max(1, PAGE_ATTEMPTS // max(num_sets, 1))


def anchor(set_place: int, row: QuestionRow, cell: Cell) -> str:
    """Return the link target of an attempt, made of numbers only because ids are untrusted text."""
    return f"a{set_place}-{row.place}-{cell.sibling}"


def shown_cells(row: QuestionRow, set_place: int, shown: Iterable[str]) -> Iterator[ShownCell]:
    """Yield the cells of a row; `shown` are the anchors on the page."""
    for cell in row.cells:
        name = anchor(set_place, row, cell)
        turns = "1 turn" if cell.turns == 1 else f"{cell.turns} turns"
        text = f"attempt {cell.sibling}: {cell.kind}, {cell.tokens:,} tokens, {turns}; line {cell.line}"
        yield ShownCell(CODES[cell.kind], text, name if name in shown else "")


def select_attempts(rows: Sequence[QuestionRow], num: int) -> list[tuple[QuestionRow, Cell]]:
    """Return at most `num` attempts to show: alternating between the hardest questions that were sometimes
    solved and the hardest never solved, the first attempt of each kind."""
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


MAX_TEXT = 6_000
"""The maximum characters of a text."""
MAX_CARD = 40_000
"""The maximum characters of an attempt's texts before they are escaped."""
MAX_HTML = 250_000
"""The maximum characters of a card in the page. A larger one, with many pieces or escapes, shows no turns."""


def attempt_card(record: Mapping[str, Any], *, lead: str, anchor: str, place: str) -> Markup:
    """Return the card of at most about `MAX_HTML` characters. `place`: file and line of the record."""
    short, left_out = shorten_record(record)
    more: dict[str, object] = {"record": place}
    if left_out:
        more["not shown"] = left_out
    card = trajectory_html(short, lead=lead, anchor=anchor, more=more, max_text=MAX_TEXT)
    if len(card) <= MAX_HTML:
        return card
    more["not shown"] = "turns: they have too many parts for a page"
    return trajectory_html({**short, "turns": []}, lead=lead, anchor=anchor, more=more, max_text=MAX_TEXT)


def shorten_record(record: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the record without its tokens and with the turns that fit, the first ones and the last.

    Also return the omitted turns in words, or "".
    """
    turns = [{**turn, "number": k} for k, turn in enumerate(record.get("turns") or [], 1)]
    sizes = [_size(turn) for turn in turns]
    room, kept = MAX_CARD - (sizes[-1] if sizes else 0), 0
    while kept < len(turns) - 1 and room >= sizes[kept]:
        room -= sizes[kept]
        kept += 1
    short = {**record, "turns": turns[:kept] + turns[-1:], "segments": [], "ids": []}
    num_out = len(turns) - len(short["turns"])
    if not num_out:
        return short, ""
    return short, f"turn {kept + 1}" if num_out == 1 else f"turns {kept + 1} to {kept + num_out}"


def _size(turn: Mapping[str, Any]) -> int:
    """Return the characters of a turn in the card; a call is also in the text of the turn."""
    calls = turn.get("calls") or []
    return sum(min(len(text), MAX_TEXT) for text in (str(turn.get("text", "")), *(_texts(calls))))


def _texts(calls: list[Mapping[str, Any]]) -> list[str]:
    arguments = [value for call in calls for value in _values(call.get("arguments"))]
    return [str(text) for text in (*arguments, *(call.get("result", "") for call in calls))]


def _values(arguments: Any) -> list[Any]:
    return list(arguments.values()) if isinstance(arguments, Mapping) else []
