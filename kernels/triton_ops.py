"""The token loss as Triton kernels, one program per row, on logits in place.

    pass 1 over the row: max, sum, weighted sum ──> log-prob, entropy ──> loss, d loss
    pass 2 over the row, which the cache may still hold: logits become their gradient

No program shares a row with another, so there are no atomics and results do not depend on scheduling.
With TRITON_INTERPRET=1 at import the same code runs on CPU tensors, statement by statement.

Legend: x logits, t the row's token, m/s/w the running maximum, sum and weighted sum of each lane, M/S/W those
of the row. `block` columns are taken at a time; the last, incomplete block is a step of its own, so that all
others need no mask and load 16 bytes at once whatever the vocabulary size.
"""

# What a kernel takes has no type outside triton: pointers, and scalars of the device.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from rocstar.kernels.configs import LaunchConfig, arch_of, launch_config
from rocstar.kernels.tokens import LossSpec, RowStats, TisOf, Tokens, TokenStats
from rocstar.kernels.torch_ops import TokenGrads, token_grads

INTERPRETED = bool(triton.knobs.runtime.interpret)

_FLOOR = tl.constexpr(-1e30)  # stands for -inf where 0 * -inf would be NaN
_MAX_LOG_RATIO = tl.constexpr(20.0)
_CLIP_LOW = tl.constexpr(1)
_CLIP_HIGH = tl.constexpr(2)
_CLIP_DUAL = tl.constexpr(3)


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
    """M, S, W of `RowStats`. Lanes meet once per row, at the end."""
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
def _dlogits(
    x,
    c,
    t,
    M,
    log_s,
    entropy,
    g,
    h,
    inv_t,
    HAS_ENTROPY: tl.constexpr,
):
    """g (1[c = t] - p) + h dH/dz, with dH/dz = -p (log p + H)."""
    log_p = (_raise_floor(x) - M) * inv_t - log_s
    p = tl.exp(log_p)
    d = g * (tl.where(c == t, 1.0, 0.0) - p)
    if HAS_ENTROPY:
        d -= h * p * (log_p + entropy)
    return d * inv_t


@triton.jit
def _write_gradient(
    x_ptr,
    V,
    t,
    M,
    log_s,
    entropy,
    g,
    h,
    inv_t,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each thread writes where it read."""
    columns = tl.arange(0, BLOCK)
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        c = start + columns
        d = _dlogits(tl.load(x_ptr + c), c, t, M, log_s, entropy, g, h, inv_t, HAS_ENTROPY)
        tl.store(x_ptr + c, d.to(x_ptr.dtype.element_ty))
    if whole < V:
        c = whole + columns
        x = tl.load(x_ptr + c, mask=c < V, other=-float("inf"))
        d = _dlogits(x, c, t, M, log_s, entropy, g, h, inv_t, HAS_ENTROPY)
        tl.store(x_ptr + c, d.to(x_ptr.dtype.element_ty), mask=c < V)


@triton.jit
def _write_zeros(x_ptr, V, BLOCK: tl.constexpr):
    zeros = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    columns = tl.arange(0, BLOCK)
    whole = (V // BLOCK) * BLOCK
    for start in range(0, whole, BLOCK):
        tl.store(x_ptr + start + columns, zeros)
    if whole < V:
        tl.store(x_ptr + whole + columns, zeros, mask=whole + columns < V)


# ---- one row ----


@triton.jit
def _token_terms(
    logp,
    raw,
    adv,
    ref,
    tis,
    one_minus_low,
    one_plus_high,
    dual,
    kl_coef,
    HAS_REF: tl.constexpr,
):
    """Loss without weight and entropy term, its slope in logp, ratio and clip code; `raw` is logp - old."""
    ratio = tl.exp(tl.minimum(tl.maximum(raw, -_MAX_LOG_RATIO), _MAX_LOG_RATIO))
    is_low = (adv < 0.0) & (ratio < one_minus_low)
    is_high = (adv > 0.0) & (ratio > one_plus_high)
    is_dual = (adv < 0.0) & (ratio > dual)
    factor = tl.where(is_low, one_minus_low, tl.where(is_high, one_plus_high, ratio))
    factor = tl.where(is_dual, dual, factor)
    code = (
        tl.where(is_low, _CLIP_LOW, 0) + tl.where(is_high, _CLIP_HIGH, 0) + tl.where(is_dual, _CLIP_DUAL, 0)
    )
    is_free = (code == 0) & (tl.abs(raw) <= _MAX_LOG_RATIO)
    loss = -factor * adv * tis
    slope = tl.where(is_free, -ratio * adv * tis, 0.0)
    if HAS_REF:
        away = ref - logp
        d = tl.minimum(tl.maximum(away, -_MAX_LOG_RATIO), _MAX_LOG_RATIO)
        e = tl.exp(d)
        loss += kl_coef * (e - d - 1.0)
        slope += tl.where(tl.abs(away) <= _MAX_LOG_RATIO, kl_coef * (1.0 - e), 0.0)
    return loss, slope, ratio, code


@triton.jit
def token_loss_kernel(
    x_ptr, ids_ptr, weights_ptr, advantages_ptr, old_ptr, ref_ptr, tis_ptr,
    logprobs_ptr, entropy_ptr, ratio_ptr, code_ptr, loss_ptr,
    stride, V, inv_t, one_minus_low, one_plus_high, dual, kl_coef,
    entropy_coef,
    HAS_OLD: tl.constexpr, HAS_REF: tl.constexpr, HAS_TIS: tl.constexpr, HAS_ENTROPY: tl.constexpr,
    GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    weight = tl.load(weights_ptr + row)
    if weight == 0.0:
        if GRAD:
            _write_zeros(x_ptr, V, BLOCK)
        return
    t = tl.load(ids_ptr + row)
    x_t = tl.load(x_ptr + t).to(tl.float32)
    M, S, W = _row_sums(x_ptr, V, inv_t, BLOCK)
    log_s = tl.log(S)
    logp = (x_t - M) * inv_t - log_s
    entropy = log_s - W / S
    raw = logp * 0.0
    ref = logp
    tis = 1.0
    if HAS_OLD:
        raw = logp - tl.load(old_ptr + row)
    if HAS_REF:
        ref = tl.load(ref_ptr + row)
    if HAS_TIS:
        tis = tl.load(tis_ptr + row)
    loss, slope, ratio, code = _token_terms(
        logp,
        raw,
        tl.load(advantages_ptr + row),
        ref,
        tis,
        one_minus_low,
        one_plus_high,
        dual,
        kl_coef,
        HAS_REF,
    )
    if HAS_ENTROPY:
        loss -= entropy_coef * entropy
    # A log-prob that is not finite must not pass for a number: clamps above could have hidden it.
    is_fine = tl.abs(logp) < float("inf")
    loss = tl.where(is_fine, loss, float("nan"))
    slope = tl.where(is_fine, slope, float("nan"))
    tl.store(logprobs_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(ratio_ptr + row, ratio)
    tl.store(code_ptr + row, code.to(tl.int8))
    tl.store(loss_ptr + row, loss * weight)
    if GRAD:
        tl.debug_barrier()  # every thread has read x[t] before one overwrites it
        _write_gradient(
            x_ptr, V, t, M, log_s, entropy, slope * weight, -entropy_coef * weight, inv_t, HAS_ENTROPY, BLOCK
        )


@triton.jit
def row_stats_kernel(
    x_ptr, ids_ptr, weights_ptr, max_ptr, sum_ptr, weighted_ptr,
    target_ptr, stride, V, first_id, inv_t, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(weights_ptr + row) == 0.0:
        return
    x_ptr += row * stride
    M, S, W = _row_sums(x_ptr, V, inv_t, BLOCK)
    t = tl.load(ids_ptr + row) - first_id
    x_t = tl.load(x_ptr + t, mask=(t >= 0) & (t < V), other=-float("inf")).to(tl.float32)
    tl.store(max_ptr + row, M)
    tl.store(sum_ptr + row, S)
    tl.store(weighted_ptr + row, W)
    tl.store(target_ptr + row, x_t)


@triton.jit
def grad_kernel(
    x_ptr, ids_ptr, max_ptr, log_sum_ptr, entropy_ptr, dlogprobs_ptr,
    dentropy_ptr, stride, V, first_id, inv_t,
    HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    g = tl.load(dlogprobs_ptr + row)
    h = tl.load(dentropy_ptr + row)
    if (g == 0.0) & (h == 0.0):
        _write_zeros(x_ptr, V, BLOCK)
        return
    _write_gradient(
        x_ptr, V, tl.load(ids_ptr + row) - first_id, tl.load(max_ptr + row), tl.load(log_sum_ptr + row),
        tl.load(entropy_ptr + row), g, h, inv_t, HAS_ENTROPY, BLOCK,
    )  # fmt: skip


# ---- launching; the functions of torch_ops ----


def token_loss_(
    logits_NV: Tensor,
    tokens: Tokens,
    spec: LossSpec,
    *,
    grad: bool,
    tis_of: TisOf | None = None,
    config: LaunchConfig | None = None,
) -> TokenStats:
    """See `torch_ops.token_loss_`. Accumulates in float32 whatever the logits are."""
    if tis_of is not None:
        return _corrected_token_loss_(logits_NV, tokens, spec, tis_of, grad=grad)
    num_rows, vocabulary = logits_NV.shape
    stats = TokenStats.unread(num_rows, dtype=torch.float32, device=logits_NV.device)
    if not num_rows:
        return stats
    given = {name: _flat(tensor) for name, tensor in tokens.per_row().items()}
    nothing = given["weights_N"]  # a pointer for what is not there
    config = config or launch_config(arch_of(logits_NV.device), vocabulary)
    token_loss_kernel[(num_rows,)](
        logits_NV, given["ids_N"], given["weights_N"], given["advantages_N"],
        given.get("old_logprobs_N", nothing), given.get("ref_logprobs_N", nothing),
        given.get("tis_N", nothing),
        stats.logprobs_N, stats.entropy_N, stats.ratio_N, stats.clip_code_N, stats.loss_N,
        _row_stride(logits_NV), vocabulary, 1.0 / spec.temperature, 1.0 - spec.clip_low, 1.0 + spec.clip_high,
        math.inf if spec.dual_clip is None else spec.dual_clip, spec.kl_coef, spec.entropy_coef,
        HAS_OLD="old_logprobs_N" in given, HAS_REF=spec.kl_coef != 0, HAS_TIS="tis_N" in given,
        HAS_ENTROPY=spec.entropy_coef != 0, GRAD=grad, BLOCK=config.block, num_warps=config.num_warps,
    )  # fmt: skip
    return stats


def _corrected_token_loss_(
    logits_NV: Tensor, tokens: Tokens, spec: LossSpec, tis_of: TisOf, *, grad: bool
) -> TokenStats:
    """Two launches instead of one: the factors are made in between, of the log-probs of the first."""
    stats = TokenStats.unread(len(logits_NV), dtype=torch.float32, device=logits_NV.device)
    live_L = tokens.weights_N.nonzero()[:, 0]
    found = row_stats(logits_NV, tokens.ids_N, tokens.weights_N, temperature=spec.temperature)
    logprobs_L, entropy_L = found.logprobs_N(spec.temperature)[live_L], found.entropy_N()[live_L]
    part = replace(tokens.select(live_L), tis_N=tis_of(logprobs_L, live_L))
    some = token_grads(logprobs_L, entropy_L, part, spec)
    stats.put(live_L, some.stats)
    if grad:
        zeros_N = torch.zeros_like(stats.logprobs_N)
        grads = TokenGrads(
            stats=stats,
            dlogprobs_N=zeros_N.index_copy(0, live_L, some.dlogprobs_N),
            dentropy_N=zeros_N.index_copy(0, live_L, some.dentropy_N),
        )
        grad_(logits_NV, tokens.ids_N, found, grads, temperature=spec.temperature)
    return stats


def row_stats(
    logits_NV: Tensor, ids_N: Tensor, weights_N: Tensor, *, temperature: float, first_id: int = 0
) -> RowStats:
    """See `torch_ops.row_stats`."""
    num_rows, vocabulary = logits_NV.shape
    out = [torch.full((num_rows,), math.nan, device=logits_NV.device) for _ in range(4)]
    config = launch_config(arch_of(logits_NV.device), vocabulary)
    if num_rows:
        row_stats_kernel[(num_rows,)](
            logits_NV, _flat(ids_N), _flat(weights_N), *out, _row_stride(logits_NV), vocabulary, first_id,
            1.0 / temperature, BLOCK=config.block, num_warps=config.num_warps,
        )  # fmt: skip
    return RowStats(max_N=out[0], sum_N=out[1], weighted_N=out[2], target_N=out[3])


def grad_(
    logits_NV: Tensor,
    ids_N: Tensor,
    whole: RowStats,
    grads: TokenGrads,
    *,
    temperature: float,
    first_id: int = 0,
) -> None:
    """See `torch_ops.grad_`."""
    num_rows, vocabulary = logits_NV.shape
    config = launch_config(arch_of(logits_NV.device), vocabulary)
    if num_rows:
        grad_kernel[(num_rows,)](
            logits_NV, _flat(ids_N), _flat(whole.max_N), whole.log_sum_N(), whole.entropy_N(),
            _flat(grads.dlogprobs_N), _flat(grads.dentropy_N), _row_stride(logits_NV), vocabulary, first_id,
            1.0 / temperature, HAS_ENTROPY=bool((grads.dentropy_N != 0).any()), BLOCK=config.block,
            num_warps=config.num_warps,
        )  # fmt: skip


def _flat(values_N: Tensor) -> Tensor:
    """Contiguous, and float32 if it is of a floating type: what the kernels read."""
    return (values_N.float() if values_N.is_floating_point() else values_N).contiguous()


def _row_stride(logits_NV: Tensor) -> int:
    if logits_NV.stride(1) != 1:
        raise ValueError(f"the columns of a row must be adjacent, got strides {logits_NV.stride()}")
    return logits_NV.stride(0)
