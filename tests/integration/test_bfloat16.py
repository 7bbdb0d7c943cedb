"""A run in bfloat16: weights are float32, the engine serves what the learner publishes, and it goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

OPTIONS = ["--model.dtype=bfloat16", "--model.activation_checkpointing=true", "--sft.steps=0"]


def test_weights_stay_float32_through_resume_and_replay(
    workshop: Any, finished: Path, read_rows: Callable[..., list[dict[str, Any]]]
) -> None:
    directory = workshop.directory / "bfloat16"
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    command = ["train", "coin.toml", "--output-dir", str(directory), model, *OPTIONS, "--stages.1.steps=0"]
    for more in (["--stages.0.steps=2"], ["--stages.0.steps=5", "--resume"]):
        workshop.succeed(*command, *more)
    rows = [row for row in read_rows(directory, "rl") if "loss/policy" in row]
    assert len(rows) >= 2
    for row in rows:
        assert row["gate/bad_steps"] == 0, "the engine has the learner's weights, rounded as it rounds them"
        assert 0 < abs(row["mismatch_kl/mean"]) < 0.05
    saved = load_file(directory / "checkpoints" / "step_5" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in saved.values())
    workshop.succeed("replay", str(directory), f"--step={int(rows[-1]['step'])}")
