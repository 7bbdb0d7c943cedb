"""Records are read once and forgotten: every attempt is counted, the hardest questions stay."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import from_record, read_records
from rocstar.engine.types import Scored
from rocstar.train.evaluation.report.set_reader import Cell, CellKind, SetSummary, read_record, read_set

from ..eval_folders import MadeSet, make_folder

MakeRecord = Callable[..., dict[str, Any]]


def read(path: Path, **changes: Any) -> SetSummary:
    return read_set(path, **{"max_rows": 100, "max_cells": 64, "keep_texts": True, **changes})


def write(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = MadeSet(name="sums", num=12, k=5, failing=0.15)
    return make_folder(tmp_path_factory.mktemp("read"), made) / "attempts" / "sums.jsonl"


def test_every_attempt_is_counted_as_the_engine_understands_it(file: Path) -> None:
    found, trajectories = read(file), [from_record(r) for r in read_records(file)]
    assert found.num_questions == 12 and found.kinds.total() == 60 == len(trajectories)
    cells = [cell for row in sorted(found.rows, key=lambda row: row.place) for cell in row.cells]
    for cell, t in zip(cells, trajectories, strict=True):
        assert (cell.tokens, cell.turns, cell.sibling) == (t.response_length, len(t.turns), t.key.sibling)
        if not isinstance(t.outcome, Scored):
            assert cell.kind is CellKind.failed
        elif t.outcome.is_correct:
            assert cell.kind is CellKind.correct
        else:
            assert cell.kind is (CellKind.truncated if t.is_truncated else CellKind.wrong)
    assert set(found.kinds) == set(CellKind), "the set has some of each"
    assert all(found.kinds[kind] == found.tokens[kind].number for kind in CellKind)


def test_the_hardest_questions_stay_in_order(file: Path) -> None:
    whole, short = read(file), read(file, max_rows=4)
    assert [row.id for row in short.rows] == [row.id for row in whole.rows][:4]
    shares = [row.share for row in whole.rows if row.share is not None]
    assert shares == sorted(shares) and short.kinds == whole.kinds and short.num_questions == 12
    assert (short.solved.never, short.solved.at_times, short.solved.always) == (
        sum(s == 0 for s in shares),
        sum(0 < s < 1 for s in shares),
        sum(s == 1 for s in shares),
    )


def test_questions_of_which_all_attempts_failed_come_last(tmp_path: Path, record: MakeRecord) -> None:
    """Nobody knows how hard they are."""
    records = [
        record(0, 0, reward=None, task={"id": "lost", "question": "", "answer": ""}),
        record(0, 0, reward=1.0, task={"id": "solved", "question": "", "answer": ""}),
        record(0, 0, reward=0.0, task={"id": "never", "question": "", "answer": ""}),
    ]
    assert [row.id for row in read(write(tmp_path / "x.jsonl", records)).rows] == ["never", "solved", "lost"]


def test_a_cell_leads_back_to_its_record(file: Path) -> None:
    for row in read(file).rows:
        for cell in row.cells:
            record = read_record(file, cell)
            assert record is not None and record["task"]["id"] == row.id
            assert record["sibling"] == cell.sibling
            assert json.loads(file.read_text().splitlines()[cell.line - 1]) == record


def test_half_a_surrogate_pair_and_not_a_number_are_read(tmp_path: Path, record: MakeRecord) -> None:
    records = [record(0, 0, text="\ud83d"), record(0, 1, advantage=float("nan"))]
    found = read(write(tmp_path / "x.jsonl", records))
    assert found.kinds == {CellKind.correct: 2} and not found.notes


@pytest.mark.parametrize("line", ["torn", "[]", '{"v": 2}', '{"v": 1}', "null", "[" * 100_000, ""])
def test_what_is_no_record_is_told_and_left_out(tmp_path: Path, record: MakeRecord, line: str) -> None:
    found = read(write(tmp_path / "x.jsonl", [record(0, 0), line, record(0, 1)]))
    assert found.kinds.total() == 2
    assert found.notes == ["x.jsonl, line 2: not a trajectory record of version 1"]


def test_of_many_bad_lines_the_first_are_named(tmp_path: Path) -> None:
    found = read(write(tmp_path / "x.jsonl", ["torn"] * 50))
    assert len(found.notes) == 5 and found.num_unread == 50
    assert read(tmp_path / "y.jsonl").notes == ["y.jsonl does not exist"]


def test_without_texts_no_question_and_no_answer_stays(file: Path) -> None:
    assert all(row.question and row.answer for row in read(file).rows)
    assert not any(row.question or row.answer for row in read(file, keep_texts=False).rows)


def test_a_record_that_changed_meanwhile_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ["torn"])
    cell = Cell(kind=CellKind.wrong, sibling=0, tokens=1, turns=1, line=1, offset=0)
    assert read_record(path, cell) is None


def test_memory_does_not_grow_with_the_attempts(tmp_path: Path, record: MakeRecord) -> None:
    """Memory has as many rows and cells for 400 questions as for 40."""

    def peak(num: int) -> int:
        path = tmp_path / f"{num}.jsonl"
        with path.open("w") as out:
            for at in range(num):
                for sibling in range(10):
                    task = {"id": f"t{at}", "question": f"{at}" * 40, "answer": "1"}
                    out.write(json.dumps(record(0, sibling, reward=0.0, task=task)) + "\n")
        tracemalloc.start()
        read(path, max_rows=10, max_cells=8)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(400) < peak(40) + 10_000, "the file is ten times as long"
