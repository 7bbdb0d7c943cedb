"""The specification of the kernels: the loss of a token in float64, gradient by autograd. Slow on purpose.

Legend: N rows (tokens), V vocabulary.

    z = x / T                                   log p = log_softmax(z)          logp = log p[id]
    H = -Σ_c p_c log p_c
    ratio = exp(clamp(logp - old, ±MAX_LOG_RATIO))                              1 without `old`
    surrogate = min(ratio A, clamp(ratio, 1 - clip_low, 1 + clip_high) A)       arXiv 2508.20722, Eq. 6
    surrogate = max(surrogate, dual_clip A) where A < 0, if there is a dual clip       arXiv 1912.09729
    k3 = exp(d) - d - 1,  d = clamp(ref - logp, ±MAX_LOG_RATIO)                 joschu.net/blog/kl-approx.html
    loss = w (-tis surrogate + kl_coef k3 - entropy_coef H)

The sum of `loss` is what is differentiated. Without KL and entropy terms it is `policy_loss` of
`train/algorithm/loss.py`, which is the definition; a test holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rocstar.kernels.tokens import (
    CLIP_DUAL,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_NONE,
    MAX_LOG_RATIO,
    LossSpec,
    Tokens,
    TokenStats,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an implementation must return."""

    stats: TokenStats
    dlogits_NV: Tensor
    """float64: the gradient of the summed loss; exactly 0 in rows without weight."""


def token_loss(logits_NV: Tensor, tokens: Tokens, spec: LossSpec) -> Expected:
    """The loss and its gradient in float64. `logits_NV` of any floating type is not changed.

    Raises:
        ValueError: as `Tokens.check`.
    """
    tokens.check(len(logits_NV), logits_NV.shape[1], spec)
    live_L = tokens.weights_N.nonzero()[:, 0]
    wide = {name: t if name == "ids_N" else t.double() for name, t in tokens.select(live_L).per_row().items()}
    x_LV = logits_NV[live_L].double().requires_grad_(True)
    with torch.enable_grad():
        part = _forward(x_LV, Tokens(**wide), spec)
        (dx_LV,) = torch.autograd.grad(part.loss_N.sum(), x_LV)
    stats = TokenStats.unread(len(logits_NV), dtype=torch.float64, device=logits_NV.device)
    detached = {name: getattr(part, name).detach() for name in TokenStats.__slots__}
    stats.put(live_L, TokenStats(**detached))
    dlogits_NV = torch.zeros_like(logits_NV, dtype=torch.float64)
    dlogits_NV[live_L] = dx_LV
    return Expected(stats=stats, dlogits_NV=dlogits_NV)


def _forward(x_NV: Tensor, tokens: Tokens, spec: LossSpec) -> TokenStats:
    log_p_NV = torch.log_softmax(x_NV / spec.temperature, dim=-1)
    logp_N = log_p_NV.gather(-1, tokens.ids_N[:, None])[:, 0]
    # A forbidden token (-inf) has p = 0 and adds nothing; 0 * -inf would be NaN, in the gradient too.
    entropy_N = -(log_p_NV.exp() * log_p_NV.masked_fill(log_p_NV == -math.inf, 0.0)).sum(-1)
    old_N = logp_N.detach() if tokens.old_logprobs_N is None else tokens.old_logprobs_N
    ratio_N = (logp_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    a_N = tokens.advantages_N
    surrogate_N = torch.minimum(ratio_N * a_N, ratio_N.clamp(1 - spec.clip_low, 1 + spec.clip_high) * a_N)
    if spec.dual_clip is not None:
        bounded_N = torch.maximum(surrogate_N, spec.dual_clip * a_N)
        surrogate_N = torch.where(a_N < 0, bounded_N, surrogate_N)
    loss_N = -surrogate_N if tokens.tis_N is None else -surrogate_N * tokens.tis_N
    if spec.kl_coef:
        assert tokens.ref_logprobs_N is not None
        d_N = (tokens.ref_logprobs_N - logp_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        loss_N = loss_N + spec.kl_coef * (d_N.exp() - d_N - 1)
    loss_N = tokens.weights_N * (loss_N - spec.entropy_coef * entropy_N)
    return TokenStats(
        logprobs_N=logp_N,
        entropy_N=entropy_N,
        ratio_N=ratio_N,
        clip_code_N=clip_codes(ratio_N.detach(), a_N, spec),
        loss_N=loss_N,
    )


def clip_codes(ratio_N: Tensor, advantages_N: Tensor, spec: LossSpec) -> Tensor:
    """int8: which bound holds the token. The sign of A decides which one can; a ratio on a bound is free."""
    code_N = torch.full_like(ratio_N, CLIP_NONE, dtype=torch.int8)
    code_N[(advantages_N < 0) & (ratio_N < 1 - spec.clip_low)] = CLIP_LOW
    code_N[(advantages_N > 0) & (ratio_N > 1 + spec.clip_high)] = CLIP_HIGH
    if spec.dual_clip is not None:
        code_N[(advantages_N < 0) & (ratio_N > spec.dual_clip)] = CLIP_DUAL
    return code_N
