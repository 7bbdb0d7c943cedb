"""examples/own_engine/ as its user has it: a file beside a recipe, trained with, rolled out and evaluated."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import read_records
from rocstar.train.evaluation.saved_model import evaluate_model
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import records_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_engine"
OWN = "--engine.kind=plain_engine:Plain"
SHORT = [OWN, "--stages.1.steps=0", "--stages.1.filter_rollouts=0", "--eval.samples_per_task=1"]


@pytest.fixture(scope="session")
def run(workshop: Any) -> Path:
    """Two steps of the coin recipe, each learned from."""
    shutil.copy(EXAMPLE / "plain_engine.py", workshop.directory)
    directory: Path = workshop.directory / "own_engine"
    workshop.succeed("train", "coin.toml", f"--output-dir={directory}", *SHORT)
    return directory


def test_a_policy_learns_with_it(run: Path, read_rows: Callable[..., list[dict[str, Any]]]) -> None:
    """After a publish its log-probs are the learner's: it has the new weights, and no others."""
    rows = read_rows(run, "rl")
    assert [row["policy/version"] for row in rows] == [1, 2]
    for row in rows:
        spans = [span for r in read_records(records_file(run, row["step"])) for span in r["version_spans"]]
        assert spans and {version for _, _, version in spans} == {row["step"] - 1}
        assert abs(row["mismatch_kl/mean"]) < 1e-5, row


def test_eval_rollout_and_python_use_it(workshop: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = f"--model={run / 'checkpoints' / 'step_2'}"
    told = workshop.succeed("eval", "coin.toml", model, "--limit=2", "--json", *SHORT)
    monkeypatch.chdir(workshop.directory)
    found = evaluate_model(load_recipe("coin.toml", SHORT), model.partition("=")[2], limit=2)
    assert json.loads(told.stdout)["eval/heldout/avg@1"] == found.result.avg
    out = workshop.directory / "own_engine.jsonl"
    workshop.succeed("rollout", "coin.toml", model, f"--out={out}", "--limit=1", *SHORT)
    assert len(list(read_records(out))) == 8
