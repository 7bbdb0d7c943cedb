"""A whole recipe from nothing to its report, in miniature, with the real sandbox."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Scored
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.manifest import read_manifest, recipe_hash
from rocstar.train.record.metrics import check_names
from rocstar.train.record.run_directory import records_file
from rocstar.train.record.time_budget import PHASES

Rows = Callable[..., list[dict[str, Any]]]
BUCKETS = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed", "ended_early")


def test_the_run_directory_holds_what_the_design_lists(finished: Path) -> None:
    assert (finished / "report.html").stat().st_size > 10_000
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["step_0", "step_3", "step_4"]
    assert sorted(p.name for p in (finished / "trajectories").iterdir()) == [
        f"step_00000{k}.{part}" for k in (1, 2, 3, 4) for part in ("columns", "index", "r000.learned")
    ]


def test_the_resolved_recipe_loads_back_equal(workshop: Any, finished: Path) -> None:
    assert load_recipe(finished / "config.toml") == load_recipe(workshop.recipe)


def test_every_metric_is_listed_and_every_phase_logged(finished: Path, read_rows: Rows) -> None:
    rows = read_rows(finished)
    for row in rows:
        check_names(row.keys() - {"step", "stage", "phase", "time_s"})
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3, 4]
    evaluations = [row["step"] for row in rows if "eval/heldout/avg@2" in row]
    assert evaluations == [0, 4]
    assert [row["step"] for row in rows if "difficulty/tasks_seen" in row] == [2]
    (boxed,) = (row["sft/boxed"] for row in rows if "sft/boxed" in row)
    assert boxed > 0.5 and "greedy answers are in a box" in (finished / "logs" / "console.log").read_text()
    assert len([row for row in rows if row["phase"] == "sft"]) >= 50
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)


def test_the_ledger_and_the_time_budget_add_up(finished: Path, read_rows: Rows) -> None:
    for row in read_rows(finished, "rl"):
        assert sum(row[f"ledger/{bucket}"] for bucket in BUCKETS) == row["ledger/generated"] == 16
        assert math.fsum(row[f"time/{phase}"] for phase in PHASES) == pytest.approx(row["time/step"])
        assert row["groups/used"] + row["groups/no_signal"] == 2


def test_it_learns_from_real_tool_calls(finished: Path, read_rows: Rows) -> None:
    rows = read_rows(finished, "rl")
    assert any(row["loss/policy"] and row["optim/grad_norm"] > 0 for row in rows if "loss/policy" in row)
    assert any(row["tool/executed_share"] > 0 and row.get("tool/status/ok") for row in rows)
    assert rows[-1]["policy/version"] == sum("loss/policy" in row for row in rows)
    # One thread, one model: the log-probs of the rollout are those of the learner.
    assert all(abs(row["mismatch_kl/mean"]) < 1e-4 for row in rows if "mismatch_kl/mean" in row)


def test_records_hold_every_trajectory_of_the_step(finished: Path, read_rows: Rows) -> None:
    for row in read_rows(finished, "rl"):
        records = list(read_records(records_file(finished, row["step"])))
        assert len(records) == row["ledger/generated"]
        assert sum(r["decision"]["kept"] for r in records) == row["ledger/kept"]
        scored = [t.outcome.reward for t in map(from_record, records) if isinstance(t.outcome, Scored)]
        assert sum(scored) / len(scored) == pytest.approx(row["reward/mean"])
        assert all((r["advantage"] is not None) == r["decision"]["kept"] for r in records)


@pytest.mark.parametrize("step", [0, 4])
def test_every_attempt_of_an_evaluation_is_kept(finished: Path, read_rows: Rows, step: int) -> None:
    folder = finished / "evaluations" / f"step_{step:06d}"
    records = list(read_records(folder / "attempts" / "heldout.jsonl"))
    results = json.loads((folder / "results.json").read_text())
    assert [r["sibling"] for r in records] == [0, 1] * 4 and {r["step"] for r in records} == {step}
    assert {r["decision"]["reason"] for r in records} == {"evaluated"}
    rewards: dict[str, list[float]] = {}
    for trajectory in map(from_record, records):
        assert isinstance(trajectory.outcome, Scored)
        rewards.setdefault(trajectory.task.id, []).append(trajectory.outcome.reward)
    numbers = results["sets"]["heldout"]
    assert {name: question["rewards"] for name, question in numbers["questions"].items()} == rewards
    (row,) = (row for row in read_rows(finished, "eval") if row["step"] == step and "eval/heldout/avg@2" in row)
    assert [numbers["avg"], *numbers["interval"]] == [
        row[f"eval/heldout/{name}"] for name in ("avg@2", "ci_low", "ci_high")
    ]
    assert (results["seed"], results["step"], numbers["k"], numbers["failures"]) == (3, step, 2, {})


def test_the_manifest_tells_the_run(workshop: Any, finished: Path) -> None:
    (start,) = read_manifest(finished)
    assert start["status"] == "complete" and start["world_size"] == 1
    assert start["recipe"] == recipe_hash(load_recipe(workshop.recipe))


@pytest.mark.parametrize("step", [0, 4])
def test_a_checkpoint_is_a_hugging_face_directory(finished: Path, step: int) -> None:
    directory = checkpoint.step_directory(finished, step)
    assert (directory / "COMPLETE").is_file()
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert len(tokenizer) == model.config.vocab_size
    assert checkpoint.load_progress(directory)["step"] == step


def test_demonstrations_teach_a_model_that_then_sees_no_signal(workshop: Any, read_rows: Rows) -> None:
    """Ten steps are too few to solve anything: all groups are equal, and no update is made."""
    directory = workshop.directory / "demonstrated"
    families = "families = { gcd = { min_value = 2, max_value = 20 } }"
    recipe = workshop.directory / "demonstrated.toml"
    tasks = f'[sft.demonstration_tasks]\nsource = "reasoning_gym"\nsize = 40\nseed = 5\n{families}\n[rl]\n'
    text = workshop.recipe.read_text().replace('data = "chat.jsonl"', "num_demonstrations = 40")
    recipe.write_text(text.replace("[rl]\n", tasks).replace("steps = 60", "steps = 10"))
    workshop.succeed("train", str(recipe), "--output-dir", str(directory))
    rows = read_rows(directory, "rl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all("loss/policy" not in row and row["ledger/no_signal"] == 16 for row in rows)
    assert rows[-1]["policy/version"] == 0
    first, last = (checkpoint.step_directory(directory, k) / "model.safetensors" for k in (0, 4))
    assert first.read_bytes() == last.read_bytes()
