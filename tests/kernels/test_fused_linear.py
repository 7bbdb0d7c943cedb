"""The loss from hidden states: gradients, chunks, masks, and what it refuses.

Legend: N rows, D hidden size, V vocabulary.
"""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.kernels import grpo
from rocstar.kernels.grpo import (
    KernelUnavailableError,
    fused_linear_grpo,
    fused_linear_nll,
    linear_logprobs,
    ops_for,
)
from rocstar.kernels.tokens import LossSpec, Tokens, TokenStats
from rocstar.train.algorithm.loss import logprobs_and_entropy, policy_loss

SPEC = LossSpec(temperature=0.8)


def problem(
    num_rows: int = 41, size: int = 16, vocabulary: int = 53, dtype: torch.dtype = torch.float32
) -> Any:
    """Hidden states, a head, tokens whose ratios lie on both sides of the bounds; every third row masked."""
    generator = torch.Generator().manual_seed(num_rows)
    hidden_ND = torch.randn(num_rows, size, generator=generator).to(dtype).requires_grad_(True)
    weight_VD = torch.randn(vocabulary, size, generator=generator).to(dtype).requires_grad_(True)
    ids_N = torch.randint(0, vocabulary, (num_rows,), generator=generator)
    logprobs_N, _ = logprobs_and_entropy((hidden_ND @ weight_VD.T).detach(), ids_N, SPEC.temperature)
    weights_N = torch.rand(num_rows, generator=generator) / num_rows
    weights_N[::3] = 0.0
    tokens = Tokens(
        ids_N=ids_N,
        weights_N=weights_N,
        advantages_N=torch.randn(num_rows, generator=generator),
        old_logprobs_N=logprobs_N.float() + 0.4 * torch.randn(num_rows, generator=generator),
    )
    return hidden_ND, weight_VD, tokens


def gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=True))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_it_is_the_learners_loss() -> None:
    """Against the path through all logits: same loss, log-probs, entropy, codes and gradients."""
    hidden_ND, weight_VD, tokens = problem()
    live_N = tokens.weights_N != 0
    rows = tokens.select(live_N.nonzero()[:, 0])
    logits_LV = hidden_ND[live_N] @ weight_VD.T
    logprobs_L, entropy_L = logprobs_and_entropy(logits_LV, rows.ids_N, SPEC.temperature)
    expected = policy_loss(
        logprobs_L,
        old_logprobs_T=rows.old_logprobs_N,
        advantages_T=rows.advantages_N,
        weights_T=rows.weights_N,
    )
    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC)
    assert result.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert torch.allclose(result.stats.logprobs_N[live_N], logprobs_L.detach(), rtol=1e-6, atol=1e-6)
    assert torch.allclose(result.stats.entropy_N[live_N], entropy_L, rtol=1e-6, atol=1e-6)
    assert torch.allclose(result.stats.ratio_N[live_N], expected.ratio_T, rtol=1e-5)
    assert torch.equal(result.stats.clip_code_N[live_N], expected.clip_code_T)
    assert set(expected.clip_code_T.tolist()) == {0, 1, 2}
    for ours, theirs in zip(
        gradients(result.loss, hidden_ND, weight_VD),
        gradients(expected.loss, hidden_ND, weight_VD),
        strict=True,
    ):
        assert relative(ours, theirs) < 1e-5
    dhidden_ND = gradients(result.loss, hidden_ND)[0]
    assert not dhidden_ND[~live_N].any(), "a token without loss contributes exactly nothing"


@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_factors_made_of_the_log_probs_of_this_forward(chunk_rows: int) -> None:
    """As if somebody had known them before: TIS needs no second pass through the head."""
    hidden_ND, weight_VD, tokens = problem()
    tokens = dataclasses.replace(tokens, old_logprobs_N=None)
    rollout_N = torch.randn(len(tokens.ids_N), generator=torch.Generator().manual_seed(3)) - 4.0
    logprobs_N = linear_logprobs(hidden_ND, weight_VD, tokens.ids_N, temperature=SPEC.temperature)
    known = dataclasses.replace(tokens, tis_N=(logprobs_N - rollout_N).exp().clamp(max=2.0))
    expected = fused_linear_grpo(hidden_ND, weight_VD, known, SPEC)
    asked: list[int] = []

    def tis_of(logprobs_C: Tensor, rows_C: Tensor) -> Tensor:
        asked.extend(rows_C.tolist())
        return (logprobs_C - rollout_N[rows_C]).exp().clamp(max=2.0)

    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC, tis_of=tis_of, chunk_rows=chunk_rows)
    assert sorted(asked) == tokens.weights_N.nonzero()[:, 0].tolist(), "once each, and no masked row"
    assert result.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    for a, b in zip(
        gradients(result.loss, hidden_ND, weight_VD),
        gradients(expected.loss, hidden_ND, weight_VD),
        strict=True,
    ):
        assert relative(a, b) < 1e-5
    with pytest.raises(ValueError, match="two sources of one factor"):
        fused_linear_grpo(hidden_ND, weight_VD, known, SPEC, tis_of=tis_of)


def test_log_probs_alone() -> None:
    """Masked rows and old log-probs mean nothing here; no gradient is made, whoever asks."""
    hidden_ND, weight_VD, tokens = problem()
    found_N = linear_logprobs(hidden_ND, weight_VD, tokens.ids_N, temperature=0.8, chunk_rows=9)
    expected_N, _ = logprobs_and_entropy((hidden_ND @ weight_VD.T).detach(), tokens.ids_N, 0.8)
    torch.testing.assert_close(found_N, expected_N, rtol=1e-6, atol=1e-6)
    assert not found_N.requires_grad


def test_gradients_in_double_precision() -> None:
    hidden_ND, weight_VD, tokens = problem(num_rows=7, size=4, vocabulary=9, dtype=torch.float64)
    spec = LossSpec(temperature=0.7, clip_low=0.99, clip_high=50.0, kl_coef=0.1, entropy_coef=0.05)
    wide = {n: t.double() if t.is_floating_point() else t for n, t in tokens.per_row().items()}
    tokens = Tokens(**wide, ref_logprobs_N=wide["old_logprobs_N"] + 0.2)
    assert torch.autograd.gradcheck(
        lambda h, w: fused_linear_grpo(h, w, tokens, spec, chunk_rows=3).loss, (hidden_ND, weight_VD)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_rows", [1, 5, 100])
def test_chunks_do_not_matter(chunk_rows: int, dtype: torch.dtype) -> None:
    hidden_ND, weight_VD, tokens = problem(dtype=dtype)
    one = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC)
    several = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC, chunk_rows=chunk_rows)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert several.loss.item() == pytest.approx(one.loss.item(), rel=tolerance)
    for a, b in zip(
        gradients(several.loss, hidden_ND, weight_VD), gradients(one.loss, hidden_ND, weight_VD), strict=True
    ):
        assert a.dtype == dtype and relative(a, b) < tolerance


def test_half_precision_gradients_are_near_those_of_float32() -> None:
    hidden_ND, weight_VD, tokens = problem(num_rows=200, size=64, vocabulary=300, dtype=torch.bfloat16)
    result = fused_linear_grpo(hidden_ND, weight_VD, dataclasses.replace(tokens, old_logprobs_N=None), SPEC)
    wide = [t.detach().float().requires_grad_(True) for t in (hidden_ND, weight_VD)]
    exact = fused_linear_grpo(*wide, dataclasses.replace(tokens, old_logprobs_N=None), SPEC)
    for a, b in zip(gradients(result.loss, hidden_ND, weight_VD), gradients(exact.loss, *wide), strict=True):
        assert relative(a, b) < 2e-2


def test_backward_scales_and_repeats() -> None:
    hidden_ND, weight_VD, tokens = problem()
    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC)
    once = gradients(result.loss, hidden_ND, weight_VD)
    twice = gradients(result.loss * 4.0, hidden_ND, weight_VD)
    assert all(torch.equal(4.0 * a, b) for a, b in zip(once, twice, strict=True))


def test_a_tied_head_gets_both_gradients() -> None:
    _, weight_VD, tokens = problem()
    weight_VD = (weight_VD.detach() * 0.3).requires_grad_(True)
    tokens = dataclasses.replace(tokens, old_logprobs_N=None)
    hidden_ND = weight_VD[tokens.ids_N]
    fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC).loss.backward()
    leaf_VD = weight_VD.detach().clone().requires_grad_(True)
    live_N = tokens.weights_N != 0
    rows = tokens.select(live_N.nonzero()[:, 0])
    logprobs_L, _ = logprobs_and_entropy(leaf_VD[rows.ids_N] @ leaf_VD.T, rows.ids_N, SPEC.temperature)
    expected = policy_loss(
        logprobs_L,
        old_logprobs_T=rows.old_logprobs_N,
        advantages_T=rows.advantages_N,
        weights_T=rows.weights_N,
    )
    torch.autograd.backward(expected.loss)
    assert leaf_VD.grad is not None and relative(weight_VD.grad, leaf_VD.grad) < 1e-5


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_only_what_needs_a_gradient_gets_one(frozen: str) -> None:
    hidden_ND, weight_VD, tokens = problem()
    both = gradients(fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC).loss, hidden_ND, weight_VD)
    kept = [hidden_ND, weight_VD]
    kept[frozen == "weight"] = kept[frozen == "weight"].detach()
    result = fused_linear_grpo(*kept, tokens, SPEC)
    (only,) = gradients(result.loss, kept[frozen == "hidden"])
    assert torch.equal(only, both[frozen == "hidden"])


def test_without_grad_nothing_is_made_and_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_ND, weight_VD, tokens = problem()
    with_grad = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC, chunk_rows=8)
    monkeypatch.setattr(grpo, "_add_product_", None)
    with torch.no_grad():
        result = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC, chunk_rows=8)
    assert not result.loss.requires_grad and torch.equal(result.loss, with_grad.loss)
    for name in TokenStats.__slots__:
        got, wanted = getattr(result.stats, name), getattr(with_grad.stats, name)
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num()) and not got.requires_grad


@pytest.mark.parametrize("num_rows", [0, 5])
def test_no_row_with_weight_still_runs_backward(num_rows: int) -> None:
    hidden_ND, weight_VD, tokens = problem(num_rows=max(num_rows, 1))
    hidden_ND = hidden_ND.detach()[:num_rows].requires_grad_(True)
    tokens = tokens.select(torch.arange(num_rows))
    tokens = dataclasses.replace(tokens, weights_N=torch.zeros(num_rows))
    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC)
    result.loss.backward()
    assert result.loss.item() == 0 and len(result.stats.loss_N) == num_rows
    for leaf in (hidden_ND, weight_VD):
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape and not leaf.grad.any()


def test_nll_is_cross_entropy() -> None:
    hidden_ND, weight_VD, tokens = problem()
    result = fused_linear_nll(hidden_ND, weight_VD, tokens.ids_N, tokens.weights_N)
    nll_N = torch.nn.functional.cross_entropy(hidden_ND @ weight_VD.T, tokens.ids_N, reduction="none")
    expected = (nll_N * tokens.weights_N).sum()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for a, b in zip(
        gradients(result.loss, hidden_ND, weight_VD), gradients(expected, hidden_ND, weight_VD), strict=True
    ):
        assert relative(a, b) < 1e-6


class Sharded:
    """What a DTensor looks like."""

    device_mesh = None


def test_what_does_not_fit_is_refused() -> None:
    hidden_ND, weight_VD, tokens = problem()
    with pytest.raises(TypeError, match="sharded DTensor"):
        fused_linear_grpo(hidden_ND, Sharded(), tokens, SPEC)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"need hidden \(N, D\) and weight \(V, D\)"):
        fused_linear_grpo(hidden_ND, weight_VD[:, 1:], tokens, SPEC)
    with pytest.raises(ValueError, match="must share a floating type"):
        fused_linear_grpo(hidden_ND, weight_VD.bfloat16(), tokens, SPEC)
    with pytest.raises(ValueError, match="vocabulary of 20"):
        fused_linear_grpo(hidden_ND, weight_VD[:20], tokens, SPEC)
    with pytest.raises(ValueError, match="chunk_rows must be at least 1"):
        fused_linear_grpo(hidden_ND, weight_VD, tokens, SPEC, chunk_rows=0)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_asking_for_triton_where_it_cannot_run_says_why() -> None:
    code = (
        "import torch; from rocstar.kernels.grpo import *\n"
        "print(ops_for(torch.device('cpu')).__name__)\n"
        "try: ops_for(torch.device('cpu'), 'triton')\n"
        "except KernelUnavailableError as error: print(error)"
    )
    auto, refused = run_python(code).splitlines()
    assert auto == "rocstar.kernels.torch_ops"
    assert "no kernels for a CPU" in refused and "use backend=auto" in refused
    auto, *refusals = run_python(code, TRITON_INTERPRET="1").splitlines()
    assert auto == "rocstar.kernels.torch_ops" and not refusals


def test_a_machine_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo.importlib.util, "find_spec", lambda name: None)
    assert ops_for(torch.device("cuda")).__name__ == "rocstar.kernels.torch_ops"
    with pytest.raises(KernelUnavailableError, match="triton is not installed"):
        ops_for(torch.device("cuda"), "triton")
    with pytest.raises(ValueError, match="'nccl'"):
        ops_for(torch.device("cpu"), "nccl")


def test_the_cpu_path_never_imports_triton() -> None:
    code = (
        "import sys, torch; from rocstar.kernels.grpo import *\n"
        "from rocstar.kernels.tokens import *\n"
        "fused_linear_nll(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(2).long(), torch.ones(2))\n"
        "print('triton' in sys.modules)"
    )
    assert run_python(code) == "False"
