"""The loss from hidden states: gradients, chunks, and what it refuses.

Legend: N rows, D hidden size, V vocabulary.
"""

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.kernels import linear_loss as module
from rocstar.kernels import wide_products
from rocstar.kernels.linear_loss import KernelUnavailableError, linear_logprobs, linear_loss, ops_for
from rocstar.kernels.row_loss import RowLoss
from rocstar.train.algorithm.loss import imitation_loss, logprobs_and_entropy, stopped

from ..fakes.tiny import policy_tokens
from ..warm_python import warm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu.cases import Rows, exact_entropy

TEMPERATURE = 0.8


def problem(
    num_rows: int = 41, size: int = 16, vocabulary: int = 53, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Rows]:
    """Hidden states, a head, rows whose ratios lie on both sides of the bounds."""
    generator = torch.Generator().manual_seed(num_rows)
    hidden_ND = torch.randn(num_rows, size, generator=generator).to(dtype).requires_grad_(True)
    weight_VD = torch.randn(vocabulary, size, generator=generator).to(dtype).requires_grad_(True)
    ids_N = torch.randint(0, vocabulary, (num_rows,), generator=generator)
    logprobs_N, _ = logprobs_and_entropy((hidden_ND @ weight_VD.T).detach(), ids_N, TEMPERATURE)
    rows = Rows(
        ids_N=ids_N,
        weights_N=torch.rand(num_rows, generator=generator) / num_rows,
        advantages_N=torch.randn(num_rows, generator=generator),
        old_logprobs_N=logprobs_N.float() + 0.4 * torch.randn(num_rows, generator=generator),
    )
    return hidden_ND, weight_VD, rows


def run(hidden_ND: Tensor, weight_VD: Tensor, rows: Rows, **more: Any) -> tuple[Tensor, RowLoss]:
    return linear_loss(hidden_ND, weight_VD, rows.ids_N, rows.loss_of, temperature=TEMPERATURE, **more)


def gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=True))


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """The norm of the difference, relative to that of `expected`."""
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b.double()).norm() < tolerance * b.double().norm()


def test_it_is_the_definition() -> None:
    """Against the path through all logits: same loss, log-probs, entropy and gradients."""
    hidden_ND, weight_VD, rows = problem()
    logprobs_N, entropy_N = logprobs_and_entropy(hidden_ND @ weight_VD.T, rows.ids_N, TEMPERATURE)
    expected = rows.loss_of(logprobs_N, slice(None)).sum()
    loss, found = run(hidden_ND, weight_VD, rows)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(found.logprobs_N, logprobs_N.detach(), rtol=1e-6, atol=1e-6)
    assert torch.allclose(found.entropy_N, entropy_N, rtol=1e-6, atol=1e-6)
    tokens = policy_tokens(logprobs_N, old_logprobs_T=rows.old_logprobs_N, advantages_T=rows.advantages_N)
    codes_N = stopped(rows.loss, tokens)
    assert set(codes_N.tolist()) == {0, 1, 2}, "the case must reach every branch"
    assert_near(gradients(loss, hidden_ND, weight_VD), gradients(expected, hidden_ND, weight_VD), 1e-5)


@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_the_loss_is_asked_once_for_each_row(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers of the microbatch, whatever the chunks and the blocks in them."""
    monkeypatch.setattr(module.torch_ops, "BLOCK_BYTES", 4 * 53 * 3)
    hidden_ND, weight_VD, rows = problem()
    expected = gradients(run(hidden_ND, weight_VD, rows)[0], hidden_ND, weight_VD)
    asked: list[int] = []

    def loss_of(logprobs_C: Tensor, some: slice) -> Tensor:
        assert len(logprobs_C) == some.stop - some.start <= chunk_rows
        asked.extend(range(some.start, some.stop))
        return rows.loss_of(logprobs_C, some)

    loss, _ = linear_loss(hidden_ND, weight_VD, rows.ids_N, loss_of, temperature=TEMPERATURE, chunk_rows=chunk_rows)
    assert asked == list(range(41))
    assert_near(gradients(loss, hidden_ND, weight_VD), expected, 1e-5)


def test_log_probs_alone() -> None:
    """No gradient is made, whoever asks."""
    hidden_ND, weight_VD, rows = problem()
    found_N = linear_logprobs(hidden_ND, weight_VD, rows.ids_N, temperature=0.8, chunk_rows=9)
    expected_N, _ = logprobs_and_entropy((hidden_ND @ weight_VD.T).detach(), rows.ids_N, 0.8)
    torch.testing.assert_close(found_N, expected_N, rtol=1e-6, atol=1e-6)
    assert not found_N.requires_grad


def test_gradients_in_double_precision() -> None:
    hidden_ND, weight_VD, rows = problem(num_rows=7, size=4, vocabulary=9, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: linear_loss(h, w, rows.ids_N, lambda x, _: x.sin(), chunk_rows=3)[0], (hidden_ND, weight_VD)
    )


@pytest.mark.parametrize("grad_output", [None, 3.0])
@pytest.mark.parametrize("chunk_rows", [1, 5, 100])
def test_the_entropy_term_has_its_value_and_its_gradient(
    chunk_rows: int, grad_output: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.torch_ops, "BLOCK_BYTES", 4 * 53 * 3)
    hidden_ND, weight_VD, rows = problem()
    exact = [x.detach().double().requires_grad_() for x in (hidden_ND, weight_VD)]
    logits_NV, weights_N = exact[0] @ exact[1].T, 0.5 * rows.weights_N.flip(0)
    logprobs_N, _ = logprobs_and_entropy(logits_NV, rows.ids_N, TEMPERATURE)
    expected = (rows.loss_of(logprobs_N, slice(None)) + weights_N * exact_entropy(logits_NV, TEMPERATURE)).sum()
    more = {"entropy_weights_N": weights_N, "grad_output": grad_output, "chunk_rows": chunk_rows}
    loss, _ = run(hidden_ND, weight_VD, rows, **more)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    factor = grad_output or 1.0
    for ours, theirs in zip(
        gradients(loss * factor, hidden_ND, weight_VD), gradients(expected * factor, *exact), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)


def test_entropy_weights_are_one_per_row() -> None:
    with pytest.raises(ValueError, match=r"one entropy weight per row, \(41,\), got \(3,\)"):
        run(*problem(), entropy_weights_N=torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_rows", [1, 5, 100])
def test_chunks_do_not_matter(chunk_rows: int, dtype: torch.dtype) -> None:
    hidden_ND, weight_VD, rows = problem(dtype=dtype)
    one, _ = run(hidden_ND, weight_VD, rows)
    several, _ = run(hidden_ND, weight_VD, rows, chunk_rows=chunk_rows)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert several.item() == pytest.approx(one.item(), rel=tolerance)
    found = gradients(several, hidden_ND, weight_VD)
    assert {a.dtype for a in found} == {dtype}
    assert_near(found, gradients(one, hidden_ND, weight_VD), tolerance)


@pytest.fixture
def memory_of_nans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody has written to holds NaN."""

    def new_empty(tensor: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype or tensor.dtype)

    monkeypatch.setattr(Tensor, "new_empty", new_empty)


def test_what_lay_in_the_memory_does_not_matter(memory_of_nans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of bfloat16 on CPUs with AMX read on behind the rows of logits."""
    hidden_ND, weight_VD, rows = problem(num_rows=64, size=32, vocabulary=400, dtype=torch.bfloat16)
    made: list[Tensor] = []
    buffer = module._Chunks._buffer

    def kept(*arguments: Any) -> Tensor:
        made.append(buffer(*arguments))
        return made[-1]

    monkeypatch.setattr(module._Chunks, "_buffer", kept)
    loss, _ = run(hidden_ND, weight_VD, rows)
    assert made[0].shape == (64, 400)
    behind = made[0].as_strided((64, 48), (448, 1), storage_offset=400)
    assert made[0].stride() == (448, 1) and not behind.any()
    assert all(gradient.isfinite().all() for gradient in gradients(loss, hidden_ND, weight_VD))


def test_backward_scales_and_repeats() -> None:
    hidden_ND, weight_VD, rows = problem()
    loss, _ = run(hidden_ND, weight_VD, rows)
    once = gradients(loss, hidden_ND, weight_VD)
    twice = gradients(loss * 4.0, hidden_ND, weight_VD)
    assert all(torch.equal(4.0 * a, b) for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_rows", [10, 100])
def test_a_known_gradient_of_the_loss_needs_no_pass_in_backward(chunk_rows: int, dtype: torch.dtype) -> None:
    """The same bits as with the pass, for a power of two; and the tensors that the forward made."""
    hidden_ND, weight_VD, rows = problem(dtype=dtype)
    loss, found = run(hidden_ND, weight_VD, rows, chunk_rows=chunk_rows)
    wanted = gradients(4.0 * loss, hidden_ND, weight_VD)
    known, same = run(hidden_ND, weight_VD, rows, chunk_rows=chunk_rows, grad_output=4.0)
    assert torch.equal(known, loss) and torch.equal(same.loss_N, found.loss_N)
    node: Any = known.grad_fn
    made = [node.dhidden_ND.data_ptr(), node.dweight_VD.data_ptr()]
    assert all(x.dtype == dtype for x in (node.dhidden_ND, node.dweight_VD))
    torch.autograd.backward(4.0 * known)
    for leaf, expected, pointer in zip((hidden_ND, weight_VD), wanted, made, strict=True):
        assert leaf.grad is not None and torch.equal(leaf.grad, expected)
        assert leaf.grad.data_ptr() == pointer, "autograd takes it without a copy"


def test_a_known_gradient_of_the_loss_is_held_to() -> None:
    hidden_ND, weight_VD, rows = problem()
    loss, _ = run(hidden_ND, weight_VD, rows, grad_output=2.0)
    with pytest.raises(RuntimeError, match=r"called with grad_output=2.0, and backward got 1.0"):
        gradients(loss, hidden_ND, weight_VD)
    gradients(2.0 * loss, hidden_ND, weight_VD)
    with pytest.raises(RuntimeError, match="runs backward once"):
        gradients(2.0 * loss, hidden_ND, weight_VD)


@pytest.mark.parametrize("chunk_rows", [10, 100])
def test_float32_logits_of_a_bfloat16_model(chunk_rows: int) -> None:
    """Log-probs as of float64 logits of the same numbers; with bfloat16 logits they are not near them."""
    generator = torch.Generator().manual_seed(0)
    ids_N = torch.randint(0, 400, (64,), generator=generator)
    weight_VD = (torch.randn(400, 64, generator=generator) / 8).bfloat16()
    # As in a trained model: the token's logit is about 17, the others are of width 3.
    towards_ND = 17 * weight_VD[ids_N].float() / weight_VD[ids_N].float().pow(2).sum(1, keepdim=True)
    hidden_ND = (3 * torch.randn(64, 64, generator=generator) + towards_ND).bfloat16()
    exact_N = logprobs_and_entropy(hidden_ND.double() @ weight_VD.double().T, ids_N, 1.0)[0]
    of = {
        dtype: linear_logprobs(hidden_ND, weight_VD, ids_N, head_dtype=dtype, chunk_rows=chunk_rows)
        for dtype in (torch.float32, None)
    }
    errors = {dtype: float((found_N - exact_N).abs().max()) for dtype, found_N in of.items()}
    assert errors[torch.float32] < 1e-5 < 1e-3 < errors[None], errors


@pytest.mark.parametrize("chunk_rows", [50, 1000])
@pytest.mark.parametrize(("head_dtype", "tolerance"), [(torch.float32, 5e-3), (None, 2e-2)])
def test_gradients_of_a_bfloat16_model_are_near_those_of_float32(
    chunk_rows: int, head_dtype: torch.dtype | None, tolerance: float
) -> None:
    hidden_ND, weight_VD, rows = problem(num_rows=200, size=64, vocabulary=300, dtype=torch.bfloat16)
    rows = dataclasses.replace(rows, old_logprobs_N=None)
    loss, _ = run(hidden_ND, weight_VD, rows, head_dtype=head_dtype, chunk_rows=chunk_rows)
    wide = [t.detach().float().requires_grad_(True) for t in (hidden_ND, weight_VD)]
    exact, _ = run(wide[0], wide[1], rows)
    if head_dtype:
        assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    found = gradients(loss, hidden_ND, weight_VD)
    assert {a.dtype for a in found} == {torch.bfloat16}
    assert_near(found, gradients(exact, *wide), tolerance)


CALLS = [(False, True), (True, True), (False, False), (True, False)]
"""`add` and `exact` of a wide product."""


def test_products_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the device's own: the first chunk's d weight is written, the others are added."""
    called: list[tuple[str, bool]] = []

    def mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
        called.append(("mm", False))
        return out.copy_(a.to(out_dtype) @ b.to(out_dtype))

    def addmm(total: Tensor, a: Tensor, b: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
        called.append(("addmm", total is out))
        return out.copy_(total + a.to(out_dtype) @ b.to(out_dtype))

    a, b = torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4, 5, dtype=torch.bfloat16)
    out = torch.full((3, 5), torch.nan)
    wide_products._has_out_dtype.cache_clear()
    plain = [torch.ops.rocstar.wide_product_(out, a, b, add, exact) is None for add, exact in CALLS]
    assert len(plain) == 4 and bool((out == 8).all()), "a device without such products"
    with monkeypatch.context() as patch:
        patch.setattr(wide_products, "_has_out_dtype", lambda *_: True)
        patch.setattr(torch, "mm", mm)
        patch.setattr(torch, "addmm", addmm)
        out.fill_(torch.nan)
        wide_products.wide_product_(out, a, b, False, False)
        wide_products.wide_product_(out, a, b, True, False)
    assert called == [("mm", False), ("addmm", True)] and bool((out == 8).all())
    wide_products.wide_product_(out, a[:, :0], b[:0], True, False)
    assert bool((out == 8).all())
    wide_products.wide_product_(out, a[:, :0], b[:0], False, False)
    assert not out.any()


def test_a_tied_head_gets_both_gradients() -> None:
    _, weight_VD, rows = problem()
    rows = dataclasses.replace(rows, old_logprobs_N=None)
    weight_VD = (weight_VD.detach() * 0.3).requires_grad_(True)
    torch.autograd.backward(run(weight_VD[rows.ids_N], weight_VD, rows)[0])
    leaf_VD = weight_VD.detach().clone().requires_grad_(True)
    logprobs_N, _ = logprobs_and_entropy(leaf_VD[rows.ids_N] @ leaf_VD.T, rows.ids_N, TEMPERATURE)
    torch.autograd.backward(rows.loss_of(logprobs_N, slice(None)).sum())
    assert weight_VD.grad is not None and leaf_VD.grad is not None
    assert_near([weight_VD.grad], [leaf_VD.grad], 1e-5)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_only_what_needs_a_gradient_gets_one(frozen: str) -> None:
    hidden_ND, weight_VD, rows = problem()
    both = gradients(run(hidden_ND, weight_VD, rows)[0], hidden_ND, weight_VD)
    kept = [hidden_ND, weight_VD]
    kept[frozen == "weight"] = kept[frozen == "weight"].detach()
    (only,) = gradients(run(kept[0], kept[1], rows)[0], kept[frozen == "hidden"])
    assert torch.equal(only, both[frozen == "hidden"])


def test_without_grad_nothing_is_made_and_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_ND, weight_VD, rows = problem()
    with_grad, expected = run(hidden_ND, weight_VD, rows, chunk_rows=8)
    multiplied: list[Tensor] = []
    product_ = module.product_

    def counted(out: Tensor, *given: Any, **named: Any) -> None:
        multiplied.append(out)
        product_(out, *given, **named)

    monkeypatch.setattr(module, "product_", counted)
    with torch.no_grad():
        loss, found = run(hidden_ND, weight_VD, rows, chunk_rows=8)
    assert [len(out) for out in multiplied] == [8, 8, 8, 8, 8, 1], "logits alone"
    assert not loss.requires_grad and torch.equal(loss, with_grad)
    for name in RowLoss.__slots__:
        got, wanted = getattr(found, name), getattr(expected, name)
        assert torch.equal(got, wanted) and not got.requires_grad


def test_no_row_still_runs_backward() -> None:
    hidden_ND, weight_VD, rows = problem()
    none_0D = hidden_ND.detach()[:0].requires_grad_(True)
    loss, found = linear_loss(none_0D, weight_VD, rows.ids_N[:0], rows.loss_of)
    torch.autograd.backward(loss)
    assert loss.item() == 0 and len(found.loss_N) == 0
    for leaf in (none_0D, weight_VD):
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape and not leaf.grad.any()


def test_imitation_is_cross_entropy() -> None:
    hidden_ND, weight_VD, rows = problem()
    loss, _ = linear_loss(
        hidden_ND, weight_VD, rows.ids_N, lambda x, some: imitation_loss(x, weights_T=rows.weights_N[some])
    )
    nll_N = torch.nn.functional.cross_entropy(hidden_ND @ weight_VD.T, rows.ids_N, reduction="none")
    expected = (nll_N * rows.weights_N).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_near(gradients(loss, hidden_ND, weight_VD), gradients(expected, hidden_ND, weight_VD), 1e-6)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor, Rows], object], str]] = {
    "a DTensor": (lambda h, w, rows: run(h, SimpleNamespace(device_mesh=None), rows), "sharded DTensor"),
    "sizes": (lambda h, w, rows: run(h, w[:, 1:], rows), r"need hidden \(N, D\) and weight \(V, D\)"),
    "types": (lambda h, w, rows: run(h, w.bfloat16(), rows), "must share a floating type"),
    "large ids": (lambda h, w, rows: run(h, w[:20], rows), "do not fit the head's vocabulary of 20"),
    "small ids": (lambda h, w, rows: run(h, w, with_ids(rows, rows.ids_N - 53)), "token ids from -5"),
    "lost id": (lambda h, w, rows: run(h, w, with_ids(rows, rows.ids_N[1:])), "one int64 id per row"),
    "float ids": (lambda h, w, rows: run(h, w, with_ids(rows, rows.ids_N.float())), "one int64 id per row"),
    "chunk": (lambda h, w, rows: run(h, w, rows, chunk_rows=0), "chunk_rows must be at least 1"),
    "head": (
        lambda h, w, rows: run(h, w, rows, head_dtype=torch.bfloat16),
        r"head_dtype must be float32 or torch.float32, got torch.bfloat16",
    ),
    "NaN": (lambda h, w, rows: run(h, w, rows, grad_output=math.nan), "grad_output must be finite"),
} | {
    f"temperature {t}": (
        lambda h, w, rows, t=t: linear_loss(h, w, rows.ids_N, rows.loss_of, temperature=t),
        "temperature must be positive and finite",
    )
    for t in (0.0, -1.0, math.inf, math.nan)
}


def with_ids(rows: Rows, ids_N: Tensor) -> Rows:
    return dataclasses.replace(rows, ids_N=ids_N)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=words):
        call(*problem())


def run_python(code: str, python: str = "", **environment: str) -> str:
    done = subprocess.run(
        [python or str(warm().executable), "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_asking_for_triton_where_it_cannot_run_says_why() -> None:
    code = (
        "import torch; from rocstar.kernels.linear_loss import *\n"
        "print(ops_for(torch.device('cpu')).__name__)\n"
        "try: ops_for(torch.device('cpu'), 'triton')\n"
        "except KernelUnavailableError as error: print(error)"
    )
    auto, refused = run_python(code).splitlines()
    assert auto == "rocstar.kernels.torch_ops"
    assert "no kernels for a CPU" in refused and "Use backend=auto" in refused
    auto, *refusals = run_python(code, TRITON_INTERPRET="1").splitlines()
    assert auto == "rocstar.kernels.torch_ops" and not refusals


def test_a_machine_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert ops_for(torch.device("cuda")).__name__ == "rocstar.kernels.torch_ops"
    with pytest.raises(KernelUnavailableError, match="triton is not installed"):
        ops_for(torch.device("cuda"), "triton")
    with pytest.raises(ValueError, match="'nccl'"):
        ops_for(torch.device("cpu"), "nccl")


def test_the_cpu_path_never_imports_triton() -> None:
    code = (
        "import sys, torch; from rocstar.kernels.linear_loss import *\n"
        "linear_loss(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(2).long(), lambda x, rows: -x)\n"
        "print('triton' in sys.modules)"
    )
    assert run_python(code, sys.executable) == "False"
