"""The loss of rows of logits with Triton kernels, one program per row; the gradient may replace the logits.

    row_stats_kernel ──> log-probs, entropy ──> loss_of, in torch ──> slope ──> grad_kernel: d logits

The loss itself is a function of a few thousand log-probs and is computed in torch. No program shares a row
with another, so there are no atomics and results do not depend on scheduling. With TRITON_INTERPRET=1 at
import the same code runs on CPU tensors, statement by statement.

Sums are relative to the raw maximum of the row: log-sum-exp minus a mean would lose 1e-4 of entropy at logits
around 3000. `block` columns are taken at a time; the last, incomplete block is a step of its own, so that all
others need no mask and load 16 bytes at once whatever the vocabulary size.

Exponentials are powers of two: both vendors have an instruction for them, and triton lets it flush denormals,
which do not change the sums here. `tl.exp` would handle denormals with four more instructions.

Legend: x logits, t the row's token, m/s/w the running maximum, sum and weighted sum of each group of K
adjacent columns, M/S/W those of the row: M = max_c x_c, z_c = (x_c - M) / T, S = Σ_c e^z_c,
W = Σ_c z_c e^z_c. Inside a kernel z is in units of ln 2, and inv_t is 1 / (T ln 2) there: e^z = 2^(z / ln 2).
"""

# Kernel arguments (pointers, device scalars) have no types outside triton.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from rocstar.kernels import triton_registered
from rocstar.kernels.configs import LaunchConfig, arch_of, launch_config
from rocstar.kernels.row_loss import LossOf, RowLoss

INTERPRETED = bool(triton.knobs.runtime.interpret)

_FLOOR = tl.constexpr(-1e30)  # replaces -inf where 0 * -inf would be NaN
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


# ---- one block of one row ----


@triton.jit
def _fold(m, s, w, x, inv_t):
    """Take K more logits into each group: one maximum and one rescaling of the sums for all of them.

    -inf adds nothing, NaN makes the sums NaN: 2^z is taken of z as it is, and only the factor of 2^z is kept
    above the floor.
    """
    x = x.to(tl.float32)
    new = tl.maximum(m, tl.max(x, 1))
    z = (x - new[:, None]) * inv_t
    e = tl.exp2(z)
    moved = (m - new) * inv_t
    scale = tl.exp2(moved)
    w = (w + s * moved) * scale + tl.sum(e * tl.maximum(z, _FLOOR), 1)
    s = s * scale + tl.sum(e, 1)
    return new, s, w


@triton.jit
def _row_sums(x_ptr, V, inv_t, BLOCK: tl.constexpr):
    """M, S, W / ln 2. Groups meet once per row, at the end."""
    K: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements per load of a thread
    m = tl.full((BLOCK // K,), _FLOOR, tl.float32)
    s = tl.zeros((BLOCK // K,), tl.float32)
    w = tl.zeros((BLOCK // K,), tl.float32)
    columns = tl.arange(0, BLOCK // K)[:, None] * K + tl.arange(0, K)[None, :]
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        m, s, w = _fold(m, s, w, tl.load(x_ptr + start + columns), inv_t)
    if whole < V:
        rest = tl.load(x_ptr + whole + columns, mask=whole + columns < V, other=-float("inf"))
        m, s, w = _fold(m, s, w, rest, inv_t)
    M = tl.max(m, 0)
    moved = (m - M) * inv_t
    scale = tl.exp2(moved)
    return M, tl.sum(s * scale, 0), tl.sum((w + s * moved) * scale, 0)


@triton.jit
def _dlogits(x, c, t, M, log2_s, slope, pull, weight, inv_t, HAS_ENTROPY: tl.constexpr):
    """slope (1[c = t] - p) - weight p (log p + H), with pull = slope + weight H and weight in units of ln 2"""
    log2_p = (x.to(tl.float32) - M) * inv_t - log2_s
    p = tl.exp2(log2_p)
    if HAS_ENTROPY:
        pull += weight * tl.maximum(log2_p, _FLOOR)
    return tl.where(c == t, slope, 0.0) - pull * p


# ---- one row ----


@triton.jit
def row_stats_kernel(
    x_ptr, ids_ptr, logprobs_ptr, entropy_ptr, max_ptr, log_sum_ptr, stride, V, inv_t, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    M, S, W = _row_sums(x_ptr, V, inv_t * _LOG2_E, BLOCK)
    log_s = tl.log(S)
    x_t = tl.load(x_ptr + tl.load(ids_ptr + row)).to(tl.float32)
    tl.store(logprobs_ptr + row, (x_t - M) * inv_t - log_s)
    tl.store(entropy_ptr + row, log_s - W * _LN_2 / S)
    tl.store(max_ptr + row, M)
    tl.store(log_sum_ptr + row, log_s)


@triton.jit
def grad_kernel(
    d_ptr, x_ptr, ids_ptr, max_ptr, log_sum_ptr, slope_ptr, pull_ptr, weight_ptr, d_stride, stride, V, inv_t,
    BLOCK: tl.constexpr, HAS_ENTROPY: tl.constexpr,
):  # fmt: skip
    """d may be x: each thread then writes where it read. pull and weight are read with HAS_ENTROPY alone."""
    row = tl.program_id(0).to(tl.int64)
    d_ptr += row * d_stride
    x_ptr += row * stride
    t = tl.load(ids_ptr + row).to(tl.int32)  # as the columns are
    M = tl.load(max_ptr + row)
    log2_s = tl.load(log_sum_ptr + row) * _LOG2_E
    slope = tl.load(slope_ptr + row) * inv_t
    pull, weight = slope, 0.0
    if HAS_ENTROPY:
        pull = tl.load(pull_ptr + row) * inv_t
        weight = tl.load(weight_ptr + row) * inv_t * _LN_2
    inv_t *= _LOG2_E
    columns = tl.arange(0, BLOCK)
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        c = start + columns
        d = _dlogits(tl.load(x_ptr + c), c, t, M, log2_s, slope, pull, weight, inv_t, HAS_ENTROPY)
        tl.store(d_ptr + c, d.to(d_ptr.dtype.element_ty))
    if whole < V:
        c = whole + columns
        x = tl.load(x_ptr + c, mask=c < V, other=-float("inf"))
        d = _dlogits(x, c, t, M, log2_s, slope, pull, weight, inv_t, HAS_ENTROPY)
        tl.store(d_ptr + c, d.to(d_ptr.dtype.element_ty), mask=c < V)


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
    dlogits_NV: Tensor,
    logits_NV: Tensor,
    ids_N: Tensor,
    max_N: Tensor,
    log_sum_N: Tensor,
    slope_N: Tensor,
    inv_t: float,
    pull_N: Tensor | None = None,
    weights_N: Tensor | None = None,
    *,
    config: LaunchConfig | None = None,
) -> None:
    """The same. `dlogits_NV`, which is written, may be the logits. See `triton_registered.dlogits_`."""
    num_rows, vocabulary = logits_NV.shape
    config = config or launch_config(arch_of(logits_NV.device), vocabulary)
    grad_kernel[(num_rows,)](
        dlogits_NV, logits_NV, ids_N, max_N, log_sum_N, slope_N, pull_N, weights_N,
        dlogits_NV.stride(0), logits_NV.stride(0), vocabulary, inv_t,
        BLOCK=config.block, HAS_ENTROPY=weights_N is not None, num_warps=config.num_warps,
    )  # fmt: skip


def row_loss_(
    logits_NV: Tensor, ids_N: Tensor, loss_of: LossOf, *, config: LaunchConfig | None = None, **given: Any
) -> RowLoss:
    """See `triton_registered.row_loss_`; here the launches are no operators."""
    return triton_registered.row_loss_(
        logits_NV,
        ids_N,
        loss_of,
        row_stats=functools.partial(launch_row_stats, config=config),
        dlogits_=functools.partial(launch_dlogits_, config=config),
        **given,
    )
