"""A group: the weights are those that the algorithm drew with, and the sums are the ledger's."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.reading import export_lines
from rocstar.engine.types import Fork
from rocstar.train.reading.view.group_page import draw_weight, pass_rates, task_over_steps
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import RunIndex
from tests.fakes.trajectories import FakeRecord, FakeTurn, make_trajectory, write_step_file

from .view_runs import SIBLINGS, decided


@pytest.fixture(scope="module")
def reader(viewed: Path) -> RunReader:
    return RunReader(RunIndex([viewed]).runs, reveal=False)


@pytest.mark.parametrize("as_lines", [False, True])
def test_branches_stand_behind_their_roots(tmp_path: Path, as_lines: bool) -> None:
    turns, key = (FakeTurn(answer=(7,)), FakeTurn()), make_trajectory(sibling=10).key
    roots = [make_trajectory(*turns, sibling=k) for k in (2, 10)]
    branches = [
        make_trajectory(*turns, key=key.behind(1, 1).behind(3, 2), fork=Fork(parent="1.1", turns=1, start=3)),
        make_trajectory(*turns, key=key.behind(1, 1), fork=Fork(parent="", turns=1, start=3)),
    ]
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)
    made = [FakeRecord(trajectory=t, texts=["t"] * 4, verdict=verdict) for t in (*branches, *roots)]
    path = write_step_file(tmp_path / "run" / "trajectories" / "step_000001.columns", made)
    if as_lines:
        export_lines(path.parent, path.parent)
        for file in (path, path.with_suffix(".index")):
            file.unlink()
    reader = RunReader(RunIndex([tmp_path / "run"]).runs, reveal=False)
    (first, *_) = reader.rows("run", "steps", words="", sort="", start=0, num=1)["rows"]
    found = reader.group("run", step=1, task=int(first["task"], 16))["siblings"]
    assert [one["attempt"] for one in found] == ["2", "10", "10~1.1", "10~1.1/3.2"]
    assert [one["policy_tokens"] for one in found] == [2, 2, 1, 1]
    shown = reader.conversation("run", "steps", found[3]["file"], found[3]["row"])
    assert shown["fork"] == {"parent": "1.1", "turns": 1, "start": 3}
    assert [one["attempt"] for one in shown["siblings"]] == [one["attempt"] for one in found]


def number_of(reader: RunReader, name: str) -> int:
    rows = reader.rows("made", "steps", words=name, sort="", start=0, num=1)["rows"]
    return int(rows[0]["task"], 16)


def test_weights_are_those_of_the_draw(reader: RunReader) -> None:
    found = reader.group("made", step=1, task=number_of(reader, "gcd-1"))
    expected = [decision and decision.inclusion_weight for decision, _ in decided(SIBLINGS)]
    assert [sibling["weight"] for sibling in found["siblings"]] == expected
    assert len({weight for weight in expected if weight}) == 3


def test_sums_equal_the_ledger(reader: RunReader) -> None:
    found = reader.group("made", step=2, task=number_of(reader, "gcd-1"))
    assert found["step_sums"] == found["ledger"]
    assert found["sums"]["generated"] == 6 and sum(found["sums"].values()) == 12
    assert found["sums"]["failed"] == 1 and found["sums"]["kept"] == 4


def test_a_group_without_a_signal_had_no_draw(reader: RunReader) -> None:
    found = reader.group("made", step=1, task=number_of(reader, "sum-1"))
    assert not found["draw"]["happened"] and {s["weight"] for s in found["siblings"]} == {None}


@pytest.mark.parametrize("reveal", [False, True])
def test_rows_have_question_and_answers_unless_they_are_withheld(viewed: Path, reveal: bool) -> None:
    """In the list, a group and over the steps."""
    reader = RunReader(RunIndex([viewed]).runs, reveal=reveal)
    for name, texts in (
        ("gcd-1", {"question": "gcd of 84 and 36?", "answer": "12", "given": "0"}),
        ("secret", {"question": "the hidden question", "answer": "12", "given": "0"} if reveal else {}),
    ):
        task = number_of(reader, name)
        rows = [
            reader.rows("made", "steps", words=name, sort="sibling", start=0, num=1)["rows"][0],
            reader.group("made", step=1, task=task)["siblings"][0],
            reader.task("made", task=task)["listed"],
        ]
        assert [{key: row[key] for key in ("question", "answer", "given") if key in row} for row in rows] == [
            texts
        ] * 3


def test_a_group_whose_records_are_damaged_has_no_texts(viewed: Path, tmp_path: Path) -> None:
    shutil.copytree(viewed, tmp_path / "made")
    reader = RunReader(RunIndex([tmp_path / "made"]).runs, reveal=False)
    task = number_of(reader, "gcd-1")
    path = tmp_path / "made" / "trajectories" / "step_000001.columns"
    path.write_bytes(path.read_bytes()[:200])
    found = reader.group("made", step=1, task=task)
    assert len(found["siblings"]) == 6 and not any("question" in one for one in found["siblings"])


@pytest.mark.parametrize(
    ("mode", "is_correct", "weight"),
    [
        ("paper", True, 1 / 0.6),
        ("paper", False, 1.0),
        ("uniform", True, 1.0),
        ("sort", True, None),
        (None, True, None),
    ],
)
def test_what_is_not_known_is_not_shown(mode: str | None, is_correct: bool, weight: float | None) -> None:
    sibling = {"reward": 0.5, "verdict": "correct" if is_correct else "wrong"}
    sibling |= {"penalty_error": 0.5, "penalty_format": None}
    assert draw_weight(sibling, mode=mode, eps=0.1) == weight


def test_a_task_over_the_steps_and_groups_by_correct_siblings(viewed: Path) -> None:
    listing = Listing()
    listing.refresh(sorted((viewed / "trajectories").glob("*.columns")))
    task = int(listing.rows["task"][listing.rows["errors"] > 0][0])
    steps = task_over_steps(listing, task)
    assert [(one["step"], one["attempts"], one["correct"]) for one in steps] == [(1, 6, 3), (2, 6, 3)]
    assert steps[0]["reward"] == pytest.approx(3 / 5), "the failed one has no reward"
    rates = pass_rates(listing, step=1)
    assert rates["size"] == 6 and np.nonzero(rates["groups"])[0].tolist() == [3] and rates["groups"][3] == 3
