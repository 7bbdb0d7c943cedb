"""Which trajectories a report has: some of every kind, the same each time, whatever the run's size."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rocstar.train.reading.view.trajectory_filter import BUCKETS, Step, choose, sample_listing
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun

MakeRecord = Callable[..., dict[str, Any]]


def sample(run: Path, most: int = 10) -> list[Mapping[str, Any]]:
    """The records of the sample."""
    listing = ViewedRun("run", run).listing(STEPS)
    assert listing is not None
    return [listing.opened(file).record(row) for file, row in sample_listing(listing, most)]


def write(run: Path, step: int, records: Iterable[dict[str, Any]]) -> None:
    (run / "trajectories").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "trajectories" / f"step_{step}.jsonl").write_text(lines)


def test_ten_trajectories_of_every_kind_from_both_ends(run_dir: Path) -> None:
    records = sample(run_dir)
    assert [r["step"] for r in records] == [1] * 5 + [60] * 5
    kinds = ["kept", "dropped_positive", "kept", "dropped_negative", "no_signal"]
    assert [r["decision"]["reason"] for r in records] == kinds * 2
    assert [r["outcome"]["reward"] for r in records[:3]] == [1.0, 1.0, 0.0]


def test_a_step_with_few_is_filled_from_the_other(tmp_path: Path, record: MakeRecord) -> None:
    write(tmp_path, 9, (record(9, i) for i in range(14)))
    assert len(sample(tmp_path)) == 10
    write(tmp_path, 10, [record(10, 0)])
    assert [r["step"] for r in sample(tmp_path)] == [9] * 9 + [10], "10 comes after 9"


def test_within_a_kind_errors_and_clean_ones_alternate(tmp_path: Path, record: MakeRecord) -> None:
    records = [record(1, i, turns=[]) for i in range(6)] + [record(1, i) for i in range(6, 8)]
    write(tmp_path, 1, records)
    assert [bool(r["turns"]) for r in sample(tmp_path, 4)] == [True, False, True, False]


def test_most_are_of_different_tasks(tmp_path: Path, record: MakeRecord) -> None:
    """Groups of 32 siblings lie one behind the other in a file."""
    tasks = [{"id": f"t{k}", "source": "s", "question": "q", "answer": "1"} for k in range(12)]
    write(tmp_path, 1, (record(1, i, id=f"{t['id']}/{i}", task=t) for t in tasks for i in range(32)))
    chosen = sample(tmp_path)
    assert len({r["task"]["id"] for r in chosen}) >= 6 and sample(tmp_path) == chosen


def test_unknown_kinds_are_one_kind() -> None:
    step: Step = {(kind, False): [(bytes([n]), 0, n, n)] for n, kind in enumerate((*BUCKETS, "other"))}
    assert [row for _, _, row, _ in choose(step, 10)] == list(range(7))
