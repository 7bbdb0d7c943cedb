"""The file of a step: groups survive a death, and any one trajectory is opened by itself."""

import errno
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocstar.engine.record.columns import HEAD, decode_frame, encode_frame
from rocstar.engine.record.files import is_sealed, record_files
from rocstar.engine.record.json_record import RecordError, Verdict, to_record
from rocstar.engine.record.reading import read_records, write_records
from rocstar.engine.record.step_file import MOST_FAMILIES, ROW, FrameFile, Judged, StepFile, complete_frames
from rocstar.engine.types import Span, Trajectory, TrajectoryTimes, TurnTimes
from tests.fakes.trajectories import plain_trajectory

ABOUT = {"recipe": "r"}
NEW_COLUMNS = {2: ("family", "began", "seconds", "writing_s", "tools_s", "branch"), 3: ("branch",)}
DROPPED = Verdict(bucket="dropped_negative", penalty_error=0.0, penalty_format=1.0, advantage=None)
FAILED = Verdict(bucket="failed", penalty_error=None, penalty_format=None, advantage=None)


def kept(advantage: Any) -> Verdict:
    return Verdict(bucket="kept", penalty_error=0.5, penalty_format=0.25, advantage=advantage)


def attempts(num: int, task: str = "t") -> list[Trajectory]:
    return [plain_trajectory(logprobs=[-0.5, -0.25 * k], sibling=k, task=task) for k in range(num)]


def sealed(path: Path, judged: list[tuple[Trajectory, Verdict]]) -> StepFile:
    with FrameFile(path, ABOUT) as file:
        places = file.append([encode_frame(t, ["p", "a"]) for t, _ in judged])
        rows = [
            Judged(trajectory=t, verdict=v, num_answers=k, place=place)
            for k, ((t, v), place) in enumerate(zip(judged, places, strict=True))
        ]
        file.seal(rows[::-1], stage="one")
    return StepFile(path)


def test_any_one_trajectory_is_opened_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.columns"
    made = [*attempts(3), *attempts(2, "a task of another name " * 4)]
    verdicts = [kept(0.1 + 0.2), DROPPED, kept([0.1, -0.2]), FAILED, kept(-1.0)]
    step = sealed(path, list(zip(made, verdicts, strict=True)))
    for k, (t, verdict) in enumerate(zip(made, verdicts, strict=True)):
        row = step.find(t.task.id, t.key.sibling)
        assert row == len(made) - 1 - k, "rows stand as the verdicts came, frames as they were written"
        assert (step.trajectory(row), step.verdict(row)) == (t, verdict)
        expected = to_record(t, verdict, stage="one", num_answers=k, decode=lambda ids: "pa"[ids[0] != 7])
        assert step.record(row) == expected
    assert step.find("t", 3) is None and step.find("u", 0) is None
    assert list(step.rows["kept"]) == [True, False, True, False, True]
    assert list(step.rows["tokens"]) == [3] * 5 and list(step.rows["policy_tokens"]) == [2] * 5
    assert np.isnan(step.rows["penalty_error"]).tolist() == [False, True, False, False, False]
    assert [r["id"] for r in read_records(path)] == [str(t.key) for t in made[::-1]]


TIMES = TrajectoryTimes(
    began=1000.0,
    ended_s=9.5,
    turns=(
        TurnTimes(written=Span(0.0, 2.0), calls=(Span(2.0, 5.0), None, Span(3.0, 6.0))),
        TurnTimes(written=Span(7.0, 9.0)),
    ),
)


def test_an_index_has_families_and_times(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.columns"
    first, second = attempts(2)
    first = replace(first, times=TIMES, task=replace(first.task, source="gcd"))
    step = sealed(path, [(first, DROPPED), (second, DROPPED)])
    of_first, of_second = step.find("t", 0), step.find("t", 1)
    assert [step.families[step.rows["family"][row]] for row in (of_first, of_second)] == ["gcd", "s"]
    told = step.rows[of_first][["began", "seconds", "writing_s", "tools_s"]].tolist()
    assert told == (1000.0, 9.5, 4.0, 4.0), "calls that ran together count once"
    assert np.isnan(step.rows["seconds"][of_second])
    assert step.trajectory(of_first or 0).times == TIMES


def test_many_families_are_none(tmp_path: Path) -> None:
    made = enumerate(attempts(MOST_FAMILIES + 1))
    rows = [(replace(t, task=replace(t.task, source=f"of {k}")), DROPPED) for k, t in made]
    step = sealed(tmp_path / "step_000001.columns", rows)
    assert step.families == [""] and not step.rows["family"].any()


@pytest.mark.parametrize("version", [2, 3])
def test_an_index_of_an_earlier_version_is_still_read(tmp_path: Path, version: int) -> None:
    """Version 2 had no families and no times, version 3 no branches."""
    path = tmp_path / "step_000001.columns"
    made = attempts(2)
    new = sealed(path, [(made[0], kept([0.1, -0.2])), (made[1], DROPPED)])
    names = [name for name in ROW.names or () if name not in NEW_COLUMNS[version]]
    old = np.zeros(2, [(name, ROW[name]) for name in names])
    for name in names:
        old[name] = new.rows[name]
    about = f'{{"v":{version},"stage":"one","buckets":["dropped_negative","kept"],"rows":2,"advantages":2}}'.encode()
    head = struct.pack("<8sI", b"rcsIndx\n", len(about)) + about
    path.with_suffix(".index").write_bytes(head + old.tobytes() + np.array([0.1, -0.2]).tobytes())
    step = StepFile(path)
    assert [step.record(row) for row in range(2)] == [new.record(row) for row in range(2)]
    assert step.families == [""] and np.isnan(step.rows["seconds"]).all()
    assert step.rows["branch"].tolist() == [b"", b""]


def test_without_its_index_a_file_is_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "step_000002.columns"
    with FrameFile(path, ABOUT) as file:
        file.append([encode_frame(t) for t in attempts(2)])
    write_records(tmp_path / "step_000001.jsonl", [])
    assert not is_sealed(path)
    assert record_files(tmp_path) == {1: tmp_path / "step_000001.jsonl"}
    with pytest.raises(RecordError, match="not finished"):
        StepFile(path)
    assert len(list(complete_frames(path, ABOUT))) == 2


@pytest.mark.parametrize("lost", [1, HEAD.size, 60])
def test_a_torn_end_costs_what_was_being_written_and_no_more(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "step_000001.columns"
    made = attempts(4)
    with FrameFile(path, ABOUT) as file:
        file.append([encode_frame(t) for t in made[:3]])
    with path.open("r+b") as torn:
        torn.truncate(path.stat().st_size - lost)
    with FrameFile(path, ABOUT) as file:
        assert len(file.places) == 2
        file.append([encode_frame(made[3])])
    found = [decode_frame(place.read()).trajectory for place in complete_frames(path, ABOUT)]
    assert found == [made[0], made[1], made[3]]


def test_what_another_recipe_wrote_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.columns"
    sealed(path, [(t, DROPPED) for t in attempts(2)])
    assert not list(complete_frames(path, {"recipe": "other"}))
    with FrameFile(path, {"recipe": "other"}) as file:
        assert not file.places
    assert not is_sealed(path), "rows of the former would show into the new one"


def test_a_trajectory_of_another_steps_file_is_brought_along(tmp_path: Path) -> None:
    early, late = attempts(2)
    with FrameFile(tmp_path / "step_000001.columns", ABOUT) as first:
        (abroad,) = first.append([encode_frame(early, ["p", "a"])])
    path = tmp_path / "step_000002.columns"
    with FrameFile(path, ABOUT) as file:
        (here,) = file.append([encode_frame(late, ["p", "a"])])
        rows = [
            Judged(trajectory=t, verdict=DROPPED, num_answers=0, place=place)
            for t, place in ((late, here), (early, abroad))
        ]
        file.seal(rows, stage="one")
    (tmp_path / "step_000001.columns").unlink()
    step = StepFile(path)
    assert [step.trajectory(row) for row in range(2)] == [late, early]


def test_a_damaged_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.columns"
    sealed(path, [(t, DROPPED) for t in attempts(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"abc")
    with pytest.raises(RecordError, match=r"step_000001.columns: trajectory \d: the frame is damaged"):
        list(read_records(path))
    path.write_bytes(whole[:-3])
    with pytest.raises(RecordError, match="ends inside"):
        list(read_records(path))
    index = path.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(RecordError, match="rows"):
        StepFile(path)
    index.write_bytes(b"something else, and longer than a head is")
    with pytest.raises(RecordError, match="not records of version 2"):
        StepFile(path)


def test_a_file_whose_head_cannot_be_written_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: FrameFile, begin: int | None) -> None:
        opened.append(file._file)
        raise OSError(errno.ENOSPC, "No space left on device")

    opened: list[Any] = []
    monkeypatch.setattr(FrameFile, "_settle", full)
    with pytest.raises(OSError, match="No space"):
        FrameFile(tmp_path / "step_000001.columns", {})
    assert opened[0].closed
