"""The section of a set: the grid of attempts, and the attempts that are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.report.set_reader import Cell, CellKind, QuestionRow
from rocstar.train.evaluation.report.set_section import (
    MAX_CARD,
    MAX_CELLS,
    MAX_HTML,
    MAX_TEXT,
    PAGE_ATTEMPTS,
    PAGE_CELLS,
    anchor,
    attempt_card,
    attempt_limit,
    row_limit,
    select_attempts,
    shorten_record,
    shown_cells,
)


def row(place: int, kinds: str) -> QuestionRow:
    """A question with an attempt for each letter."""
    by_letter = {kind.value[0]: kind for kind in CellKind}
    cells = tuple(
        Cell(kind=by_letter[letter], sibling=at, tokens=1234, turns=1 + at, line=at + 1, offset=0)
        for at, letter in enumerate(kinds)
    )
    return QuestionRow(
        id=f"q{place}",
        place=place,
        question="",
        answer="",
        cells=cells,
        num_attempts=len(cells),
        num_correct=kinds.count("c"),
        num_scored=len(kinds) - kinds.count("f"),
    )


@given(st.integers(1, 50), st.integers(1, 300))
def test_all_sets_together_stay_within_the_page(num_sets: int, k: int) -> None:
    assert 1 <= row_limit(num_sets, k) <= 200
    assert num_sets * row_limit(num_sets, k) * min(k, MAX_CELLS) <= PAGE_CELLS
    assert attempt_limit(num_sets) >= 1
    assert num_sets > PAGE_ATTEMPTS or num_sets * attempt_limit(num_sets) <= PAGE_ATTEMPTS


def test_attempts_to_read_come_from_what_is_solved_at_times_and_never() -> None:
    rows = [row(0, "www"), row(1, "wft"), row(2, "wcw"), row(3, "cwt"), row(4, "cc")]
    found = [(one.place, cell.kind.value, cell.sibling) for one, cell in select_attempts(rows, 100)]
    assert found == [
        (2, "correct", 1),
        (2, "wrong", 0),
        (0, "wrong", 0),
        (3, "correct", 0),
        (3, "wrong", 1),
        (3, "truncated", 2),
        (1, "wrong", 0),
        (1, "truncated", 2),
        (1, "failed", 1),
        (4, "correct", 0),
    ]
    assert [(one.place, cell.sibling) for one, cell in select_attempts(rows, 2)] == [(2, 1), (2, 0)]
    assert select_attempts([], 5) == []


def test_a_cell_says_in_words_what_it_is_and_where() -> None:
    one = row(7, "wt")
    cells = list(shown_cells(one, 3, {anchor(3, one, one.cells[1])}))
    assert [cell.text for cell in cells] == [
        "attempt 0: wrong, 1,234 tokens, 1 turn; line 1",
        "attempt 1: truncated, 1,234 tokens, 2 turns; line 2",
    ]
    assert [cell.anchor for cell in cells] == ["", "a3-7-1"]
    assert len({cell.code for cell in cells}) == 2


MakeRecord = Callable[..., dict[str, Any]]


def turn(text: str) -> dict[str, Any]:
    return {"text": text, "finish": "stop", "calls": []}


def card(record: dict[str, Any]) -> str:
    return str(attempt_card(record, lead="attempt 0", anchor="a0-0-0", place="attempts/own.jsonl, line 3"))


def test_a_short_attempt_is_whole(record: MakeRecord) -> None:
    short, left_out = shorten_record(record(0, 0))
    assert not left_out and [t["text"] for t in short["turns"]] == [t["text"] for t in record(0, 0)["turns"]]
    text = card(record(0, 0, reason="evaluated"))
    assert "attempts/own.jsonl, line 3" in text and 'id="a0-0-0"' in text
    assert "not shown" not in text and "policy version" not in text


def test_of_a_long_attempt_the_last_turn_stays_and_turns_keep_their_numbers(record: MakeRecord) -> None:
    turns = [turn(f"turn {k} " + "x" * MAX_TEXT) for k in range(1, 21)]
    short, left_out = shorten_record(record(0, 0, turns=turns))
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
    assert len(text) < MAX_HTML and "too many parts" in text
