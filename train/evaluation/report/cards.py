"""An attempt as a card of the page: its words, bounded; where its record lies says where the rest is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from rocstar.train.record.report.trajectories import trajectory_html

MAX_TEXT = 6_000
"""Characters of each text."""
MAX_CARD = 40_000
"""Characters of all texts of an attempt, counted before they are escaped."""
MAX_HTML = 250_000
"""Characters of a card as it is on the page: what has many small pieces, or much to escape, has none."""


def attempt_card(record: Mapping[str, Any], *, lead: str, anchor: str, place: str) -> Markup:
    """The card, of at most about `MAX_HTML` characters. `place`: file and line of the record."""
    short, left_out = shortened(record)
    more: dict[str, object] = {"record": place}
    if left_out:
        more["not shown"] = left_out
    card = trajectory_html(short, lead=lead, anchor=anchor, more=more, max_text=MAX_TEXT)
    if len(card) <= MAX_HTML:
        return card
    more["not shown"] = "any turn: they are too many pieces for a page"
    return trajectory_html({**short, "turns": []}, lead=lead, anchor=anchor, more=more, max_text=MAX_TEXT)


def shortened(record: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The record without its tokens, and with so many of its turns as fit: the first ones and the last.

    Also says in words what was left out; "" for nothing.
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
    """Characters that the card shows of a turn; a call is in the text of the turn, too."""
    calls = turn.get("calls") or []
    return sum(min(len(text), MAX_TEXT) for text in (str(turn.get("text", "")), *(_texts(calls))))


def _texts(calls: list[Mapping[str, Any]]) -> list[str]:
    arguments = [value for call in calls for value in _values(call.get("arguments"))]
    return [str(text) for text in (*arguments, *(call.get("result", "") for call in calls))]


def _values(arguments: Any) -> list[Any]:
    return list(arguments.values()) if isinstance(arguments, Mapping) else []
