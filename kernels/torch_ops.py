"""The token loss in plain torch: block by block of rows, in place, with the gradient written out by hand.

What runs on a CPU, and on a device without Triton. `triton_ops` has the same functions.

    logits block ──> max, sum, weighted sum ──> log-prob, entropy ──> loss, d loss ──> d logits, in place

Legend: N rows, V vocabulary (or one shard of it), B rows of one block, L rows with weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rocstar.kernels.reference import clip_codes
from rocstar.kernels.tokens import (
    CLIP_DUAL,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_NONE,
    MAX_LOG_RATIO,
    LossSpec,
    RowStats,
    TisOf,
    Tokens,
    TokenStats,
)

BLOCK_BYTES = 4 << 20  # of float32 logits at a time: two such buffers stay in the last-level cache
FLOOR = -1e30  # stands for -inf where 0 * -inf would be NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrads:
    """The loss of a row as a function of its log-prob and entropy, and its two derivatives."""

    stats: TokenStats
    dlogprobs_N: Tensor
    dentropy_N: Tensor


def token_loss_(
    logits_NV: Tensor, tokens: Tokens, spec: LossSpec, *, grad: bool, tis_of: TisOf | None = None
) -> TokenStats:
    """Loss, log-prob, entropy, ratio and clip code of each row; with `grad`, logits become their gradient.

    Rows without weight are not read; with `grad` they become 0. Without `grad` the logits stay as they are.
    `tis_of` takes the place of `tokens.tis_N`.
    """
    num_rows, vocabulary = logits_NV.shape
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    stats = TokenStats.unread(num_rows, dtype=wide, device=logits_NV.device)
    live_L = tokens.weights_N.nonzero()[:, 0]
    if grad and len(live_L) < num_rows:
        logits_NV[tokens.weights_N == 0] = 0.0
    buffers = torch.empty(
        2, min(_block_rows(vocabulary), len(live_L)), vocabulary, dtype=wide, device=logits_NV.device
    )
    for rows_B in _blocks(live_L, vocabulary):
        part = tokens.select(rows_B)
        shifted_BV, exp_BV = buffers[0, : len(rows_B)], buffers[1, : len(rows_B)]
        found = _row_stats(logits_NV[rows_B], part.ids_N, spec.temperature, shifted_BV, exp_BV)
        logprobs_B = found.logprobs_N(spec.temperature)
        if tis_of is not None:
            part = replace(part, tis_N=tis_of(logprobs_B, rows_B))
        grads = token_grads(logprobs_B, found.entropy_N(), part, spec)
        stats.put(rows_B, grads.stats)
        if grad:
            _dlogits(shifted_BV, exp_BV, part.ids_N, found, grads, spec.temperature)
            logits_NV[rows_B] = exp_BV.to(logits_NV.dtype)
    return stats


def row_stats(
    logits_NV: Tensor, ids_N: Tensor, weights_N: Tensor, *, temperature: float, first_id: int = 0
) -> RowStats:
    """Mergeable statistics of each row of a vocabulary shard that begins at `first_id`."""
    num_rows, vocabulary = logits_NV.shape
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    out = [torch.full((num_rows,), math.nan, dtype=wide, device=logits_NV.device) for _ in range(4)]
    for rows_B in _blocks(weights_N.nonzero()[:, 0], vocabulary):
        local_B = ids_N[rows_B] - first_id
        here_B = (local_B >= 0) & (local_B < vocabulary)
        x_BV = logits_NV[rows_B]
        shifted_BV, exp_BV = torch.empty_like(x_BV, dtype=wide), torch.empty_like(x_BV, dtype=wide)
        found = _row_stats(x_BV, local_B.where(here_B, 0), temperature, shifted_BV, exp_BV)
        target_B = found.target_N.where(here_B, -math.inf)
        for whole, some in zip(out, (found.max_N, found.sum_N, found.weighted_N, target_B), strict=True):
            whole[rows_B] = some
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
    """Logits of a vocabulary shard become their gradient, given the statistics of the whole rows."""
    idle_N = (grads.dlogprobs_N == 0) & (grads.dentropy_N == 0)
    logits_NV[idle_N] = 0.0
    for rows_B in _blocks((~idle_N).nonzero()[:, 0], logits_NV.shape[1]):
        some = RowStats(**{name: getattr(whole, name)[rows_B] for name in RowStats.__slots__})
        shifted_BV = (logits_NV[rows_B] - some.max_N[:, None]) / temperature
        shifted_BV.clamp_(min=FLOOR)
        part = TokenGrads(
            stats=grads.stats, dlogprobs_N=grads.dlogprobs_N[rows_B], dentropy_N=grads.dentropy_N[rows_B]
        )
        exp_BV = shifted_BV.exp()
        _dlogits(shifted_BV, exp_BV, ids_N[rows_B] - first_id, some, part, temperature)
        logits_NV[rows_B] = exp_BV.to(logits_NV.dtype)


def token_grads(logprobs_N: Tensor, entropy_N: Tensor, tokens: Tokens, spec: LossSpec) -> TokenGrads:
    """The formula of `reference.py` from log-prob and entropy on, with its derivatives."""
    a_N, old_N = tokens.advantages_N, tokens.old_logprobs_N
    raw_N = torch.zeros_like(logprobs_N) if old_N is None else logprobs_N - old_N
    ratio_N = raw_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    code_N = clip_codes(ratio_N, a_N, spec)
    surrogate_N = ratio_N * a_N
    slope_N = surrogate_N.where((code_N == CLIP_NONE) & (raw_N.abs() <= MAX_LOG_RATIO), 0.0)
    surrogate_N = torch.where(code_N == CLIP_LOW, (1 - spec.clip_low) * a_N, surrogate_N)
    surrogate_N = torch.where(code_N == CLIP_HIGH, (1 + spec.clip_high) * a_N, surrogate_N)
    if spec.dual_clip is not None:
        surrogate_N = torch.where(code_N == CLIP_DUAL, spec.dual_clip * a_N, surrogate_N)
    if tokens.tis_N is not None:
        surrogate_N, slope_N = surrogate_N * tokens.tis_N, slope_N * tokens.tis_N
    loss_N, dlogprobs_N = -surrogate_N, -slope_N
    if spec.kl_coef:
        assert tokens.ref_logprobs_N is not None
        away_N = tokens.ref_logprobs_N - logprobs_N
        d_N = away_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        loss_N = loss_N + spec.kl_coef * (d_N.exp() - d_N - 1)
        dkl_N = (1 - d_N.exp()).where(away_N.abs() <= MAX_LOG_RATIO, 0.0)
        dlogprobs_N = dlogprobs_N + spec.kl_coef * dkl_N
    loss_N = tokens.weights_N * (loss_N - spec.entropy_coef * entropy_N)
    dlogprobs_N = tokens.weights_N * dlogprobs_N
    broken_N = ~logprobs_N.isfinite()
    dentropy_N = -spec.entropy_coef * tokens.weights_N
    return TokenGrads(
        stats=TokenStats(
            logprobs_N=logprobs_N,
            entropy_N=entropy_N,
            ratio_N=ratio_N,
            clip_code_N=code_N,
            loss_N=loss_N.masked_fill(broken_N, math.nan).to(logprobs_N.dtype),
        ),
        dlogprobs_N=dlogprobs_N.masked_fill(broken_N, math.nan).to(logprobs_N.dtype),
        dentropy_N=dentropy_N.to(logprobs_N.dtype),
    )


def _block_rows(vocabulary: int) -> int:
    return max(1, BLOCK_BYTES // (4 * max(vocabulary, 1)))


def _blocks(rows_L: Tensor, vocabulary: int) -> Iterator[Tensor]:
    size = _block_rows(vocabulary)
    return (rows_L[start : start + size] for start in range(0, len(rows_L), size))


def _row_stats(
    x_BV: Tensor, ids_B: Tensor, temperature: float, shifted_BV: Tensor, exp_BV: Tensor
) -> RowStats:
    """Fills both buffers: (x - max) / T and its exponential."""
    max_B = x_BV.amax(-1).to(shifted_BV.dtype).clamp_(min=FLOOR)  # a shard may have no token for a row
    torch.sub(x_BV, max_B[:, None], out=shifted_BV)
    if temperature != 1:
        shifted_BV.div_(temperature)
    torch.exp(shifted_BV, out=exp_BV)
    weighted_B = torch.linalg.vecdot(exp_BV, shifted_BV)
    if not bool(weighted_B.isfinite().all()):
        weighted_B = torch.linalg.vecdot(exp_BV, shifted_BV.clamp_(min=FLOOR))
    target_B = x_BV.gather(-1, ids_B[:, None])[:, 0].to(shifted_BV.dtype)
    return RowStats(max_N=max_B, sum_N=exp_BV.sum(-1), weighted_N=weighted_B, target_N=target_B)


def _dlogits(
    shifted_BV: Tensor, exp_BV: Tensor, ids_B: Tensor, found: RowStats, grads: TokenGrads, temperature: float
) -> None:
    """d z_c = g (1[c = id] - p_c) + h dH/dz_c, with dH/dz_c = -p_c (log p_c + H); over `exp_BV`."""
    g_B, h_B = grads.dlogprobs_N / temperature, grads.dentropy_N / temperature
    if bool(h_B.any()):
        shifted_BV.add_((found.entropy_N() - found.log_sum_N())[:, None])
        exp_BV.mul_(shifted_BV.mul_(h_B[:, None]).add_(g_B[:, None])).div_(-found.sum_N[:, None])
    else:
        exp_BV.mul_((-g_B / found.sum_N)[:, None])
    here_B = (ids_B >= 0) & (ids_B < exp_BV.shape[1])
    exp_BV.scatter_add_(1, ids_B.where(here_B, 0)[:, None], g_B.where(here_B, 0.0)[:, None])
