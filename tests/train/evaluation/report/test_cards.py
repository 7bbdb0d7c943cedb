"""An attempt on the page: bounded, and what is left out is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocstar.train.evaluation.report.cards import MAX_CARD, MAX_HTML, MAX_TEXT, attempt_card, shortened

MakeRecord = Callable[..., dict[str, Any]]


def turn(text: str) -> dict[str, Any]:
    return {"text": text, "finish": "stop", "calls": []}


def card(record: dict[str, Any]) -> str:
    return str(attempt_card(record, lead="attempt 0", anchor="a0-0-0", place="attempts/own.jsonl, line 3"))


def test_a_short_attempt_is_whole(record: MakeRecord) -> None:
    short, left_out = shortened(record(0, 0))
    assert not left_out and [t["text"] for t in short["turns"]] == [t["text"] for t in record(0, 0)["turns"]]
    text = card(record(0, 0, reason="evaluated"))
    assert "attempts/own.jsonl, line 3" in text and 'id="a0-0-0"' in text
    assert "not shown" not in text and "policy version" not in text


def test_of_a_long_attempt_the_last_turn_stays_and_turns_keep_their_numbers(record: MakeRecord) -> None:
    turns = [turn(f"turn {k} " + "x" * MAX_TEXT) for k in range(1, 21)]
    short, left_out = shortened(record(0, 0, turns=turns))
    kept = [t["number"] for t in short["turns"]]
    assert kept == [*range(1, len(kept)), 20] and 2 < len(kept) < 20
    assert left_out == f"turns {len(kept)} to 19"
    assert sum(min(len(t["text"]), MAX_TEXT) for t in short["turns"]) <= MAX_CARD
    assert "turn 20: the policy" in card(record(0, 0, turns=turns))


def test_a_long_text_keeps_its_end(record: MakeRecord) -> None:
    text = card(record(0, 0, turns=[turn("begin " + "x" * 50_000 + " end")]))
    assert "begin " in text and " end" in text and len(text) < 12_000


def test_a_turn_of_a_thousand_pieces_is_no_card_of_a_megabyte(record: MakeRecord) -> None:
    pieces = turn(("<tool_call>" + '"' * 900 + "</tool_call>and\n") * 1000)
    text = card(record(0, 0, turns=[pieces]))
    assert len(text) < MAX_HTML and "too many pieces" in text
