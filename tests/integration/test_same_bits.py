"""Same seed, same bits: a whole run on two torch threads, quiet, and with every core taken."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hogs import cores, taken

from rocstar.train.evaluation import during_training
from tests.fakes.json_lines import read_folder

Rows = Callable[..., list[dict[str, Any]]]
OPTIONS = (
    "--run.threads=2",
    "--engine.deterministic=true",
    "--model.scratch.hidden_size=96",  # large enough that torch gives work to its second thread
    "--rl.tokens_per_microbatch=4096",
    "--sft.steps=20",
    "--sft.batch_size=32",
    "--stages.1.steps=1",
    "--stages.1.filter_rollouts=0",
    "--rl.entropy_target=9",
    "--rl.entropy_step=0.01",
)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "time_s" and not name.startswith("time/")}


def records(directory: Path) -> list[dict[str, Any]]:
    """All of them, but when they happened."""
    read = read_folder(directory / "trajectories")
    return [{name: value for name, value in one.items() if name != "times"} for one in read]


@pytest.fixture(scope="session")
def quiet(workshop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the machine as it is."""
    directory = tmp_path_factory.mktemp("same_bits") / "quiet"
    workshop.succeed("train", "coin.toml", "--output-dir", str(directory), *OPTIONS)
    return directory


def test_weights_rows_and_records_are_those_of_the_quiet_machine(
    workshop: Any, quiet: Path, tmp_path: Path, read_rows: Rows
) -> None:
    busy = tmp_path / "busy"
    with taken(cores()):
        workshop.succeed("train", "coin.toml", "--output-dir", str(busy), *OPTIONS)
    runs = (quiet, busy)
    for step in (0, 3):
        files = [run / "checkpoints" / f"step_{step}" / "model.safetensors" for run in runs]
        assert files[0].read_bytes() == files[1].read_bytes(), f"weights of step {step}"
    rows = [[without_times(row) for row in read_rows(run)] for run in runs]
    assert rows[0] == rows[1]
    assert any(row.get("loss/policy") for row in rows[0]), "nothing was learned"
    assert rows[0][-2]["entropy/alpha"] > 0, "the state of the entropy term is not that of a beginning"
    assert records(quiet) == records(busy)


def test_the_measure_after_the_cold_start_changes_no_bit_of_the_run(
    workshop: Any, quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_rows: Rows
) -> None:
    monkeypatch.setattr(during_training, "SMOKE_TASKS", 0)
    workshop.succeed("train", "coin.toml", "--output-dir", str(tmp_path / "run"), *OPTIONS)
    measured, bare = ([without_times(row) for row in read_rows(run)] for run in (quiet, tmp_path / "run"))
    assert [row for row in measured if "sft/boxed" not in row] == bare != measured
    assert records(tmp_path / "run") == records(quiet)


def test_replay_gives_the_logged_loss_to_the_last_bit(workshop: Any, quiet: Path, tmp_path: Path) -> None:
    """The steps in between are learned again: only the first checkpoint is left."""
    run = tmp_path / "run"
    shutil.copytree(quiet, run)
    for saved in (run / "checkpoints").iterdir():
        if saved.name != "step_0":
            shutil.rmtree(saved)
    ended = workshop.main("replay", str(run), "--step=3", "--json")
    result = json.loads(ended.stdout)
    assert ended.returncode == 0 and result["difference"] == 0.0 and result["loss"] == result["logged_loss"]
