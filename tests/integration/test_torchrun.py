"""Two ranks compute what one process computes: same rollouts, same losses, same checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rocstar.train.learner import checkpoint

Rows = Callable[..., list[dict[str, Any]]]
SAME = ("loss/policy", "optim/grad_norm", "entropy/mean", "reward/mean", "tokens/loss", "seq_len/mean", "optim/lr")


def assert_same_steps(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    assert any("loss/policy" in row for row in rows)
    for row, other in zip(rows, expected, strict=True):
        for name in SAME:
            assert (name in row) == (name in other), (name, row["step"])
            assert row.get(name, 0.0) == pytest.approx(other.get(name, 0.0), abs=1e-4), (name, row["step"])


def assert_same_weights(directory: Path, expected: Path) -> None:
    """Up to rounding: two ranks get other microbatches than one, and optimizers divide by what is small."""
    weights, others = (load_file(d / "model.safetensors") for d in (directory, expected))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=0, atol=5e-4)


@pytest.fixture(scope="session")
def two_ranks(workshop: Any) -> Path:
    """The same recipe under torchrun; threads = 0 leaves every rank its share of the cores."""
    directory: Path = workshop.directory / "two_ranks"
    result = workshop.run("coin.toml", "--output-dir", str(directory), ranks=2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("report:") == 1
    return directory


def test_two_ranks_have_the_losses_of_one_process(finished: Path, two_ranks: Path, read_rows: Rows) -> None:
    assert_same_steps(read_rows(two_ranks, "rl"), read_rows(finished, "rl"))


def test_two_ranks_write_the_checkpoint_of_one_process(finished: Path, two_ranks: Path) -> None:
    for step in (0, 4):
        written, expected = (checkpoint.step_directory(d, step) for d in (two_ranks, finished))
        assert_same_weights(written, expected)
        assert (written / "config.json").read_text() == (expected / "config.json").read_text()


def test_two_ranks_go_on_from_the_checkpoint_of_one_process(workshop: Any, finished: Path, read_rows: Rows) -> None:
    """The optimizer state is resharded: four steps as two in one process and two on two ranks."""
    directory: Path = workshop.directory / "one_then_two"
    whole: Path = workshop.directory / "whole"
    start = [f"--model.path={checkpoint.step_directory(finished, 0)}", "--sft.steps=0"]
    # The second stage keeps the optimizer here, so that a lost state would show.
    keep, half = [*start, "--stages.1.reset_optimizer=false"], "--stages.1.steps=0"
    for path, more in ((whole, []), (directory, [half])):
        result = workshop.succeed("train", "coin.toml", "--output-dir", str(path), *keep, *more)
    result = workshop.run("coin.toml", "--output-dir", str(directory), *keep, "--resume", ranks=2)
    assert result.returncode == 0, result.stderr
    assert_same_steps(read_rows(directory, "rl"), read_rows(whole, "rl"))
    assert_same_weights(checkpoint.step_directory(directory, 4), checkpoint.step_directory(whole, 4))
    # And back: one process goes on from the checkpoint of two.
    more = ["--stages.1.steps=3", *keep, "--resume"]
    for path in (directory, whole):
        result = workshop.succeed("train", "coin.toml", "--output-dir", str(path), *more)
    assert_same_steps(read_rows(directory, "rl"), read_rows(whole, "rl"))


def test_a_mistake_ends_all_ranks_with_its_message(workshop: Any, finished: Path) -> None:
    result = workshop.run("coin.toml", "--output-dir", str(finished), ranks=2)
    assert result.returncode != 0
    assert result.stderr.count("holds a run; pass --resume") == 1
