"""The loss of rows of logits with Triton kernels, one program per row, on logits in place.

    row_stats_kernel ──> log-probs, entropy ──> loss_of, in torch ──> slope ──> grad_kernel: d logits

The loss itself is a function of a few thousand log-probs: that is torch's, and the kernels do not know it. No
program shares a row with another, so there are no atomics and results do not depend on scheduling.
With TRITON_INTERPRET=1 at import the same code runs on CPU tensors, statement by statement.

Sums are relative to the raw maximum of the row: log-sum-exp minus a mean would lose 1e-4 of entropy at logits
around 3000. `block` columns are taken at a time; the last, incomplete block is a step of its own, so that all
others need no mask and load 16 bytes at once whatever the vocabulary size.

Legend: x logits, t the row's token, m/s/w the running maximum, sum and weighted sum of each lane, M/S/W
those of the row: M = max_c x_c, z_c = (x_c - M) / T, S = Σ_c e^z_c, W = Σ_c z_c e^z_c.
"""

# What a kernel takes has no type outside triton: pointers, and scalars of the device.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import functools

import triton
import triton.language as tl
from torch import Tensor

from rocstar.kernels import two_passes
from rocstar.kernels.configs import LaunchConfig, arch_of, launch_config
from rocstar.kernels.row_loss import LossOf, RowLoss

INTERPRETED = bool(triton.knobs.runtime.interpret)

_FLOOR = tl.constexpr(-1e30)  # stands for -inf where 0 * -inf would be NaN


# ---- one block of one row ----


@triton.jit
def _raise_floor(x):
    """-inf becomes the floor; NaN stays NaN, which `maximum` would swallow."""
    x = x.to(tl.float32)
    return tl.where(x < _FLOOR, _FLOOR, x)


@triton.jit
def _fold(m, s, w, x, inv_t):
    """Take one more logit into each lane. One exponential serves both cases: a new maximum or not."""
    x = _raise_floor(x)
    delta = x - m
    is_new = delta > 0.0
    d = tl.exp(-tl.abs(delta) * inv_t)
    w = tl.where(is_new, (w - s * delta) * d, w + delta * d)
    s = tl.where(is_new, s * d + 1.0, s + d)
    return tl.where(is_new, x, m), s, w


@triton.jit
def _row_sums(x_ptr, V, inv_t, BLOCK: tl.constexpr):
    """M, S, W. Lanes meet once per row, at the end."""
    m = tl.full((BLOCK,), _FLOOR, tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    w = tl.zeros((BLOCK,), tl.float32)
    columns = tl.arange(0, BLOCK)
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        m, s, w = _fold(m, s, w, tl.load(x_ptr + start + columns), inv_t)
    if whole < V:
        rest = tl.load(x_ptr + whole + columns, mask=whole + columns < V, other=-float("inf"))
        m, s, w = _fold(m, s, w, rest, inv_t)
    M = tl.max(m, 0)
    scale = tl.exp((m - M) * inv_t)
    S = tl.sum(s * scale, 0)
    W = tl.sum((w + s * (m - M)) * scale, 0) * inv_t
    # Lanes at the floor counted forbidden tokens; that matters only if the row has no other.
    return M, tl.where(M > _FLOOR, S, S * 0.0), W


@triton.jit
def _dlogits(x, c, t, M, log_s, slope, inv_t):
    """slope (1[c = t] - p)"""
    p = tl.exp((_raise_floor(x) - M) * inv_t - log_s)
    return slope * (tl.where(c == t, 1.0, 0.0) - p) * inv_t


# ---- one row ----


@triton.jit
def row_stats_kernel(
    x_ptr, ids_ptr, logprobs_ptr, entropy_ptr, max_ptr, log_sum_ptr,
    stride, V, inv_t, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    M, S, W = _row_sums(x_ptr, V, inv_t, BLOCK)
    log_s = tl.log(S)
    x_t = tl.load(x_ptr + tl.load(ids_ptr + row)).to(tl.float32)
    tl.store(logprobs_ptr + row, (x_t - M) * inv_t - log_s)
    tl.store(entropy_ptr + row, log_s - W / S)
    tl.store(max_ptr + row, M)
    tl.store(log_sum_ptr + row, log_s)


@triton.jit
def grad_kernel(
    x_ptr, ids_ptr, max_ptr, log_sum_ptr, slope_ptr,
    stride, V, inv_t, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each thread writes where it read."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    t = tl.load(ids_ptr + row)
    M = tl.load(max_ptr + row)
    log_s = tl.load(log_sum_ptr + row)
    slope = tl.load(slope_ptr + row)
    columns = tl.arange(0, BLOCK)
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        c = start + columns
        d = _dlogits(tl.load(x_ptr + c), c, t, M, log_s, slope, inv_t)
        tl.store(x_ptr + c, d.to(x_ptr.dtype.element_ty))
    if whole < V:
        c = whole + columns
        x = tl.load(x_ptr + c, mask=c < V, other=-float("inf"))
        d = _dlogits(x, c, t, M, log_s, slope, inv_t)
        tl.store(x_ptr + c, d.to(x_ptr.dtype.element_ty), mask=c < V)


# ---- launching; the function of torch_ops ----


def launch_row_stats(
    logits_NV: Tensor,
    ids_N: Tensor,
    logprobs_N: Tensor,
    entropy_N: Tensor,
    max_N: Tensor,
    log_sum_N: Tensor,
    inv_t: float,
    *,
    config: LaunchConfig | None = None,
) -> None:
    """One program per row; all others are contiguous, one number per row."""
    num_rows, vocabulary = logits_NV.shape
    config = config or launch_config(arch_of(logits_NV.device), vocabulary)
    row_stats_kernel[(num_rows,)](
        logits_NV, ids_N, logprobs_N, entropy_N, max_N, log_sum_N, logits_NV.stride(0), vocabulary, inv_t,
        BLOCK=config.block, num_warps=config.num_warps,
    )  # fmt: skip


def launch_dlogits_(
    logits_NV: Tensor,
    ids_N: Tensor,
    max_N: Tensor,
    log_sum_N: Tensor,
    slope_N: Tensor,
    inv_t: float,
    *,
    config: LaunchConfig | None = None,
) -> None:
    """The same; logits become their gradient."""
    num_rows, vocabulary = logits_NV.shape
    config = config or launch_config(arch_of(logits_NV.device), vocabulary)
    grad_kernel[(num_rows,)](
        logits_NV, ids_N, max_N, log_sum_N, slope_N, logits_NV.stride(0), vocabulary, inv_t,
        BLOCK=config.block, num_warps=config.num_warps,
    )  # fmt: skip


def row_loss_(
    logits_NV: Tensor,
    ids_N: Tensor,
    loss_of: LossOf,
    *,
    temperature: float,
    grad: bool,
    first_row: int = 0,
    config: LaunchConfig | None = None,
) -> RowLoss:
    """See `torch_ops.row_loss_`. Accumulates in float32 whatever the logits are."""
    return two_passes.row_loss_(
        logits_NV,
        ids_N,
        loss_of,
        temperature=temperature,
        grad=grad,
        first_row=first_row,
        row_stats=functools.partial(launch_row_stats, config=config),
        dlogits_=functools.partial(launch_dlogits_, config=config),
    )
