"""Hidden sets: their records are marked, and no file for publication has their texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocstar.engine.types import HIDDEN
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder
from rocstar.train.reading.view.trajectory_filter import sample_listing
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun

from .eval_folders import MadeSet, make_folder


def test_numbers_name_no_text_of_a_hidden_set(tmp_path: Path) -> None:
    """A letter says nothing; what else was boxed may repeat an option, and is a digest."""
    sets = [
        MadeSet(name=name, num=12, k=4, hidden=name == "secret", text=" g", answered=lambda _, k: k < 2)
        for name in ("secret", "own")
    ]
    folder = make_folder(tmp_path / "both", *sets)
    results = json.loads((folder / "results.json").read_text())["sets"]
    boxed = {
        name: {a for question in results[name]["questions"].values() for a in question["answers"] if a}
        for name in results
    }
    assert all(answer.startswith("sha256:") for answer in boxed["secret"])
    assert "23 g" in boxed["own"] and len(boxed["secret"]) == len(boxed["own"])
    assert results["secret"]["failed_left_out"]["maj_at"], "equal answers vote alike"


def test_who_commits_the_folder_keeps_the_attempts_back(tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path)
    for name in ("gpqa_diamond", "other", "gpqa_diamond"):
        folder.withhold(name)
    lines = (tmp_path / "attempts" / ".gitignore").read_text().splitlines()
    assert lines[0].startswith("#") and lines[1:] == ["gpqa_diamond.jsonl*", "other.jsonl*"]


def test_a_report_of_a_run_leaves_hidden_tasks_out(tmp_path: Path, record: Callable[..., dict[str, Any]]) -> None:
    lines = [record(1, k) for k in range(4)]
    for line in lines[::2]:
        line["task"]["meta"] = {HIDDEN: True}
    (tmp_path / "trajectories").mkdir()
    path = tmp_path / "trajectories" / "step_1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    listing = ViewedRun("run", tmp_path).listing(STEPS)
    assert listing is not None and [row for _, row in sample_listing(listing, 10)] in ([1, 3], [3, 1])
