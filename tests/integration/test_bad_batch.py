"""A loss that is not a number ends a run before any weight changes, with its batch on disk."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rocstar.train.learner.batch import MicroBatch
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.loss_stats import LossStats

PLANTED = "model.layers.1.mlp.up_proj.weight"
OPTIONS = ["--sft.steps=0", "--stages.0.steps=6", "--stages.1.steps=0", "--rl.tokens_per_microbatch=20"]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The second update of a run finds a NaN among the weights; returns them as they were then."""
    real, seen = Learner.policy_step, []

    def policy_step(
        self: Learner, updates: Sequence[Sequence[MicroBatch]], settings: LossSettings, bad_before: int = 0
    ) -> LossStats:
        if seen:
            with torch.no_grad():
                self.model.get_parameter(PLANTED)[3, 5] = math.nan
        seen.append({n: p.detach().clone() for n, p in self.model.named_parameters()})
        return real(self, updates, settings, bad_before)

    monkeypatch.setattr(Learner, "policy_step", policy_step)
    return seen


def test_a_nan_weight_stops_the_run_and_leaves_the_batch(
    workshop: Any, finished: Path, planted: list[dict[str, torch.Tensor]]
) -> None:
    directory = workshop.directory / "bad_batch"
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    ended = workshop.main("train", "coin.toml", "--output-dir", str(directory), model, *OPTIONS)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    (path,) = (directory / "bad_batch").glob("*.json")
    step = int(path.stem.removeprefix("step_"))
    message = ended.stderr.splitlines()[-1]
    assert message.startswith(f"rocstar: {path.stem}: gradient norm nan, loss nan; no weight was changed")
    assert str(path) in message and len(planted) == 2

    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert step not in [row["step"] for row in rows if row["phase"] == "rl"]
    saved = load_file(directory / f"checkpoints/step_{step - 1}/model.safetensors")
    for name, weight in saved.items():  # the NaN was planted after this checkpoint
        assert bool(weight.isfinite().all()), name
        assert torch.equal(weight, planted[1][name]) == (name != PLANTED), name

    told = json.loads(path.read_text())["microbatches"]
    tensors = load_file(path.with_suffix(".safetensors"))
    assert len(told) > 1
    for k, part in enumerate(told):
        assert part["loss"] == part["grad_norm"] == "nan"
        assert part["logprobs_not_finite"] == part["loss_tokens"] == len(tensors[f"{k}.targets"])
        lengths = tensors[f"{k}.lengths"]
        assert int(lengths.sum()) == part["tokens"] == len(tensors[f"{k}.ids"])
        assert len(part["trajectories"]) == len(lengths)
        for name in ("weights", "advantages", "rollout_logprobs", "logprobs", "rows"):
            assert len(tensors[f"{k}.{name}"]) == part["loss_tokens"]
