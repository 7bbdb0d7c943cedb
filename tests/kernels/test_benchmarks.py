"""The benchmarks of the kernels run, check themselves, and say no where they must."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rocstar.kernels import torch_ops
from rocstar.kernels.row_loss import RowLoss

from ..warm_python import warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_loss  # noqa: E402
from gpu import bench_kernels, ways  # noqa: E402


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(warm().executable), str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_dry_run_of_the_gpu_benchmark(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    done = run("gpu/bench_kernels.py", "--dry-run", f"--out={out}")
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["dry_run"] and result["bars"] == [] and not any(result["differing_runs"].values())
    assert {row["head"] for row in result["linear"]} == {"14B", "0.5B"}
    timed = {row["way"] for row in result["peers"] if "ms" in row}
    assert timed == {"rocstar", "naive torch", "chunked torch"}
    assert all("ms" in row or "on a GPU alone" in row["left_out"] for row in result["peers"])
    assert all(row["ms"] > 0 for section in ("logits", "linear") for row in result[section])


def test_without_time_left_it_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    done = run("gpu/bench_kernels.py", "--dry-run", "--minutes=0", f"--out={out}")
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert all("left_out" in result[section][-1] for section in ("logits", "linear", "peers"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_refuses() -> None:
    done = run("gpu/bench_kernels.py")
    assert done.returncode == 2 and "--dry-run" in done.stderr and "Traceback" not in done.stderr


def planted(kind: str) -> ModuleType:
    wrong = ModuleType("wrong")

    def row_loss_(logits_NV: torch.Tensor, *given: Any, grad: bool, **named: Any) -> RowLoss:
        found = torch_ops.row_loss_(logits_NV, *given, grad=grad, **named)
        if kind == "wrong" and grad:
            logits_NV *= 1.01
        if kind == "race" and grad:
            logits_NV[0, 0] += 1e-9 * torch.rand(())
        return found

    wrong.row_loss_ = row_loss_  # type: ignore[attr-defined]
    return wrong


def test_the_peers_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run on a CPU; each of the others says why not."""
    monkeypatch.setattr(ways, "CHUNK_ROWS", 20)
    hidden, weight, tokens = bench_kernels.inputs(plan(), rows=50, size=16, vocabulary=90)
    hidden, weight = (x.detach().float().requires_grad_(True) for x in (hidden, weight))
    loss, grads = bench_kernels.ours(hidden, weight, tokens.ids_N, tokens)
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


def plan() -> bench_kernels.Plan:
    parser_result = bench_kernels.argparse.Namespace(dry_run=True, minutes=1.0)
    return bench_kernels.plan(parser_result)


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels, "torch_ops", planted("wrong"))
    with pytest.raises(AssertionError, match="gradient"):
        bench_kernels.check_everything(plan())


def test_a_race_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench_kernels.count_races(plan())
    monkeypatch.setattr(bench_kernels, "torch_ops", planted("race"))
    with pytest.raises(AssertionError, match="outputs differ"):
        bench_kernels.count_races(plan())


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
