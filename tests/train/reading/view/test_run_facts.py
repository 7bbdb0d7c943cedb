"""Facts of a run: its state, progress, recipe and starts, and the values of its first and last step."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.extras import shell_command
from rocstar.train.reading.view.run_facts import KILLED, head_facts, metrics_of, progress_of, summary, tiles_of
from rocstar.train.reading.view.viewed_run import ViewedRun
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, to_toml
from rocstar.train.record.manifest import ConsoleLog, recorded
from rocstar.train.record.metrics import is_zero_if_absent, read_metrics
from rocstar.train.record.run_directory import CONSOLE_LOG


def row(step: int, phase: str = "rl", **metrics: float | None) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {"step": step, "stage": phase, "phase": phase, "time_s": 1.0} | named


def cells_of(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """First and last value by metric, as the page shows them."""
    return {one["name"]: (one["first"], one["last"]) for one in metrics_of(rows)}


def test_a_reason_that_nobody_ended_for_in_the_last_step_is_zero_and_the_shares_add_up() -> None:
    rows = [
        row(1, finish__answered=0.953, finish__max_tokens=0.047, tool__status__error=3.0, tool__calls_mean=1.0),
        row(2, finish__answered=0.961, finish__max_turns=0.039, failed__deadline=2.0, tool__calls_mean=1.0),
    ]
    cells = cells_of(rows)
    assert cells["finish/max_tokens"] == ("4.7%", "0.0%") and cells["finish/max_turns"] == ("0.0%", "3.9%")
    assert cells["tool/status/error"] == ("3.00", "0") and cells["failed/deadline"] == ("0", "2.00")
    for end in (0, 1):
        shares = [float(ends[end][:-1]) for name, ends in cells.items() if name.startswith("finish/")]
        assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))


def test_what_the_last_step_did_not_measure_is_none() -> None:
    """No update was made in it, so it has no loss; zero would be a lie."""
    cells = cells_of([row(1, loss__policy=0.5, optim__lr=1e-3), row(2, optim__lr=None)])
    assert cells["loss/policy"] == ("0.50", "none") and cells["optim/lr"] == ("0.001", "not finite")


def test_phases_and_sets_have_their_own_rows() -> None:
    rows = [
        row(5, "sft", loss__sft=3.0),
        row(0, "eval") | {"eval/heldout/avg@4": 0.2, "eval/heldout/failed": 1.0},
        row(1, reward__mean=0.3),
        row(1, "eval", difficulty__tasks_seen=8.0),
        row(2, reward__mean=0.4),
        row(2, "eval") | {"eval/easy/avg@4": 0.9},
        row(2, "eval") | {"eval/heldout/avg@4": 0.6},
    ]
    cells = cells_of(rows)
    assert cells["eval/heldout/avg@4"] == ("0.20", "0.60") and cells["eval/easy/avg@4"] == ("0.90", "0.90")
    assert cells["eval/heldout/failed"] == ("1.00", "none")
    assert cells["loss/sft"] == ("3.00", "3.00") and cells["reward/mean"] == ("0.30", "0.40")
    assert cells["difficulty/tasks_seen"] == ("8.00", "8.00")


def test_only_counts_of_what_may_not_happen_are_zero_if_absent() -> None:
    assert is_zero_if_absent("finish/max_tokens") and is_zero_if_absent("failed/deadline")
    assert not is_zero_if_absent("reward/mean") and not is_zero_if_absent("engine/kv_peak/a")
    assert not is_zero_if_absent("unknown")


def test_the_headline_has_evaluations_and_sums(run_dir: Path) -> None:
    found = [tuple(tile.values()) for tile in tiles_of(read_metrics(run_dir / "metrics.jsonl"))]
    assert found[0] == ("heldout avg@4 on 64 tasks", "0.29 → 0.95", "[0.21, 0.35] → [0.87, 1.00], 95% interval")
    assert found[1][:2] == ("easy avg@4 on 64 tasks", "0.21 → 0.88")
    assert ("trajectories generated", "3,840") in [one[:2] for one in found]
    assert found[-1][2] == "60 RL steps, 2 stages"
    (tile, _) = tiles_of([row(0, "eval") | {"eval/aime/avg@8": 0.4}])
    assert (tile["name"], tile["value"]) == ("aime avg@8", "0.40"), "one evaluation is no before and after"
    assert tiles_of([]) == []


def start_of(run: Path, **changes: Any) -> None:
    """Write manifest.json with a start of this test's process, changed."""
    with recorded(run, Recipe(), world_size=1):
        pass
    start = json.loads((run / "manifest.json").read_text())["starts"][-1]
    (run / "manifest.json").write_text(json.dumps({"v": 1, "starts": [start, start | changes]}))


def test_each_start_has_what_is_needed_to_reproduce_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rocstar", "train", "recipes/my run.toml"])
    changes = {"started": "2026-01-31T12:00:00+00:00", "ended": "2026-01-31T12:03:07+00:00"}
    changes |= {"commit": "0123456789abcdef", "dirty": True, "world_size": 4, "gpus": ["MI300X"] * 2}
    start_of(tmp_path, **changes)
    run = ViewedRun("run", tmp_path)
    first, second = head_facts(run)["starts"]
    assert first["machine"].endswith("no GPU, 1 process") and "Python" in first["versions"]
    assert second["machine"].endswith("MI300X, MI300X, 4 processes")
    assert (second["end"], second["commit"]) == ("complete after 3m07s", "0123456789ab with changes")
    assert second["command"] == shell_command("train", "recipes/my run.toml")
    found = summary(run)
    assert (found["recipe"], found["kind"], found["date"]) == ("my run", "training", first["started"])


@pytest.mark.parametrize(("manifest", "said"), [("torn", "is damaged"), ('{"v": 1, "starts": [{}]}', "")])
def test_a_manifest_may_be_damaged_or_empty(tmp_path: Path, manifest: str, said: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    assert said in head_facts(ViewedRun("run", tmp_path))["problem"]
    assert summary(ViewedRun("run", tmp_path))["kind"] == "recording"


def test_a_recipe_differs_from_the_shipped_one_of_its_name_or_from_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("quickstart", ["--rl.lr=0.5"])
    (tmp_path / "config.toml").write_text(to_toml(recipe))
    monkeypatch.setattr("sys.argv", ["rocstar", "train", "quickstart", "--rl.lr=0.5"])
    start_of(tmp_path)
    found = head_facts(ViewedRun("run", tmp_path))
    assert found["base"] == "quickstart"
    assert [row[:2] for row in found["differences"]] == [["rl.lr", "0.5"]]
    assert ["rl.lr", "0.5"] in found["fields"]
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "config.toml").write_text('[run]\nname = "mine"\n[rl]\nlr = 1e-6\ngroup_size = 4\n')
    found = head_facts(ViewedRun("run", tmp_path))
    assert found["base"] == "" and ["rl.group_size", "4", "16"] in found["differences"]
    assert "rl.lr" not in [row[0] for row in found["differences"]]


CONFIG = {"sft": {"steps": 100}, "stages": [{"steps": 20}, {"steps": 30}]}


def timed(phase: str, *steps: int) -> list[dict[str, Any]]:
    """Rows of three seconds a step."""
    return [row(step, phase) | {"time_s": 3.0 * step} for step in steps]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ("cold start", 0, 100, None)),
        (timed("sft", 10, 20), ("cold start", 20, 100, 240.0)),
        (timed("sft", 90, 100), ("RL", 0, 50, None)),
        (timed("sft", 100) + timed("rl", 1), ("RL", 1, 50, None)),
        (timed("sft", 100) + timed("rl", 4, 5, 6), ("RL", 6, 50, 132.0)),
    ],
)
def test_a_running_run_has_a_phase_and_the_time_that_remains(
    rows: list[dict[str, Any]], expected: tuple[Any, ...]
) -> None:
    found = progress_of(CONFIG, rows, [])
    assert found is not None
    assert tuple(found[key] for key in ("phase", "step", "steps", "left_s")) == expected


def test_the_work_after_the_last_step_is_named() -> None:
    step = "2026-11-27T05:17:03Z step 6/50  reward 0.90  tool errors 3%"
    work = "evaluation heldout: 28 of 64 tasks, 12s, about 28s left"
    for log, expected in (([step], ""), ([step, f"2026-11-27T05:17:04Z {work}"], work)):
        found = progress_of(CONFIG, timed("rl", 6), log)
        assert found is not None and found["work"] == expected
    found = progress_of(CONFIG, timed("rl", 6), [f"2026-11-27T05:17:02Z {work}", step])
    assert found is not None and found["work"] == "", "the evaluation is over"
    assert progress_of({}, [], []) is None


def test_a_run_says_why_it_ended_and_its_log_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["rocstar", "train", "x.toml", "--engine.api_key=hunter2"]
    monkeypatch.setattr("sys.argv", argv)
    start_of(tmp_path, status="failed")
    errors = {"no disk. Free some.": ConfigError("no disk. Free some."), "ValueError: bad": ValueError("bad")}
    for reason, error in errors.items():
        with contextlib.suppress(type(error)), ConsoleLog(tmp_path):
            raise error
        run = ViewedRun("run", tmp_path)
        assert head_facts(run)["reason"] == reason
    start_of(tmp_path, status="running")
    assert head_facts(run)["reason"] == KILLED, "no process has its lock"
    log = tmp_path / CONSOLE_LOG
    assert "hunter2" not in log.read_text() and "--engine.api_key=***" in run.log()[0]
    log.write_text(f"2026-11-22T15:23:10Z started: {' '.join(argv)} (process 1)\n")  # as 0.2 wrote it
    assert "hunter2" not in run.log()[0] and "--engine.api_key=***" in run.log()[0]
