"""The list: every trajectory once, chosen and sorted by its numbers, from the index alone."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.reading import export_lines
from rocstar.engine.record.step_file import ROW, FrameFile
from rocstar.train.reading.view import listing as listing_module
from rocstar.train.reading.view.listing import LISTED, Listing
from rocstar.train.reading.view.trajectory_filter import filter_trajectories
from rocstar.train.reading.view.viewed_run import ViewedRun, records_of
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import records_file
from tests.fakes.json_lines import read_folder

from .view_runs import groups_of, write_step


def listed(run: Path) -> Listing:
    listing = Listing()
    listing.refresh(records_of(run))
    return listing


def test_the_list_says_what_the_records_say(viewed: Path) -> None:
    listing = listed(viewed)
    records = list(read_folder(viewed / "trajectories"))
    assert len(listing.rows) == len(records) == 24
    for at, record in enumerate(records):
        told = listing.row_as_json(at)
        assert (told["step"], told["sibling"], told["name"]) == (
            record["step"],
            record["sibling"],
            record["task"]["id"],
        )
        assert told["bucket"] == record["decision"]["reason"]
        assert told["reward"] == record["outcome"].get("reward")
        assert told["advantage"] == record["advantage"]
        assert told["tokens"] == len(record["ids"])
        assert listing.opened(int(listing.rows[at]["file"])).record(told["row"]) == record


def test_lines_are_listed_as_columns_are(viewed: Path, tmp_path: Path) -> None:
    export_lines(viewed / "trajectories", tmp_path)
    columns, lines = listed(viewed), listed(tmp_path)
    shown = columns.rows[~columns.rows["hidden"]]
    same = [n for n in LISTED.names or () if n not in ("row", "bucket")]
    for name in same:
        np.testing.assert_array_equal(lines.rows[name], shown[name], err_msg=name)
    assert [lines.buckets[b] for b in lines.rows["bucket"]] == [columns.buckets[b] for b in shown["bucket"]]


def test_an_attempt_that_is_being_written_is_left_out(tmp_path: Path, viewed: Path) -> None:
    (file, _) = export_lines(viewed / "trajectories", tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:-40])
    whole = data.count(b"\n")
    assert len(listed(file).rows) == whole - 1
    file.write_bytes(b'{"v": 1}\n' + data)
    listing = listed(file)
    assert not len(listing.rows) and f"{file}:1" in listing.problems[0]


@pytest.mark.parametrize(
    ("words", "sort", "holds"),
    [
        ("kept", "", lambda r: r["decision"]["kept"]),
        ("-kept correct", "", lambda r: not r["decision"]["kept"] and r["outcome"].get("reward") == 1.0),
        ("failed", "", lambda r: "failed" in r["outcome"]),
        ("dropped_positive", "", lambda r: r["decision"]["reason"] == "dropped_positive"),
        ("truncated step=2", "", lambda r: r["finish_reason"] == "max_tokens" and r["step"] == 2),
        ("errors>0 calls<=1", "", lambda r: [c["is_error"] for t in r["turns"] for c in t["calls"]] == [True]),
        ("GCD", "", lambda r: r["task"]["id"] == "gcd-1"),
        ("penalty>=0.5", "", lambda r: r["penalty"] is not None and sum(r["penalty"].values()) >= 0.5),
    ],
)
def test_a_filter_lets_through_what_holds(viewed: Path, words: str, sort: str, holds: object) -> None:
    listing = listed(viewed)
    records = list(read_folder(viewed / "trajectories"))
    found = filter_trajectories(listing, words, sort).tolist()
    assert found == [at for at, record in enumerate(records) if holds(record)]  # type: ignore[operator]
    assert found


@pytest.mark.parametrize("column", ["reward", "tokens", "name", "bucket", "verdict", "step", "penalty"])
def test_a_sort_turns_round_and_loses_nobody(viewed: Path, column: str) -> None:
    listing = listed(viewed)
    up, down = filter_trajectories(listing, "", column), filter_trajectories(listing, "", f"-{column}")
    assert sorted(up) == sorted(down) == list(range(24))
    if column == "reward":
        rewards = listing.rows["reward"][down]
        assert np.isnan(rewards[-2:]).all() and (np.diff(rewards[:-2]) <= 0).all()


@pytest.mark.parametrize(
    ("words", "sort", "why"),
    [
        ("colour>3", "", "'colour' is no number of a trajectory"),
        ("tokens>many", "", "'many' is no number"),
        ("", "colour", "no column 'colour'"),
        ("x" * 501, "", "at most 500 characters"),
    ],
)
def test_what_means_nothing_is_named(viewed: Path, words: str, sort: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        filter_trajectories(listed(viewed), words, sort)


def test_a_new_step_is_taken_in_and_what_was_read_is_not_read_again(viewed: Path, tmp_path: Path) -> None:
    write_step(tmp_path, 1, groups_of())
    listing = listed(tmp_path)
    assert not listing.refresh(records_of(tmp_path)) and listing.generation == 1
    write_step(tmp_path, 2, groups_of())
    assert listing.refresh(records_of(tmp_path)) and listing.generation == 2
    assert listing.rows["step"].tolist() == [1] * 12 + [2] * 12
    (tmp_path / "trajectories" / "step_000001.columns").unlink()
    assert listing.refresh(records_of(tmp_path)) and set(listing.rows["step"]) == {2}
    (tmp_path / "trajectories" / "step_000002.index").unlink()
    with pytest.raises(RecordError, match="is gone"):
        listing.opened(0)


@pytest.mark.parametrize("at_a_time", [1, 20])
def test_a_row_is_in_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    """Whether the files are there at once or come one by one."""

    class Records:
        buckets, families, rows = ["kept"], ["sums"], np.zeros(5000, ROW)

    monkeypatch.setattr(listing_module, "open_records", lambda path: Records)
    files = [tmp_path / f"step_{step:06}.jsonl" for step in range(20)]
    for file in files:
        file.touch()
    listing = Listing()
    tracemalloc.start()
    for number in range(at_a_time, len(files) + 1, at_a_time):
        listing.refresh(files[:number])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(listing.rows) == 100_000 and np.unique(listing.rows["file"]).tolist() == list(range(20))
    assert most < 1.3 * listing.rows.nbytes


def test_rows_that_somebody_looks_at_stay_as_they_are(tmp_path: Path) -> None:
    write_step(tmp_path, 1, groups_of())
    listing = listed(tmp_path)
    seen, copy = listing.rows, listing.rows.copy()
    write_step(tmp_path, 2, groups_of())
    listing.refresh(records_of(tmp_path))
    assert seen.tobytes() == copy.tobytes() == listing.rows[: len(copy)].tobytes()


def test_a_file_that_is_written_again_leaves_the_others_rows(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(tmp_path, step, groups_of())
    listing = listed(tmp_path)
    write_step(tmp_path, 2, groups_of()[:1])
    assert listing.refresh(records_of(tmp_path))
    assert listing.rows["step"].tolist() == [1] * 12 + [2] * 6 + [3] * 12
    assert listing.rows.tobytes() == listed(tmp_path).rows.tobytes()


def test_a_damaged_index_costs_its_step_alone(tmp_path: Path) -> None:
    for step in (1, 2):
        write_step(tmp_path, step, groups_of())
    index = tmp_path / "trajectories" / "step_000001.index"
    index.write_bytes(index.read_bytes()[:-9])
    listing = listed(tmp_path)
    assert set(listing.rows["step"]) == {2} and json.dumps(listing.problems).count("step_000001") == 1


def test_a_step_that_is_rolled_out_is_told_by_its_megabytes(tmp_path: Path) -> None:
    write_step(tmp_path, 1, groups_of())
    run = ViewedRun("run", tmp_path)
    assert run.growing() is None
    path = records_file(tmp_path, 2)
    with FrameFile(path, {}):
        pass
    assert run.growing() == {"step": 2, "bytes": path.stat().st_size}
    before = run.stamp()
    with path.open("ab") as file:
        file.write(b"x" * 1000)
    assert run.stamp() == before, "a group or two is no news"
    with path.open("ab") as file:
        file.write(b"x" * (1 << 20))
    assert run.stamp() != before
    write_step(tmp_path, 2, groups_of())
    assert run.growing() is None
