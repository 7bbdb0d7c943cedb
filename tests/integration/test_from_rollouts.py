"""What one run rolled out another learns: from its records alone, without engine or sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rocstar.train import agent, checkpoint

Rows = Callable[..., list[dict[str, Any]]]
NAMES = (
    "step",
    "loss/policy",
    "optim/grad_norm",
    "entropy/mean",
    "reward/mean",
    "ledger/kept",
    "tokens/loss",
)


@pytest.fixture
def no_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an engine nor a sandbox can be had."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a run that learns from records opened an engine or a sandbox")

    for name in ("SandboxPool", "EmbeddedEngine"):
        monkeypatch.setattr(agent, name, refuse)


def options_for(source: Path, directory: Path) -> list[str]:
    model = f"--model.path={source / 'checkpoints' / 'step_0'}"
    return ["train", "coin.toml", "--output-dir", str(directory), "--from-rollouts", str(source), model]


def logged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in NAMES} for row in rows]


def test_it_learns_what_the_live_run_learned(
    workshop: Any, finished: Path, no_rollouts: None, read_rows: Rows
) -> None:
    """Ended after its third step and resumed besides; the last weights are equal to the last bit."""
    directory = workshop.directory / "from_records"
    for more in (["--stages.1.steps=1"], ["--resume"]):
        ended = workshop.main(*options_for(finished, directory), *more)
        assert ended.returncode == 0, ended.stderr
    rows, live = read_rows(directory), read_rows(finished, "rl")
    assert [row["phase"] for row in rows] == ["rl"] * 4, "no cold start, no evaluation, no filter"
    assert logged(rows) == logged(live)
    assert any(row.get("loss/policy") for row in rows)
    assert all("policy/staleness_max" not in row for row in rows), "the records' versions are another run's"
    weights, expected, first = (
        load_file(checkpoint.step_directory(d, k) / "model.safetensors")
        for d, k in ((directory, 4), (finished, 4), (finished, 0))
    )
    assert all(weight.equal(expected[name]) for name, weight in weights.items())
    assert not all(weight.equal(first[name]) for name, weight in weights.items())
    assert (directory / "report.html").stat().st_size > 10_000
    ended = workshop.main("replay", str(directory), "--step=4", "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["agrees"]
