"""The ways of the loss that the proof on a device compares."""

import sys
from pathlib import Path

import pytest
import torch

from rocstar.kernels.linear_loss import linear_loss

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpu import ways  # noqa: E402
from gpu.cases import Rows  # noqa: E402


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
