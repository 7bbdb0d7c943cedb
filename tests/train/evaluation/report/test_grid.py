"""Which cells and which attempts a page has: the same ones from the same records, and never too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.report.grid import (
    MAX_CELLS,
    PAGE_ATTEMPTS,
    PAGE_CELLS,
    anchor,
    attempts_of_a_set,
    cells_of,
    chosen,
    rows_of_a_set,
)
from rocstar.train.evaluation.report.reading import Cell, CellKind, QuestionRow


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
    assert 1 <= rows_of_a_set(num_sets, k) <= 200
    assert num_sets * rows_of_a_set(num_sets, k) * min(k, MAX_CELLS) <= PAGE_CELLS
    assert attempts_of_a_set(num_sets) >= 1
    assert num_sets > PAGE_ATTEMPTS or num_sets * attempts_of_a_set(num_sets) <= PAGE_ATTEMPTS


def test_attempts_to_read_come_from_what_is_solved_at_times_and_never() -> None:
    rows = [row(0, "www"), row(1, "wft"), row(2, "wcw"), row(3, "cwt"), row(4, "cc")]
    found = [(one.place, cell.kind.value, cell.sibling) for one, cell in chosen(rows, 100)]
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
    assert [(one.place, cell.sibling) for one, cell in chosen(rows, 2)] == [(2, 1), (2, 0)]
    assert chosen([], 5) == []


def test_a_cell_says_in_words_what_it_is_and_where() -> None:
    one = row(7, "wt")
    cells = list(cells_of(one, 3, {anchor(3, one, one.cells[1])}))
    assert [cell.text for cell in cells] == [
        "attempt 0: wrong, 1,234 tokens, 1 turn; line 1",
        "attempt 1: truncated, 1,234 tokens, 2 turns; line 2",
    ]
    assert [cell.anchor for cell in cells] == ["", "a3-7-1"]
    assert len({cell.code for cell in cells}) == 2
