"""The GRPO loss from hidden states to gradients, without logits of the whole batch ever in memory.

    hidden ──> rows with weight ──> chunk by chunk: logits = hidden @ weight.T      (vendor GEMM)
                                                    logits become d logits, in place  (our kernel)
                                                    d hidden, d weight += ...         (vendor GEMM)

The gradients are made in the forward, while a chunk's logits are there: three GEMMs instead of the four of
recomputation, and no logits kept. Backward only scales them.

Legend: N rows, D hidden size, V vocabulary, L rows with weight, C rows of one chunk.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.tokens import LossSpec, TisOf, Tokens, TokenStats

CHUNK_ROWS_GPU = 4096  # below it the traffic of adding up d weight dominates; 1.2 GB of logits at V = 151936
CHUNK_ROWS_CPU = 256


class Backend(StrEnum):
    """Who computes the token loss."""

    auto = "auto"  # triton on a GPU that has it, else torch
    triton = "triton"
    torch = "torch"


class KernelUnavailableError(RuntimeError):
    """Triton was asked for where it cannot run; says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLoss:
    """The loss of one microbatch and what happened to each row."""

    loss: Tensor
    """Scalar; the only one with gradient."""
    stats: TokenStats
    """Detached, one entry per row; see `TokenStats` for rows without weight."""


def ops_for(device: torch.device, backend: Backend | str = Backend.auto) -> ModuleType:
    """The module that computes the token loss on `device`: `triton_ops` or `torch_ops`.

    Raises:
        KernelUnavailableError: `backend` is triton and it cannot run there.
        ValueError: an unknown backend.
    """
    backend = Backend(backend)
    if backend == Backend.torch or (backend == Backend.auto and device.type != "cuda"):
        return torch_ops
    reason = _why_not_triton(device)
    if reason is None:
        from rocstar.kernels import triton_ops

        return triton_ops
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


def fused_token_loss_(
    logits_NV: Tensor,
    tokens: Tokens,
    spec: LossSpec,
    *,
    grad: bool = True,
    backend: Backend | str = Backend.auto,
) -> TokenStats:
    """The loss of rows whose logits are there; with `grad`, they become the gradient of the summed loss.

    Raises:
        ValueError: as `Tokens.check`.
        KernelUnavailableError: see `ops_for`.
    """
    tokens.check(len(logits_NV), logits_NV.shape[1], spec)
    with torch.no_grad():
        stats: TokenStats = ops_for(logits_NV.device, backend).token_loss_(logits_NV, tokens, spec, grad=grad)
    return stats


def fused_linear_grpo(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    tokens: Tokens,
    spec: LossSpec,
    *,
    tis_of: TisOf | None = None,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> FusedLoss:
    """The summed loss of `reference.token_loss` at logits = hidden @ weight.T, differentiable in both.

    Rows without weight are left out before the first GEMM. Under `torch.no_grad()`, or if neither input needs
    a gradient, none is made. The gradient of the weight is summed over chunks in float32, and comes back in
    the type of the weight; nothing is written to `.grad` here, so tied embeddings and FSDP see one gradient.

    No row with weight: the loss is 0, and backward gives zeros to both inputs, so that a rank with nothing
    to learn takes part in the collectives.

    Args:
        hidden_ND: what the head would get. float32, bfloat16, float16; float64 with backend torch.
        weight_VD: the head's weight, whole and local: the parameter itself, not a sharded view of it.
        tis_of: makes `tokens.tis_N` from the log-probs of this forward, some rows at a time; a row whose
            log-prob is not finite has loss and gradient NaN whatever comes back.
        chunk_rows: rows whose logits exist at a time; None: 4096 on a GPU, 256 on a CPU.

    Raises:
        ValueError: shapes or types that do not fit, `tis_N` and `tis_of` both, or as `Tokens.check`.
        TypeError: a sharded weight (a DTensor).
        KernelUnavailableError: see `ops_for`.
    """
    _check_linear(hidden_ND, weight_VD, chunk_rows)
    tokens.check(len(hidden_ND), len(weight_VD), spec)
    if tis_of is not None and tokens.tis_N is not None:
        raise ValueError("tis_N and tis_of are two sources of one factor; give one of them")
    ops = ops_for(hidden_ND.device, backend)
    if chunk_rows is None:
        chunk_rows = CHUNK_ROWS_GPU if hidden_ND.is_cuda else CHUNK_ROWS_CPU
    grad = torch.is_grad_enabled()
    token_loss_ = functools.partial(ops.token_loss_, spec=spec)
    loss, *found = _FusedLinear.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, tokens, token_loss_, tis_of, chunk_rows, grad
    )
    stats = TokenStats(**dict(zip(TokenStats.__slots__, found, strict=True)))
    return FusedLoss(loss=loss, stats=stats)


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
    """Log-probs_N of the tokens, as `fused_linear_grpo` computes them, without gradient."""
    ones_N = torch.ones(len(ids_N), device=hidden_ND.device)
    tokens = Tokens(ids_N=ids_N, weights_N=ones_N, advantages_N=torch.zeros_like(ones_N))
    spec = LossSpec(temperature=temperature)
    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, spec, chunk_rows=chunk_rows, backend=backend)
    return result.stats.logprobs_N


def fused_linear_nll(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    weights_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    backend: Backend | str = Backend.auto,
) -> FusedLoss:
    """The weighted negative log-likelihood Σ_n w_n -logp_n, else as `fused_linear_grpo`.

    Its gradient is that of the policy loss with ratio 1 and advantage 1; only the value is another.
    """
    tokens = Tokens(ids_N=ids_N, weights_N=weights_N, advantages_N=torch.ones_like(weights_N))
    spec = LossSpec(temperature=temperature)
    result = fused_linear_grpo(hidden_ND, weight_VD, tokens, spec, chunk_rows=chunk_rows, backend=backend)
    nll_N = torch.where(weights_N != 0, -weights_N * result.stats.logprobs_N, 0.0)
    return FusedLoss(loss=result.loss + (nll_N.sum() - result.loss.detach()), stats=result.stats)


def _check_linear(hidden_ND: Tensor, weight_VD: Tensor, chunk_rows: int | None) -> None:
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
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")


class _FusedLinear(torch.autograd.Function):
    """Invariant: what is saved for backward is never changed, so a second backward gives the same."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        tokens: Tokens,
        token_loss_: Callable[..., TokenStats],
        tis_of: TisOf | None,
        chunk_rows: int,
        grad: bool,
    ) -> tuple[Tensor, ...]:
        wants_hidden, wants_weight = (grad and need for need in ctx.needs_input_grad[:2])
        num_rows = len(hidden_ND)
        live_L = tokens.weights_N.nonzero()[:, 0]
        if len(live_L) < num_rows:
            tokens, hidden_LD = tokens.select(live_L), hidden_ND[live_L]
        else:
            hidden_LD = hidden_ND
        run = _Chunks(hidden_LD, weight_VD, chunk_rows, wants_hidden, wants_weight)
        stats = run.all(tokens, token_loss_, tis_of, live_L)
        if len(live_L) < num_rows:
            whole = TokenStats.unread(num_rows, dtype=stats.loss_N.dtype, device=hidden_ND.device)
            whole.put(live_L, stats)
            stats = whole
        ctx.num_rows, ctx.live_L = num_rows, live_L
        ctx.weight_dtype = weight_VD.dtype
        ctx.dhidden_LD, ctx.dweight_VD = run.dhidden_LD, run.dweight_VD
        outputs = tuple(getattr(stats, name) for name in TokenStats.__slots__)
        ctx.mark_non_differentiable(*outputs)
        return stats.loss_N.sum(), *outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dhidden_ND = dweight_VD = None
        if ctx.dhidden_LD is not None:
            scaled_LD = (ctx.dhidden_LD * dloss).to(ctx.dhidden_LD.dtype)
            if len(ctx.live_L) == ctx.num_rows:
                dhidden_ND = scaled_LD
            else:
                dhidden_ND = scaled_LD.new_zeros(ctx.num_rows, scaled_LD.shape[1])
                dhidden_ND[ctx.live_L] = scaled_LD
        if ctx.dweight_VD is not None:
            dweight_VD = torch.empty_like(ctx.dweight_VD, dtype=ctx.weight_dtype)
            torch.mul(ctx.dweight_VD, dloss, out=dweight_VD)
        return dhidden_ND, dweight_VD, None, None, None, None, None


class _Chunks:
    """The loop over chunks of rows, all with weight; holds the gradients that it makes."""

    def __init__(
        self, hidden_LD: Tensor, weight_VD: Tensor, chunk_rows: int, wants_hidden: bool, wants_weight: bool
    ) -> None:
        self.hidden_LD, self.weight_VD, self.chunk_rows = hidden_LD, weight_VD, chunk_rows
        self.grad = wants_hidden or wants_weight
        self.dhidden_LD = torch.empty_like(hidden_LD) if wants_hidden else None
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        self.dweight_VD = torch.zeros_like(weight_VD, dtype=wide) if wants_weight else None

    def all(
        self,
        tokens: Tokens,
        token_loss_: Callable[..., TokenStats],
        tis_of: TisOf | None,
        live_L: Tensor,
    ) -> TokenStats:
        """`live_L` names the rows as `tis_of` knows them."""
        num_rows, vocabulary = len(self.hidden_LD), len(self.weight_VD)
        buffer_CV = self._buffer(min(self.chunk_rows, num_rows), vocabulary)
        parts = []
        for start in range(0, max(num_rows, 1), self.chunk_rows):
            rows = slice(start, min(start + self.chunk_rows, num_rows))
            hidden_CD = self.hidden_LD[rows]
            logits_CV = buffer_CV[: len(hidden_CD), :vocabulary]
            torch.mm(hidden_CD, self.weight_VD.T, out=logits_CV)
            some = Tokens(**{name: tensor[rows] for name, tensor in tokens.per_row().items()})
            of_chunk = None if tis_of is None else _in_chunk(tis_of, live_L[rows])
            parts.append(token_loss_(logits_CV, some, grad=self.grad, tis_of=of_chunk))
            if self.dhidden_LD is not None:
                torch.mm(logits_CV, self.weight_VD, out=self.dhidden_LD[rows])
            if self.dweight_VD is not None:
                _add_product_(self.dweight_VD, logits_CV.T, hidden_CD)
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in TokenStats.__slots__}
        return TokenStats(**joined)

    def _buffer(self, rows: int, vocabulary: int) -> Tensor:
        """Rows begin at multiples of 64 elements, so that the kernel loads 16 bytes at once."""
        padded = -(-vocabulary // 64) * 64
        return self.hidden_LD.new_empty(rows, padded)


def _in_chunk(tis_of: TisOf, rows_C: Tensor) -> TisOf:
    """The same for the row numbers of a chunk."""
    return lambda logprobs_B, rows_B: tis_of(logprobs_B, rows_C[rows_B])


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
