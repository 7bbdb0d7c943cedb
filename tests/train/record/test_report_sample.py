"""Which trajectories the report shows: some of every kind, the same each time, whatever the run's size."""

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.reading.view.report import write_report
from rocstar.train.record.report import sample as report_sample
from rocstar.train.record.report.sample import Notes, ReportSample, choose, end_steps, kind_of, sample

from ...needs import modules

MakeRecord = Callable[..., dict[str, Any]]


def write(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def test_ten_trajectories_of_every_kind_from_both_ends(run_dir: Path) -> None:
    found = sample(run_dir)
    records, notes = found.records, found.notes
    assert not notes
    assert [r["step"] for r in records] == [1] * 5 + [60] * 5
    kinds = ["kept correct", "dropped_positive", "kept wrong", "dropped_negative", "no_signal"]
    assert [kind_of(r) for r in records] == kinds * 2


def test_a_run_of_one_step_fills_the_ten_from_it(tmp_path: Path, record: MakeRecord) -> None:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    (folder / "step_9.jsonl").write_text("".join(json.dumps(record(9, i)) + "\n" for i in range(14)))
    assert len(sample(tmp_path).records) == 10
    (folder / "step_10.jsonl").write_text(json.dumps(record(10, 0)) + "\n")
    assert [r["step"] for r in sample(tmp_path).records] == [9] * 9 + [10], "10 comes after 9"


def test_one_file_of_many_steps_gives_its_ends(tmp_path: Path, record: MakeRecord) -> None:
    (tmp_path / "trajectories").mkdir()
    lines = [json.dumps(record(step, i)) for step in (3, 4, 5, 4) for i in range(6)]
    (tmp_path / "trajectories" / "all.jsonl").write_text("\n".join(lines) + "\n")
    assert [r["step"] for r in sample(tmp_path).records] == [3] * 5 + [5] * 5


def test_what_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: MakeRecord
) -> None:
    (tmp_path / "trajectories").mkdir()
    path = tmp_path / "trajectories" / "step_1.jsonl"
    path.write_text('not json\n{"v": 2}\n' + json.dumps(record(1, 0)) + "\n")
    (tmp_path / "trajectories" / "step_2.jsonl.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    found = sample(tmp_path)
    records, notes = found.records, found.notes
    assert len(records) == 1
    assert notes == [
        "step_1.jsonl, line 1: not a trajectory record of version 1, left out",
        "step_1.jsonl, line 2: not a trajectory record of version 1, left out",
        "step_2.jsonl.zst is compressed; to read it: pip install zstandard",
    ]


def test_compressed_trajectories_are_read(tmp_path: Path, record: MakeRecord) -> None:
    (zstandard,) = modules("zstandard")
    (tmp_path / "trajectories").mkdir()
    data = zstandard.ZstdCompressor().compress(json.dumps(record(4, 0)).encode() + b"\n")
    path = tmp_path / "trajectories" / "step_4.jsonl.zst"
    path.write_bytes(data)
    assert sample(tmp_path) == ReportSample(shown=[((path, 1), record(4, 0))], notes=[])
    path.write_bytes(b"no such frame")
    found = sample(tmp_path)
    records, notes = found.records, found.notes
    assert not records
    assert "the rest is left out" in notes[0]


def test_within_a_kind_errors_and_clean_ones_alternate(tmp_path: Path, record: MakeRecord) -> None:
    records = [record(1, i, turns=[]) for i in range(6)] + [record(1, i) for i in range(6, 8)]
    write(tmp_path / "trajectories" / "step_1.jsonl", records)
    chosen = sample(tmp_path, 4).records
    assert [bool(r["turns"]) for r in chosen] == [True, False, True, False]


def test_most_are_of_different_tasks(tmp_path: Path, record: MakeRecord) -> None:
    """Groups of 32 siblings lie one behind the other in a file."""
    tasks = [{"id": f"t{k}", "source": "s", "question": "q", "answer": "1"} for k in range(12)]
    records = (record(1, i, id=f"{t['id']}/{i}", task=t) for t in tasks for i in range(32))
    write(tmp_path / "trajectories" / "step_1.jsonl", records)
    chosen = sample(tmp_path).records
    assert len({r["task"]["id"] for r in chosen}) >= 6


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path, record: MakeRecord) -> None:
    """Groups are written as they finish, which no seed decides."""
    records = [record(1, i, reward=float(i % 2)) for i in range(50)]
    for name, order in (("a", records), ("b", records[::-1])):
        (tmp_path / name).mkdir(exist_ok=True)
        write(tmp_path / name / "trajectories" / "step_1.jsonl", order)
    assert sample(tmp_path / "a").records == sample(tmp_path / "b").records


def test_bad_lines_are_told_once_and_counted(tmp_path: Path, record: MakeRecord) -> None:
    path = write(tmp_path / "trajectories" / "step_1.jsonl", [record(1, 0)])
    deep = "[" * 100_000
    path.write_text("torn\n" * 700 + deep + "\n" + '{"v": 1, "step": []}\n' + path.read_text())
    found = sample(tmp_path)
    records, notes = found.records, found.notes
    assert len(records) == 1 and len(notes) == 6 and notes[-1] == "and 697 more"


def test_kinds_that_nobody_knows_are_one_kind(tmp_path: Path, record: MakeRecord) -> None:
    """A file of another version cannot make the report hold as many places as it has words."""
    records = (record(1, i, decision={"kept": False, "reason": f"reason {i}"}) for i in range(100))
    path = write(tmp_path / "trajectories" / "step_1.jsonl", records)
    first, last = end_steps([path], 10, Notes())
    assert sum(map(len, first.values())) == 10 == len(choose(first, 10)) and not last


# ---- a run of any size ----


def long_run(folder: Path, record: MakeRecord, times: int) -> Path:
    """Two steps of 40 * `times` trajectories, of 2,000 tokens each."""
    tokens = {"ids": list(range(2000)), "logprobs": [-0.123456789] * 2000}
    kinds = ("kept", "no_signal", "dropped_negative", "dropped_positive")
    for step in (1, 2):
        records = (
            record(step, i, reason=kinds[i % 4], reward=float(i % 2), **tokens) for i in range(40 * times)
        )
        write(folder / "trajectories" / f"step_{step}.jsonl", records)
    row = {"step": 1, "stage": "rl", "phase": "rl", "time_s": 1.0, "reward/mean": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_memory_does_not_grow_with_the_run(tmp_path: Path, record: MakeRecord) -> None:
    peaks = []
    for times in (1, 4):
        (tmp_path / str(times)).mkdir()
        run = long_run(tmp_path / str(times), record, times)
        write_report(run)  # imports and caches are not the run's
        tracemalloc.start()
        try:
            write_report(run)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], f"{peaks} bytes for 1 and 4 times as many trajectories"


@pytest.mark.parametrize("times", [1, 8])
def test_every_line_is_parsed_once_and_few_are_kept(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    parsed, most = 0, 0
    plain, keep = report_sample._parsed, report_sample._keep

    def counted(text: str) -> Any:
        nonlocal parsed
        parsed += 1
        return plain(text)

    def looked_at(step: report_sample.Step, *rest: Any) -> None:
        nonlocal most
        keep(step, *rest)
        most = max(most, sum(map(len, step.values())))

    monkeypatch.setattr(report_sample, "_parsed", counted)
    monkeypatch.setattr(report_sample, "_keep", looked_at)
    found = sample(long_run(tmp_path, record, times))
    records, notes = found.records, found.notes
    assert len(records) == 10 and not notes
    assert parsed == 2 * 40 * times + 10
    assert most <= 2 * len(report_sample.BUCKETS) * 10
