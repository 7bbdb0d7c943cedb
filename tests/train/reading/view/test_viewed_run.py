"""What is said of a run at a glance."""

import json
from pathlib import Path

from rocstar.train.reading.view.viewed_run import ViewedRun
from rocstar.train.record.run_directory import LOCK, claim


def test_a_run_that_nobody_works_on_is_not_running(tmp_path: Path) -> None:
    run = ViewedRun("mine", tmp_path / "mine")
    with claim(run.path, resume=False):
        (run.path / "manifest.json").write_text(json.dumps({"v": 1, "starts": [{"status": "running"}]}))
        assert run.status() == "running"
    assert run.status() == "killed"
    (run.path / LOCK).unlink()
    assert run.status() == "killed"
