"""RoC against GRPO on a pretrained model: what is compared with what, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rocstar.train.recipe.load import load_recipe
from rocstar.train.recipe.toml import to_toml

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "smollm2_words.toml"
GRPO = ("--rl.roc_mode=none", "--rl.rollouts_per_task=8")
NAMES = ("arms", "words_run", "roc_against_grpo_smollm2", "compact_results", "quickstart_seeds")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The benchmark as a module."""
    paths = [str(ROOT / "benchmarks" / "experiments"), str(ROOT / "benchmarks")]
    sys.path[:0] = paths
    try:
        yield import_module("roc_against_grpo_smollm2")
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in NAMES:
            sys.modules.pop(name, None)


def question(*right: bool, errors: int = 0) -> dict[str, Any]:
    """Of as many attempts as there are verdicts, with a call each; the first ones have the errors."""
    erroneous = [int(k < errors) for k in range(len(right))]
    return {"attempts": list(right), "calls": [1] * len(right), "errors": erroneous}


def write_run(
    directory: Path,
    *,
    tokens: Sequence[int],
    evaluations: Mapping[int, Mapping[str, dict[str, Any]]],
    fields: Sequence[str] = (),
    tasks: Sequence[str] = ("t",),
    wrong_calls: int = 0,
) -> Path:
    """A run whose every step has two correct attempts at each task: two calls, of which some are wrong."""
    (directory / "trajectories").mkdir(parents=True)
    (directory / "config.toml").write_text(to_toml(load_recipe(RECIPE, fields)))
    starts = [{"commit": "c0ffee", "dirty": False, "status": "complete", "python": "3"}]
    (directory / "manifest.json").write_text(json.dumps({"starts": starts}))
    rows = [
        {"phase": "rl", "step": k, "ledger/generated": 8, "ledger/kept": 4, "tokens/generated": number}
        for k, number in enumerate(tokens, 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    calls = [{"status": "ok", "is_error": k < wrong_calls} for k in range(2)]
    calls.append({"status": "not_executed", "is_error": True})
    records = [
        {"v": 1, "task": {"id": task}, "outcome": {"is_correct": is_correct}, "turns": [{"calls": calls}]}
        for task in tasks
        for is_correct in (True, True, False)
    ]
    for k in range(1, len(tokens) + 1):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (directory / "trajectories" / f"step_{k:06d}.jsonl").write_text(lines)
    for step, questions in evaluations.items():
        folder = directory / "evaluations" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        results = {"sets": {"heldout": {"questions": questions}}}
        (folder / "results.json").write_text(json.dumps(results))
    return directory


def asked(a: int, b: int, errors: int = 0) -> dict[str, dict[str, Any]]:
    """Two questions with four attempts each, of which so many are right."""
    return {
        name: question(*(k < right for k in range(4)), errors=errors)
        for name, right in (("qa", a), ("qb", b))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A seed whose RoC made three steps, and was asked behind the second for the last time."""
    write_run(
        tmp_path / "out" / "run",
        tokens=[150, 175, 900],
        evaluations={0: asked(0, 1), 2: asked(4, 2)},
        fields=("--rl.rollouts_per_task=12", "--rl.group_size=8"),
    )
    return tmp_path / "out"


def grpo(tmp_path: Path, **changes: Any) -> Path:
    """Its other arm: of less tokens a step."""
    given: dict[str, Any] = {
        "tokens": [100, 100, 100, 100],
        "evaluations": {0: asked(0, 1), 2: asked(2, 2), 4: asked(4, 4, errors=1)},
        "fields": GRPO,
        "wrong_calls": 1,
    }
    return write_run(tmp_path / "grpo", **(given | changes))


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: Path | str) -> int:
    out, figure = tmp_path / "found.json", tmp_path / "found.svg"
    command = ["script", *map(str, arguments), "--out", str(out), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", command)
    code: int = script.main()
    return code


def test_grpo_is_seen_after_as_many_steps_and_as_many_tokens(
    script: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoC's 325 tokens are a quarter into GRPO's fourth step. RoC's own third step is no matter."""
    assert run(script, monkeypatch, tmp_path, folder, "--grpo", grpo(tmp_path)) == 0
    told = json.loads((tmp_path / "found.json").read_text())
    (seed,) = told["results"]
    assert seed["tokens"] == {"roc": 325, "grpo_at_steps": 200, "grpo": 400}
    assert seed["as_many_tokens"] == {"step": 3.25, "is_reached": True}
    values = {p: [one["roc"]["value"], one["grpo"]["value"]] for p, one in seed["held_out"].items()}
    assert values == {"start": [0.125, 0.125], "steps": [0.75, 0.5], "tokens": [0.75, 0.8125]}
    assert seed["roc_minus_grpo"]["steps"]["value"] == told["all_seeds"]["steps"]["value"] == 0.25
    assert seed["errors"]["steps"]["roc"] == seed["errors"]["steps"]["roc"] | {"errors": 0, "calls": 8}
    assert seed["errors"]["tokens"]["grpo"]["calls"] == 12 and seed["errors"]["tokens"]["grpo"]["errors"] == 6
    assert seed["roc"]["steps"] == 2 and seed["grpo"]["steps"] == 4
    assert len(seed["roc"]["rewards_behind"]) == 1 and seed["grpo"]["rewards_behind"] == []
    assert seed["differs"] == {"rl.roc_mode": ["paper", "none"], "rl.rollouts_per_task": [12, 8]}
    assert str(tmp_path) not in json.dumps(told)
    assert (tmp_path / "found.svg").read_text().startswith("<svg")


def test_an_arm_that_has_not_so_many_tokens_says_so(script: ModuleType, folder: Path, tmp_path: Path) -> None:
    short = grpo(tmp_path, evaluations={0: asked(0, 1), 2: asked(2, 2)})
    found = script.compared(script.read_run(folder / "run"), script.read_run(short)).told
    assert found["as_many_tokens"] == {"step": 2.0, "is_reached": False}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fields": (*GRPO, "--model.path=other")}, "one cold start"),
        ({"evaluations": {0: asked(0, 1), 4: asked(4, 4)}}, "with an evaluation there"),
        ({"evaluations": {2: asked(4, 4)}}, "before its first step"),
        ({"evaluations": {k: {"qc": question(True)} for k in (0, 2)}}, "different held-out questions"),
        ({"fields": ()}, "the second must not"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    script: ModuleType,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    reason: str,
) -> None:
    assert run(script, monkeypatch, tmp_path, folder, "--grpo", grpo(tmp_path, **changes)) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "found.json").exists()


def test_an_arm_is_made_with_the_recipe_of_the_run_to_as_many_attempts(
    script: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def train(command: list[str], **_: Any) -> None:
        called.append(command)
        grpo(folder)

    monkeypatch.setattr(subprocess, "run", train)
    for _ in range(2):  # a finished arm is not made again
        assert script.arms_of(script.argparse.Namespace(folders=[folder], grpo=None, steps=None), 0)
    (command,) = called
    options = [option for option in command if option.startswith("--") and "=" in option]
    recipe, source = load_recipe(folder / "run" / "config.toml", options), load_recipe(RECIPE)
    assert (recipe.rl.roc_mode, recipe.rl.rollouts_per_task, recipe.stages[0].steps) == ("none", 8, 3)
    (one,) = recipe.eval
    assert one == source.eval[0].model_copy(update={"every": 2, "data": one.data})
    assert one.data is not None and source.eval[0].data is not None
    assert one.data.source == source.eval[0].data.source


def test_questions_of_several_seeds_are_drawn_whole(script: ModuleType) -> None:
    """The same differences of the same questions tell no more twice than once; every seed weighs the same."""
    rng = np.random.default_rng(1)
    seed = {f"q{k}": float(rng.choice([-0.25, 0.0, 0.5])) for k in range(40)}
    once, twice = script.over_all([seed]), script.over_all([seed, seed])
    assert [twice[name] for name in ("value", "low", "high")] == [
        once[name] for name in ("value", "low", "high")
    ]
    others = {f"other{k}": value for k, value in enumerate(seed.values())}
    apart = script.over_all([seed, others])
    assert apart["high"] - apart["low"] < 0.8 * (once["high"] - once["low"])
    assert script.over_all([{"a": 1.0}, {"b": 0.0, "c": 0.0, "d": 0.0}])["value"] == 0.5


def test_no_error_seen_is_not_known_to_be_none(script: ModuleType) -> None:
    found = script.error_shares([(0, 3)] * 20, [(0, 3)] * 19 + [(1, 3)])
    assert found["roc"]["value"] == 0.0 < found["roc"]["high"] < 0.2
    difference = found["roc_minus_grpo"]
    assert difference["value"] == pytest.approx(-1 / 60) and difference["low"] < 0 < difference["high"]
    assert script.error_shares([], [(0, 3)])["roc"] == {"errors": 0, "calls": 0}
