"""A step's loss is in its records and the checkpoint before it; nothing is rolled out again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import export_lines

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def copied(workshop: Any, finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may spoil, its records as lines."""
    directory = tmp_path / "copied"
    shutil.copytree(finished, directory, ignore=shutil.ignore_patterns("trajectories"))
    export_lines(finished / "trajectories", directory / "trajectories")
    return directory


def replayed(workshop: Any, directory: Path, step: int) -> tuple[int, dict[str, Any]]:
    ended = workshop.main("replay", str(directory), f"--step={step}", "--json")
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.parametrize(("step", "saved", "relearned"), [(1, "step_0", []), (3, "step_0", [1, 2]), (4, "step_3", [])])
def test_the_loss_of_a_step_comes_out_again(
    workshop: Any, finished: Path, read_rows: Rows, step: int, saved: str, relearned: list[int]
) -> None:
    """Step 3 begins a stage with a fresh optimizer; steps 1 and 2 were learned with the one before."""
    code, result = replayed(workshop, finished, step)
    row = read_rows(finished, "rl")[step - 1]
    assert code == 0 and result["agrees"]
    assert Path(result["checkpoint"]).name == saved and result["relearned_steps"] == relearned
    assert result["trajectories"] == row["ledger/kept"]
    assert result["logged_loss"] == row.get("loss/policy")
    if result["loss"] is not None:
        assert result["loss"] == pytest.approx(row["loss/policy"], abs=1e-7)


def test_text_names_the_checkpoint_and_both_losses_and_nothing_is_written(
    workshop: Any, finished: Path, read_rows: Rows
) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        stats = {path: path.stat() for path in finished.rglob("*")}
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}

    before = state()
    ended = workshop.succeed("replay", str(finished), "--step", "3")
    assert state() == before
    assert "checkpoints/step_0, steps 1 to 2 learned again" in ended.stdout
    assert str(read_rows(finished, "rl")[2].get("loss/policy", "no update")) in ended.stdout


def first_kept(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first kept record of a file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(next(r for r in records if r["decision"]["kept"]))
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def step_with_loss(rows: list[dict[str, Any]]) -> int:
    return next(int(row["step"]) for row in rows if row.get("loss/policy"))


def test_a_changed_record_shows(workshop: Any, copied: Path, read_rows: Rows) -> None:
    step = step_with_loss(read_rows(copied, "rl"))
    path = copied / "trajectories" / f"step_{step:06d}.jsonl"
    first_kept(path, lambda record: record.update(advantage=record["advantage"] + 1.0))
    code, result = replayed(workshop, copied, step)
    assert code == 1 and not result["agrees"] and result["difference"] > 1e-3


# ---- what cannot be replayed: exit 2, one line ----


def refused(workshop: Any, *arguments: str) -> str:
    ended = workshop.main("replay", *arguments)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith("rocstar: ") and len(ended.stderr.splitlines()) == 1
    return str(ended.stderr)


def test_a_folder_or_step_that_does_not_exist(workshop: Any, finished: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        assert "not a run directory" in refused(workshop, str(folder), "--step=1")
    assert "no RL step 5; its steps are 1 to 4" in refused(workshop, str(finished), "--step=5")
    assert "'--fast' is not known" in refused(workshop, str(finished), "--step=1", "--fast")


def test_no_checkpoint_from_before(workshop: Any, copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints" / "step_0")
    assert "no checkpoint from before step 2" in refused(workshop, str(copied), "--step=2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": {"reward": float("nan"), "method": "strict"}}, "reward must be a finite number, got nan"),
        ({"advantage": float("nan")}, "advantage nan"),
        ({"advantage": None}, "advantage None"),
        ({"advantage": [1.0, None]}, "advantage [1.0, None]"),
        ({"seed": None}, "not whole"),
    ],
)
def test_a_record_that_is_not_whole(
    workshop: Any, copied: Path, read_rows: Rows, change: dict[str, Any], words: str
) -> None:
    step = step_with_loss(read_rows(copied, "rl"))
    path = copied / "trajectories" / f"step_{step:06d}.jsonl"
    first_kept(path, lambda record: record.update(change))
    assert words in refused(workshop, str(copied), f"--step={step}")


def test_a_step_without_its_records(workshop: Any, copied: Path) -> None:
    (copied / "trajectories" / "step_000001.jsonl").unlink()
    assert "step 1 cannot be learned again" in refused(workshop, str(copied), "--step=2")
