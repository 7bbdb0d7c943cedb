"""The part of the page about one set: distributions, grid, hardest questions; and its attempts to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rocstar.train.evaluation.report.cards import attempt_card
from rocstar.train.evaluation.report.grid import anchor, cells_of, chosen
from rocstar.train.evaluation.report.histogram import Histogram
from rocstar.train.evaluation.report.lengths import mirrored
from rocstar.train.evaluation.report.numbers import SetNumbers
from rocstar.train.evaluation.report.reading import CellKind, QuestionRow, SetReading, read_record
from rocstar.train.evaluation.report.tables import number
from rocstar.train.record.report.page import clipped, figure, part_of

PARTS = Path(__file__).with_name("templates") / "evaluation.html"
HARDEST = 5
"""Questions of a set that are shown in full."""
LONG = 40
"""A grid of more rows scrolls in a frame of its own."""
MAX_ID, MAX_LINE = 80, 140
"""Characters of a question's id, and of the question in the grid."""
HIDDEN = (
    "The licence of this set asks that its questions are not shown. So neither they nor the attempts, which "
    "repeat them, are on this page; `rocstar report FOLDER --reveal` makes one that has them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """A set with what was read of it.

    Invariant: without `is_shown` neither `reading` nor `cards` has a text of a question, answer or attempt.
    """

    place: int
    """Among the sets, from 0."""
    name: str
    numbers: SetNumbers
    file: Path
    reading: SetReading
    is_shown: bool
    cards: Mapping[str, Markup]
    """The attempts that the page has, by anchor."""


def cards_of(place: int, file: Path, reading: SetReading, *, num: int, room: int) -> dict[str, Markup]:
    """At most `num` attempts to read of a set, as long as they fit into `room` characters."""
    cards: dict[str, Markup] = {}
    for row, cell in chosen(reading.rows, num):
        record = read_record(file, cell)
        if record is None:
            continue
        name, where = anchor(place, row, cell), f"attempts/{file.name}, line {cell.line}"
        card = attempt_card(record, lead=f"attempt {cell.sibling}", anchor=name, place=where)
        if len(card) > room:
            break
        cards[name], room = card, room - len(card)
    return cards


def set_section(one: ReadSet, settings: str) -> Markup:
    """The section; `settings` says how the set was asked."""
    figures = [
        figure(
            partial(mirrored, "Response length", "tokens", one.reading.tokens),
            "Attempts by the tokens of their response, tool results included. " + _means(one.reading.tokens),
        ),
        figure(
            partial(mirrored, "Turns", "completions", one.reading.turns),
            "Attempts by the number of completions of the policy. " + _means(one.reading.turns),
        ),
    ]
    notes = [*([] if one.is_shown else [HIDDEN]), *one.reading.notes]
    if (more := one.reading.num_unread - len(one.reading.notes)) > 0:
        notes.append(f"and {more} more")
    hardest = part_of(PARTS, "hardest", [_hard(one, row) for row in one.reading.rows[:HARDEST]])
    return part_of(PARTS, "set", one.place, one.name, settings, figures, _grid(one), hardest, notes)


def _means(histograms: Mapping[CellKind, Histogram]) -> str:
    """Of each kind that was scored."""
    told = [
        f"{number(mean)} where {kind}"
        for kind in (CellKind.correct, CellKind.wrong, CellKind.truncated)
        if (mean := histograms[kind].mean) is not None
    ]
    return f"Mean: {', '.join(told)}." if told else ""


def _grid(one: ReadSet) -> Markup:
    """The rows of the hardest questions, all that were kept."""
    reading = one.reading
    if not reading.rows:
        return Markup("")
    shown, all_of_them = len(reading.rows), reading.num_questions
    which = "All questions" if shown == all_of_them else f"The {shown:,} hardest of {all_of_them:,} questions"
    counts = reading.solved
    caption = (
        f"{which}, the hardest first. A square is an attempt; it names its line of attempts/{one.file.name}. "
        f"Never solved: {counts.never:,}, at times: {counts.at_times:,}, always: {counts.always:,}."
    )
    rows = [
        {
            "id": clipped(row.id, MAX_ID),
            "question": row.question[:MAX_LINE],
            "solved": f"{row.num_correct}/{row.num_scored}",
            "cells": list(cells_of(row, one.place, one.cards)),
            "more": row.num_attempts - len(row.cells),
        }
        for row in reading.rows
    ]
    return part_of(PARTS, "grid", rows, caption, shown > LONG)


def _hard(one: ReadSet, row: QuestionRow) -> dict[str, Any]:
    """A question in full, with links to its attempts that are on the page."""
    tokens = sum(cell.tokens for cell in row.cells) / len(row.cells) if row.cells else 0.0
    names = [(str(cell.kind), anchor(one.place, row, cell)) for cell in row.cells]
    return {
        "id": clipped(row.id, MAX_ID),
        "detail": f"{row.num_correct} of {row.num_scored} correct, {number(tokens)} tokens in the mean",
        "links": [(kind, name) for kind, name in names if name in one.cards],
        "question": row.question,
        "answer": row.answer,
    }
