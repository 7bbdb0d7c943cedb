"""Chosen trajectories as one page that needs nothing else: it opens from a disk or a mail."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from rocstar.train.evaluation.report.set_section import PARTS
from rocstar.train.reading.view.conversation import Record
from rocstar.train.record.report.page import page, part_of
from rocstar.train.record.report.trajectories import trajectory_html

MOST = 50
"""Trajectories of a page."""
ROOM = 4_500_000
"""Characters of their cards, so that a page stays below five megabytes."""


def export_page(run: str, records: Iterable[Record]) -> str:
    """The page of these records, as many as there is room for; it says how many are left out."""
    cards: list[Markup] = []
    room, left_out = ROOM, 0
    for record in records:
        card = trajectory_html(record, is_open=not cards)
        if len(card) > room:
            left_out += 1
            continue
        cards.append(card)
        room -= len(card)
    caption = f"{len(cards)} of the run {run}."
    if left_out:
        caption += f" {left_out} more had no room: a page of five megabytes still opens everywhere."
    text = page(f"rocstar: {run}", [part_of(PARTS, "attempts", [(run, cards)], caption)])
    # A policy may write half a surrogate pair in its arguments; it is shown as its escape.
    return text.encode(errors="backslashreplace").decode()
