"""The benchmark of the loss runs and checks itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rocstar.kernels.linear_loss import linear_loss

from ..warm_python import warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_loss  # noqa: E402
from gpu import ways  # noqa: E402
from gpu.cases import Rows  # noqa: E402


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
    assert len(result["claims"]) == 2


@pytest.mark.parametrize("level", ["logits", "head"])
def test_both_ways_of_the_loss_benchmark_agree(level: str) -> None:
    given = bench_loss.problem(level, 16, 300)
    wanted = bench_loss.naive(level, given)
    for a, b in zip(bench_loss.fused(level, given), wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-8)


def test_the_peers_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run on a CPU; each of the others says why not."""
    monkeypatch.setattr(ways, "CHUNK_ROWS", 20)
    hidden, weight = (
        torch.randn(size, 16, generator=torch.Generator().manual_seed(size)).requires_grad_(True) for size in (50, 90)
    )
    generator = torch.Generator().manual_seed(0)
    tokens = Rows(
        ids_N=torch.randint(0, 90, (50,), generator=generator),
        weights_N=torch.full((50,), 1 / 50),
        advantages_N=torch.randn(50, generator=generator),
    )
    loss, _ = linear_loss(hidden, weight, tokens.ids_N, tokens.loss_of)
    grads = torch.autograd.grad(loss, (hidden, weight))
    named = ways.peers(on_gpu=False)
    assert [peer.name for peer in named if not peer.skipped] == ["naive torch", "chunked torch"]
    for peer in named[:2]:
        other, found = peer.run(hidden, weight, tokens.ids_N, tokens)
        torch.testing.assert_close(other, loss, rtol=1e-5, atol=1e-6)
        for a, b in zip(found, grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match="must be those of the rows"):
        named[0].run(hidden, weight, tokens.ids_N.clone(), tokens)


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    reasons = {peer.name: peer.skipped for peer in ways.peers(on_gpu=True)}
    assert [name for name, reason in reasons.items() if not reason] == [
        *("naive torch", "chunked torch", "compiled torch", "compiled chunked torch")
    ]
    assert {reason for reason in reasons.values() if reason} == {"liger_kernel is not installed"}
