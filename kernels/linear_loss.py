"""A loss from hidden states to gradients, without logits of the whole batch ever in memory.

    hidden ──> chunk by chunk: logits = hidden @ weight.T                      (vendor GEMM)
                               log-probs ──> loss_of ──> d log-probs           (the caller's; autograd)
                               logits become d logits, in place                (our kernel)
                               d hidden, d weight += ...                       (vendor GEMM)

Which loss it is, the caller says by a function of log-probs: nothing here knows it. The gradients are made in
the forward, while a chunk's logits are there: three GEMMs instead of the four of recomputation, and no logits
kept. Backward scales them, or returns them as they are where the caller states the gradient of the loss.

The product that makes the logits is in the type of the model, or in float32 (`head_dtype`): rounded to
bfloat16 a logit of 20 is off by up to 0.06, and a log-prob by about as much.

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

from rocstar.kernels import chunks, torch_ops
from rocstar.kernels.row_loss import LossOf, RowLoss
from rocstar.kernels.wide_products import wide_product_


class Backend(StrEnum):
    """The implementation of log-probs and of their gradient."""

    auto = "auto"  # triton on a GPU that has it, else torch
    triton = "triton"
    torch = "torch"


class KernelUnavailableError(RuntimeError):
    """Triton was requested but cannot run; the message has the reason and the fix."""


def ops_for(device: torch.device, backend: Backend | str = Backend.auto) -> ModuleType:
    """Return the module whose `row_loss_` runs on `device`: `triton_registered` or `torch_ops`.

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
            f"backend=triton cannot run on {device}: {reason}. Use backend=auto or backend=torch."
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
    return "there are no kernels for a CPU, only the interpreter with TRITON_INTERPRET=1 set at start"


def linear_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    loss_of: LossOf,
    *,
    temperature: float = 1.0,
    head_dtype: torch.dtype | None = None,
    grad_output: float | None = None,
    entropy_weights_N: Tensor | None = None,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> tuple[Tensor, RowLoss]:
    """Return the sum of `loss_of` at the log-probs of logits = hidden @ weight.T, and the values of each row.

    The first is a scalar, differentiable in both inputs; the second is detached. Under `torch.no_grad()`, or
    if neither input needs a gradient, none is computed. The gradient of the weight is summed over chunks in
    float32 and returned in the type of the weight. This function does not write `.grad`, so tied embeddings
    and FSDP see one gradient.

    Without rows the loss is 0 and both gradients are zeros, so that a rank without tokens takes part in the
    collectives.

    Args:
        hidden_ND: the inputs of the head for the rows with loss. float32, bfloat16, float16; float64 with
            backend torch.
        weight_VD: the head's weight, complete and local: the parameter itself, not a sharded view of it.
        ids_N: int64, the target token of each row.
        loss_of: the loss as a function of log-probs, see `LossOf`. Called for some rows at a time; a row
            whose log-prob is not finite has loss and gradient NaN, whatever it returns.
        temperature: divides the logits.
        head_dtype: type of the logits: float32, or None for that of the hidden states.
        grad_output: the gradient of the loss that backward will receive, if known: 1 for `loss.backward()`. Backward
            then returns the gradients without another pass, once. None: any gradient, and backward can run again.
        entropy_weights_N: constants; the loss of row n gains entropy_weights_N[n] * entropy_N[n], with the gradient
            d entropy / d logit_v = -p_v (log p_v + entropy) / temperature.
        chunk_rows: rows whose logits exist at a time. None: 256 on a CPU; on a GPU see `chunks.rows_per_chunk`. Sums
            over chunks, and so the last bits of the weight's gradient, depend on it.
        backend: the implementation.

    Raises:
        ValueError: shapes or types that do not match, an id outside the vocabulary, or an invalid temperature
            or `grad_output`.
        TypeError: a sharded weight (a DTensor).
        KernelUnavailableError: see `ops_for`.
    """
    head_dtype = head_dtype or hidden_ND.dtype
    _check(hidden_ND, weight_VD, ids_N, temperature, head_dtype, grad_output, entropy_weights_N, chunk_rows)
    row_loss_ = functools.partial(
        ops_for(hidden_ND.device, backend).row_loss_,
        loss_of=loss_of,
        temperature=temperature,
        grad_output=1.0 if grad_output is None else grad_output,
        entropy_weights_N=entropy_weights_N,
    )
    grad = torch.is_grad_enabled()
    loss, *rows = _LinearLoss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, ids_N, row_loss_, head_dtype, grad_output, chunk_rows, grad
    )
    return loss, RowLoss(**dict(zip(RowLoss.__slots__, rows, strict=True)))


@torch.no_grad()
def linear_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    head_dtype: torch.dtype | None = None,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> Tensor:
    """Return the log-probs of the tokens, (N,), as `linear_loss` computes them, without loss and gradient."""
    _, rows = linear_loss(
        hidden_ND,
        weight_VD,
        ids_N,
        lambda logprobs_C, _: torch.zeros_like(logprobs_C),
        temperature=temperature,
        head_dtype=head_dtype,
        chunk_rows=chunk_rows,
        backend=backend,
    )
    return rows.logprobs_N


def _check(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    temperature: float,
    head_dtype: torch.dtype,
    grad_output: float | None,
    entropy_weights_N: Tensor | None,
    chunk_rows: int | None,
) -> None:
    """Check the arguments of `linear_loss`; synchronizes with the device once."""
    if hasattr(weight_VD, "device_mesh"):
        raise TypeError(
            "weight_VD is a sharded DTensor. Call inside the module's forward, where FSDP has gathered it."
        )
    if hidden_ND.dim() != 2 or weight_VD.dim() != 2 or hidden_ND.shape[1] != weight_VD.shape[1]:
        raise ValueError(
            f"need hidden (N, D) and weight (V, D), got {tuple(hidden_ND.shape)} and {tuple(weight_VD.shape)}"
        )
    if hidden_ND.dtype != weight_VD.dtype or not hidden_ND.is_floating_point():
        raise ValueError(f"hidden and weight must share a floating type, got {hidden_ND.dtype} and {weight_VD.dtype}")
    if ids_N.shape != hidden_ND.shape[:1] or ids_N.dtype != torch.int64:
        raise ValueError(f"need one int64 id per row, ({len(hidden_ND)},), got {tuple(ids_N.shape)} of {ids_N.dtype}")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if head_dtype not in (hidden_ND.dtype, torch.float32) or head_dtype.itemsize < hidden_ND.dtype.itemsize:
        raise ValueError(f"head_dtype must be float32 or {hidden_ND.dtype}, got {head_dtype}")
    if grad_output is not None and not math.isfinite(grad_output):
        raise ValueError(f"grad_output must be finite or None, got {grad_output}")
    if entropy_weights_N is not None and entropy_weights_N.shape != ids_N.shape:
        raise ValueError(f"need one entropy weight per row, ({len(ids_N)},), got {tuple(entropy_weights_N.shape)}")
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
    """Invariant: without `grad_output` backward does not change its saved tensors, so a second backward
    returns the same; with it, backward hands over its tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        ids_N: Tensor,
        row_loss_: functools.partial[RowLoss],
        head_dtype: torch.dtype,
        grad_output: float | None,
        chunk_rows: int | None,
        grad: bool,
    ) -> tuple[Tensor, ...]:
        wants_hidden, wants_weight = (grad and need for need in ctx.needs_input_grad[:2])
        run = _Chunks(hidden_ND, weight_VD, head_dtype, chunk_rows, wants_hidden, wants_weight)
        rows = run.all(ids_N, row_loss_)
        ctx.weight_dtype, ctx.grad_output, ctx.is_done = weight_VD.dtype, grad_output, False
        ctx.dhidden_ND, ctx.dweight_VD = run.dhidden_ND, run.dweight_VD
        if grad_output is not None and run.dweight_VD is not None:
            ctx.dweight_VD = run.dweight_VD.to(weight_VD.dtype)
        outputs = tuple(getattr(rows, name) for name in RowLoss.__slots__)
        ctx.mark_non_differentiable(*outputs)
        return rows.loss_N.sum(), *outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grad_output is not None:
            return *_given_away(ctx, dloss), *[None] * 6
        dhidden_ND = dweight_VD = None
        if ctx.dhidden_ND is not None:
            dhidden_ND = (ctx.dhidden_ND * dloss).to(ctx.dhidden_ND.dtype)
        if ctx.dweight_VD is not None:
            dweight_VD = torch.empty_like(ctx.dweight_VD, dtype=ctx.weight_dtype)
            torch.mul(ctx.dweight_VD, dloss, out=dweight_VD)
        return dhidden_ND, dweight_VD, *[None] * 6


def _given_away(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return both gradients and drop the references here, so that autograd takes them without a copy.

    Raises:
        RuntimeError: backward ran before, or the gradient of the loss differs from `grad_output`, which is
            checked only on a CPU, where it does not synchronize with a device.
    """
    if ctx.is_done:
        raise RuntimeError("linear_loss with grad_output runs backward once. Omit grad_output to run it again.")
    if type(dloss) is Tensor and dloss.device.type == "cpu" and float(dloss) != ctx.grad_output:
        raise RuntimeError(
            f"linear_loss was called with grad_output={ctx.grad_output}, and backward got {float(dloss)}"
        )
    given = ctx.dhidden_ND, ctx.dweight_VD
    ctx.dhidden_ND = ctx.dweight_VD = None
    ctx.is_done = True
    return given


class _Chunks:
    """The loop over chunks of rows, and the gradients that it computes."""

    def __init__(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        head_dtype: torch.dtype,
        chunk_rows: int | None,
        wants_hidden: bool,
        wants_weight: bool,
    ) -> None:
        self.hidden_ND, self.weight_VD, self.head_dtype = hidden_ND, weight_VD, head_dtype
        self.grad = wants_hidden or wants_weight
        self.chunk_rows = self._chunk_rows() if chunk_rows is None else chunk_rows
        self.dhidden_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        self.dweight_VD: Tensor | None = None
        """At least float32; with a single chunk, where nothing is summed, the type of the weight."""
        if wants_weight:
            wide = torch.promote_types(weight_VD.dtype, torch.float32)
            several = len(hidden_ND) > self.chunk_rows
            self.dweight_VD = torch.empty_like(weight_VD, dtype=wide if several else None)

    def _chunk_rows(self) -> int:
        """Return the default for the device."""
        if not self.hidden_ND.is_cuda:
            return chunks.ROWS_CPU
        return chunks.rows_per_chunk(
            chunks.free_bytes(self.hidden_ND.device),
            len(self.hidden_ND),
            vocabulary=len(self.weight_VD),
            hidden=self.hidden_ND.shape[1],
            dtype=self.hidden_ND.dtype,
            head_dtype=self.head_dtype,
            grad=self.grad,
        )

    def all(self, ids_N: Tensor, row_loss_: functools.partial[RowLoss]) -> RowLoss:
        num_rows = len(self.hidden_ND)
        logits_CV = self._buffer(self.head_dtype)
        is_wide = self.head_dtype != self.hidden_ND.dtype
        dlogits_CV = self._buffer(self.hidden_ND.dtype) if is_wide and self.grad else logits_CV
        head_VD = self.weight_VD
        if is_wide and not head_VD.is_cuda:
            head_VD = head_VD.to(self.head_dtype)  # CPU products have the output type of their inputs
        parts = []
        for start in range(0, max(num_rows, 1), self.chunk_rows):
            rows = slice(start, min(start + self.chunk_rows, num_rows))
            hidden_CD = self.hidden_ND[rows]
            x_CV, d_CV = logits_CV[: len(hidden_CD)], dlogits_CV[: len(hidden_CD)]
            product_(x_CV, hidden_CD.to(head_VD.dtype), head_VD.T, exact=True)
            parts.append(row_loss_(x_CV, ids_N[rows], grad=self.grad, first_row=start, dlogits_NV=d_CV))
            if self.dhidden_ND is not None:
                torch.mm(d_CV, self.weight_VD, out=self.dhidden_ND[rows])
            if self.dweight_VD is not None:
                product_(self.dweight_VD, d_CV.T, hidden_CD, add=start > 0)
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in RowLoss.__slots__}
        return RowLoss(**joined)

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        """Return a buffer for a chunk's logits.

        Rows begin at multiples of 64 elements, so that the kernel loads 16 bytes at once. The padding is
        zeroed, because bfloat16 products on CPUs with AMX read beyond the end of a row and multiply by 0, and
        NaN x 0 is NaN.
        """
        vocabulary = len(self.weight_VD)
        padded = -(-vocabulary // 64) * 64
        rows = min(self.chunk_rows, len(self.hidden_ND))
        buffer_CV = self.hidden_ND.new_empty(rows, padded, dtype=dtype)
        buffer_CV[:, vocabulary:].zero_()
        return buffer_CV[:, :vocabulary]


def head_logits(hidden_ND: Tensor, weight_VD: Tensor, head_dtype: torch.dtype | None = None) -> Tensor:
    """Return the logits of a few rows, (N, V), as `linear_loss` computes them."""
    logits_NV = hidden_ND.new_empty(len(hidden_ND), len(weight_VD), dtype=head_dtype or hidden_ND.dtype)
    product_(logits_NV, hidden_ND, weight_VD.T, exact=True)
    return logits_NV


def product_(out: Tensor, a: Tensor, b: Tensor, *, add: bool = False, exact: bool = False) -> None:
    """Compute out = a @ b, or with `add` out += a @ b in the type of `out`.

    exact: a float32 `out` of half-precision factors is not rounded to their type in between. Without it, this
    depends on the device.
    """
    if out.dtype == a.dtype:
        _ = out.addmm_(a, b) if add else torch.mm(a, b, out=out)
    elif a.is_cuda:
        wide_product_(out, a, b, add, exact)
    elif exact:
        product_(out, a.to(out.dtype), b.to(out.dtype), add=add)
    else:
        _ = out.add_(a @ b) if add else out.copy_(a @ b)
