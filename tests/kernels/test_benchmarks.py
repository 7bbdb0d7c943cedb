"""The benchmark of the loss runs and checks itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ..warm_python import warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_loss  # noqa: E402


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(warm().executable), str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_loss_benchmark_small(tmp_path: Path) -> None:
    out = tmp_path / "loss.json"
    arguments = ("--rows=32", "--vocabulary=2000", "--rounds=1", "--levels", "head", f"--out={out}")
    done = run("bench_loss.py", *arguments)
    assert done.returncode in (0, 1), done.stderr  # tiny shapes may miss the bars
    result = json.loads(out.read_text())
    assert [level["level"] for level in result["levels"]] == ["head"]
    assert all(level["gradient_difference"] < 1e-5 for level in result["levels"])
    assert len(result["bars"]) == 2


@pytest.mark.parametrize("level", ["logits", "head"])
def test_both_ways_of_the_loss_benchmark_agree(level: str) -> None:
    given = bench_loss.problem(level, 16, 300, torch.float32)
    wanted = bench_loss.naive(level, given)
    for a, b in zip(bench_loss.fused(level, given), wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-8)
