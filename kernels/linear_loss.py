"""A loss from hidden states to gradients, without logits of the whole batch ever in memory.

    hidden ──> chunk by chunk: logits = hidden @ weight.T                      (vendor GEMM)
                               log-probs ──> loss_of ──> d log-probs           (the caller's; autograd)
                               logits become d logits, in place                (our kernel)
                               d hidden, d weight += ...                       (vendor GEMM)

Which loss it is, the caller says by a function of log-probs: nothing here knows it. The gradients are made in
the forward, while a chunk's logits are there: three GEMMs instead of the four of recomputation, and no logits
kept. Backward only scales them.

Legend: N rows, D hidden size, V vocabulary, C rows of one chunk.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from enum import StrEnum
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.row_loss import LossOf, RowLoss

CHUNK_ROWS_GPU = 4096  # below it the traffic of adding up d weight dominates; 1.2 GB of logits at V = 151936
CHUNK_ROWS_CPU = 256


class Backend(StrEnum):
    """Who turns logits into log-probs, and the slope of the loss into their gradient."""

    auto = "auto"  # triton on a GPU that has it, else torch
    triton = "triton"
    torch = "torch"


class KernelUnavailableError(RuntimeError):
    """Triton was asked for where it cannot run; says why, and what to do."""


def ops_for(device: torch.device, backend: Backend | str = Backend.auto) -> ModuleType:
    """The module whose `row_loss_` works on `device`: `triton_registered` or `torch_ops`.

    Raises:
        KernelUnavailableError: `backend` is triton and it cannot run there.
        ValueError: an unknown backend.
    """
    backend = Backend(backend)
    if backend == Backend.torch or (backend == Backend.auto and device.type != "cuda"):
        return torch_ops
    reason = _why_not_triton(device)
    if reason is None:
        from rocstar.kernels import triton_registered

        return triton_registered
    if backend == Backend.triton:
        raise KernelUnavailableError(
            f"backend=triton cannot run on {device}: {reason}; use backend=auto or backend=torch"
        )
    return torch_ops


def _why_not_triton(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        return None
    if device.type != "cpu":
        return "the kernels are written for CUDA and ROCm devices"
    from rocstar.kernels import triton_ops

    if triton_ops.INTERPRETED:
        return None
    return "there are no kernels for a CPU (only the interpreter, with TRITON_INTERPRET=1 set at start)"


def linear_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    loss_of: LossOf,
    *,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> tuple[Tensor, RowLoss]:
    """The sum of `loss_of` at the log-probs of logits = hidden @ weight.T, and what happened to each row.

    The first is a scalar, differentiable in both inputs; the second is detached. Under `torch.no_grad()`, or
    if neither input needs a gradient, none is made. The gradient of the weight is summed over chunks in
    float32, and comes back in the type of the weight; nothing is written to `.grad` here, so tied embeddings
    and FSDP see one gradient.

    No rows: the loss is 0, and backward gives zeros to both inputs, so that a rank with nothing to learn
    takes part in the collectives.

    Args:
        hidden_ND: what the head would get, of the rows with loss. float32, bfloat16, float16; float64 with
            backend torch.
        weight_VD: the head's weight, whole and local: the parameter itself, not a sharded view of it.
        ids_N: int64: the token of each row whose log-prob counts.
        loss_of: the loss as a function of log-probs, see `LossOf`. It is asked for some rows at a time; a row
            whose log-prob is not finite has loss and gradient NaN whatever comes back.
        temperature: divides the logits.
        chunk_rows: rows whose logits exist at a time; None: 4096 on a GPU, 256 on a CPU.
        backend: who works on the logits.

    Raises:
        ValueError: shapes or types that do not fit, an id outside the vocabulary, or a temperature that is
            not positive and finite.
        TypeError: a sharded weight (a DTensor).
        KernelUnavailableError: see `ops_for`.
    """
    _check(hidden_ND, weight_VD, ids_N, temperature, chunk_rows)
    if chunk_rows is None:
        chunk_rows = CHUNK_ROWS_GPU if hidden_ND.is_cuda else CHUNK_ROWS_CPU
    row_loss_ = functools.partial(
        ops_for(hidden_ND.device, backend).row_loss_, loss_of=loss_of, temperature=temperature
    )
    grad = torch.is_grad_enabled()
    loss, *rows = _LinearLoss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, ids_N, row_loss_, chunk_rows, grad
    )
    return loss, RowLoss(**dict(zip(RowLoss.__slots__, rows, strict=True)))


@torch.no_grad()
def linear_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> Tensor:
    """Log-probs_N of the tokens, as `linear_loss` computes them, without loss and gradient."""
    _, rows = linear_loss(
        hidden_ND,
        weight_VD,
        ids_N,
        lambda logprobs_C, _: torch.zeros_like(logprobs_C),
        temperature=temperature,
        chunk_rows=chunk_rows,
        backend=backend,
    )
    return rows.logprobs_N


def _check(
    hidden_ND: Tensor, weight_VD: Tensor, ids_N: Tensor, temperature: float, chunk_rows: int | None
) -> None:
    """Raise as `linear_loss` says; waits for the device once."""
    if hasattr(weight_VD, "device_mesh"):
        raise TypeError(
            "weight_VD is a sharded DTensor; call inside the module's forward, where FSDP holds all of it"
        )
    if hidden_ND.dim() != 2 or weight_VD.dim() != 2 or hidden_ND.shape[1] != weight_VD.shape[1]:
        raise ValueError(
            f"need hidden (N, D) and weight (V, D), got {tuple(hidden_ND.shape)} and {tuple(weight_VD.shape)}"
        )
    if hidden_ND.dtype != weight_VD.dtype or not hidden_ND.is_floating_point():
        raise ValueError(
            f"hidden and weight must share a floating type, got {hidden_ND.dtype} and {weight_VD.dtype}"
        )
    if ids_N.shape != hidden_ND.shape[:1] or ids_N.dtype != torch.int64:
        raise ValueError(
            f"need one int64 id per row, ({len(hidden_ND)},), got {tuple(ids_N.shape)} of {ids_N.dtype}"
        )
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    if len(ids_N):
        least, most = torch.stack(ids_N.aminmax()).tolist()
        if least < 0 or most >= len(weight_VD):
            raise ValueError(
                f"token ids from {least} to {most} do not fit the head's vocabulary of {len(weight_VD)}; "
                "is the tokenizer the model's own?"
            )


class _LinearLoss(torch.autograd.Function):
    """Invariant: what is saved for backward is never changed, so a second backward gives the same."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        ids_N: Tensor,
        row_loss_: functools.partial[RowLoss],
        chunk_rows: int,
        grad: bool,
    ) -> tuple[Tensor, ...]:
        wants_hidden, wants_weight = (grad and need for need in ctx.needs_input_grad[:2])
        run = _Chunks(hidden_ND, weight_VD, chunk_rows, wants_hidden, wants_weight)
        rows = run.all(ids_N, row_loss_)
        ctx.weight_dtype = weight_VD.dtype
        ctx.dhidden_ND, ctx.dweight_VD = run.dhidden_ND, run.dweight_VD
        outputs = tuple(getattr(rows, name) for name in RowLoss.__slots__)
        ctx.mark_non_differentiable(*outputs)
        return rows.loss_N.sum(), *outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dhidden_ND = dweight_VD = None
        if ctx.dhidden_ND is not None:
            dhidden_ND = (ctx.dhidden_ND * dloss).to(ctx.dhidden_ND.dtype)
        if ctx.dweight_VD is not None:
            dweight_VD = torch.empty_like(ctx.dweight_VD, dtype=ctx.weight_dtype)
            torch.mul(ctx.dweight_VD, dloss, out=dweight_VD)
        return dhidden_ND, dweight_VD, None, None, None, None


class _Chunks:
    """The loop over chunks of rows; holds the gradients that it makes."""

    def __init__(
        self, hidden_ND: Tensor, weight_VD: Tensor, chunk_rows: int, wants_hidden: bool, wants_weight: bool
    ) -> None:
        self.hidden_ND, self.weight_VD, self.chunk_rows = hidden_ND, weight_VD, chunk_rows
        self.grad = wants_hidden or wants_weight
        self.dhidden_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        self.dweight_VD = torch.zeros_like(weight_VD, dtype=wide) if wants_weight else None

    def all(self, ids_N: Tensor, row_loss_: functools.partial[RowLoss]) -> RowLoss:
        num_rows, vocabulary = len(self.hidden_ND), len(self.weight_VD)
        buffer_CV = self._buffer(min(self.chunk_rows, num_rows), vocabulary)
        parts = []
        for start in range(0, max(num_rows, 1), self.chunk_rows):
            rows = slice(start, min(start + self.chunk_rows, num_rows))
            hidden_CD = self.hidden_ND[rows]
            logits_CV = buffer_CV[: len(hidden_CD), :vocabulary]
            torch.mm(hidden_CD, self.weight_VD.T, out=logits_CV)
            parts.append(row_loss_(logits_CV, ids_N[rows], grad=self.grad, first_row=start))
            if self.dhidden_ND is not None:
                torch.mm(logits_CV, self.weight_VD, out=self.dhidden_ND[rows])
            if self.dweight_VD is not None:
                _add_product_(self.dweight_VD, logits_CV.T, hidden_CD)
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in RowLoss.__slots__}
        return RowLoss(**joined)

    def _buffer(self, rows: int, vocabulary: int) -> Tensor:
        """Rows begin at multiples of 64 elements, so that the kernel loads 16 bytes at once.

        What lies between their ends and the next is 0: products of bfloat16 on CPUs with AMX read on behind a
        row's end and multiply that by 0, which of a NaN that lay in the memory is a NaN.
        """
        padded = -(-vocabulary // 64) * 64
        buffer_CV = self.hidden_ND.new_empty(rows, padded)
        buffer_CV[:, vocabulary:].zero_()
        return buffer_CV


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, added in the type of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif _has_wide_addmm(a.device, a.dtype):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(a @ b)


@functools.cache
def _has_wide_addmm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether addmm can add half-precision products in float32 here; tried on one small product."""
    a = torch.ones(16, 16, device=device, dtype=dtype)
    total = torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, a, a, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):  # what torch raises for a missing overload; NotImplementedError is one
        return False
    return bool((total == 17.0).all())
