"""A run whose adapters learn: the base stays, checkpoints are whole models, and it goes on bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

OPTIONS = (
    "--lora.rank=4",
    "--lora.alpha=8",
    "--rl.lr=1e-2",
    "--sft.steps=4",
    "--stages.1.steps=0",
    "--eval.0.samples_per_task=1",
    "--engine.deterministic=true",
    "--tool.wall_s=60.0",  # the machine may be busy: a timeout would be another rollout
)


@pytest.fixture(scope="session")
def base(finished: Path) -> Path:
    return finished / "checkpoints" / "step_0"


@pytest.fixture(scope="session")
def resumed(workshop: Any, base: Path) -> Path:
    """A run of one step that went on for another."""
    directory: Path = workshop.directory / "lora_resumed"
    command = ["train", "coin.toml", "--output-dir", str(directory), f"--model.path={base}", *OPTIONS]
    for more in (["--stages.0.steps=1"], ["--stages.0.steps=2", "--resume"]):
        workshop.succeed(*command, *more)
    return directory


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def adapters(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def test_a_resumed_run_has_the_bits_of_one_that_went_through(
    workshop: Any, base: Path, resumed: Path, read_rows: Callable[..., list[dict[str, Any]]]
) -> None:
    whole = workshop.directory / "lora_whole"
    options = (f"--model.path={base}", *OPTIONS, "--stages.0.steps=2")
    workshop.succeed("train", "coin.toml", "--output-dir", str(whole), *options)
    for read in (weights, adapters):
        mine, theirs = (read(run / "checkpoints" / "step_2") for run in (resumed, whole))
        assert mine.keys() == theirs.keys()
        for name, weight in mine.items():
            assert torch.equal(weight, theirs[name]), name
    rows = [read_rows(run, "rl") for run in (resumed, whole)]
    for a, b in zip(*rows, strict=True):
        assert a["reward/mean"] == b["reward/mean"] and a.get("loss/policy") == b.get("loss/policy")
        if "loss/policy" in a:
            assert abs(a["mismatch_kl/mean"]) < 1e-6, "the engine has the adapters in its weights"
            assert a["gate/bad_steps"] == 0
    assert any("loss/policy" in row for row in rows[0])


def test_every_checkpoint_is_the_base_with_the_adapters_in_it(base: Path, resumed: Path) -> None:
    own = weights(base)
    for step in (0, 1, 2):
        folder = resumed / "checkpoints" / f"step_{step}"
        found, saved = weights(folder), adapters(folder)
        assert found.keys() == own.keys()
        assert any(bool(weight.any()) for name, weight in saved.items() if ".lora_B." in name)
        for name, weight in found.items():
            stem = "base_model.model." + name.removesuffix(".weight")
            if f"{stem}.lora_A.weight" in saved:
                change = 8 / 4 * saved[f"{stem}.lora_B.weight"] @ saved[f"{stem}.lora_A.weight"]
                torch.testing.assert_close(weight, own[name] + change, atol=1e-6, rtol=1e-5)
            else:
                assert torch.equal(weight, own[name]), f"{name} does not learn"
        config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
        assert (config["r"], config["base_model_name_or_path"]) == (4, str(base))
        AutoModelForCausalLM.from_pretrained(folder)


def test_it_is_replayed_and_its_checkpoint_rolled_out(workshop: Any, resumed: Path) -> None:
    workshop.succeed("replay", str(resumed), "--step=2")
    out = workshop.directory / "lora.jsonl"
    model = f"--model={resumed / 'checkpoints' / 'step_2'}"
    workshop.succeed("rollout", "coin.toml", model, "--limit=1", "--out", str(out))
    assert out.stat().st_size > 0


def test_what_cannot_be_is_said_in_one_line(workshop: Any, base: Path, resumed: Path) -> None:
    command = ["train", "coin.toml", f"--model.path={base}", "--stages.0.steps=2"]
    ended = workshop.main(*command, "--output-dir", str(resumed), *OPTIONS, "--lora.alpha=9", "--resume")
    assert ended.returncode == 2 and "lora.alpha is the policy that was trained" in ended.stderr
    dry = ["--dry-run", "--world=2x1", "--output-dir", str(workshop.directory / "never")]
    ended = workshop.main(*command, *OPTIONS, *dry)
    assert ended.returncode == 2 and "engines of rank 0's node, and there are 2" in ended.stderr
