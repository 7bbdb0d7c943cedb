"""The clipped token-level policy loss: the definition that the kernels are tested against.

Legend: `_T` packed tokens that carry loss, `_V` vocabulary. Log-probs are natural logarithms in float32
(float64 in tests). A tensor of log-probs is one of three, by who computed it and when:

    rollout   the inference engine, while sampling
    old       the learner, at the start of the batch
    current   the learner, now; the only one that carries gradient

    ratio = exp(current - old)        TIS weight = min(exp(old - rollout), cap)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(89) overflows float32, and the gradient of a dropped infinity is NaN

CLIP_NONE = 0
CLIP_LOW = 1
CLIP_HIGH = 2
CLIP_DUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss of one microbatch and what happened to each token; all but `loss` are detached."""

    loss: Tensor
    """Scalar."""
    ratio_T: Tensor
    """Probability ratio current / old, within exp(+-MAX_LOG_RATIO)."""
    clip_code_T: Tensor
    """int8: CLIP_NONE, CLIP_LOW, CLIP_HIGH or CLIP_DUAL. A clipped token has no gradient."""


def policy_loss(
    logprobs_T: Tensor,
    *,
    old_logprobs_T: Tensor | None,
    advantages_T: Tensor,
    weights_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    tis_T: Tensor | None = None,
) -> PolicyLoss:
    """Return sum_t w_t * tis_t * -min(ratio_t * A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) * A_t).

    Source: arXiv 2508.20722, Eq. 6: clip-higher, token-level, no KL and no entropy term. `weights_T` holds
    the normalisation (see `aggregate`), so the losses of microbatches add up. With `dual_clip` = c > 1 the
    term of a token with A < 0 is at most -c * A (arXiv 1912.09729; the released code has c = 3, the paper
    has none). `tis_T` is a constant factor per token, see `truncated_importance_weights`.

    Assumes that masked tokens were left out; one with weight 0 adds exactly nothing.

    Edge cases: `old_logprobs_T=None` means "the policy is the old policy": the ratio is exactly 1 and the
    gradient is that of A * log-prob. A ratio on a boundary is not clipped. No tokens: the loss is 0 and
    still runs backward to `logprobs_T`, so a rank with nothing to learn takes part in the collectives.
    Log-ratios are clamped to +-MAX_LOG_RATIO; beyond it a token has no gradient.

    Raises:
        ValueError: tensors of different or not 1-D shapes, half precision, NaN or infinity in any of them,
            or clip bounds that make no interval around 1.
    """
    if not (0 <= clip_low < 1 and clip_high >= 0 and (dual_clip is None or dual_clip > 1)):
        raise ValueError(
            "need 0 <= clip_low < 1, clip_high >= 0 and dual_clip > 1 (or none), "
            f"got clip_low={clip_low}, clip_high={clip_high}, dual_clip={dual_clip}"
        )
    _check(
        logprobs_T=logprobs_T,
        old_logprobs_T=old_logprobs_T,
        advantages_T=advantages_T,
        weights_T=weights_T,
        tis_T=tis_T,
    )
    old_T = logprobs_T.detach() if old_logprobs_T is None else old_logprobs_T.detach()
    ratio_T = (logprobs_T - old_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    # The code comes first and chooses the term, so that value, gradient and code cannot disagree.
    code_T = _clip_codes(ratio_T.detach(), advantages_T, clip_low, clip_high, dual_clip)
    surrogate_T = ratio_T * advantages_T
    surrogate_T = torch.where(code_T == CLIP_LOW, (1 - clip_low) * advantages_T, surrogate_T)
    surrogate_T = torch.where(code_T == CLIP_HIGH, (1 + clip_high) * advantages_T, surrogate_T)
    if dual_clip is not None:
        surrogate_T = torch.where(code_T == CLIP_DUAL, dual_clip * advantages_T, surrogate_T)
    scale_T = weights_T if tis_T is None else weights_T * tis_T.detach()
    return PolicyLoss(loss=(scale_T * -surrogate_T).sum(), ratio_T=ratio_T.detach(), clip_code_T=code_T)


def truncated_importance_weights(old_logprobs_T: Tensor, rollout_logprobs_T: Tensor, *, cap: float) -> Tensor:
    """Return the token-level weight min(exp(old - rollout), cap), detached.

    Truncated importance sampling corrects for an inference engine whose probabilities differ from those of
    the learner with the same weights (other kernels, other precision), with bounded variance: Ionides 2008,
    applied per token.

    Raises:
        ValueError: `cap` is not positive, the shapes differ, or a log-prob is NaN or infinite.
    """
    if not cap > 0:
        raise ValueError(f"cap must be positive, got {cap}")
    _check(old_logprobs_T=old_logprobs_T, rollout_logprobs_T=rollout_logprobs_T)
    return (old_logprobs_T - rollout_logprobs_T).detach().exp().clamp(max=cap)


def token_logprobs(logits_TV: Tensor, ids_T: Tensor, temperature: float) -> Tensor:
    """Return log_softmax(logits / temperature)[token] in float32 (float64 for float64 logits).

    This is the one definition of a log-prob: sampling, old and current ones all follow it.

    Raises:
        ValueError: `temperature` is not positive.
    """
    return _log_softmax(logits_TV, temperature).gather(-1, ids_T.unsqueeze(-1)).squeeze(-1)


def token_entropy(logits_TV: Tensor, temperature: float) -> Tensor:
    """Return the entropy of softmax(logits / temperature) at each position, in nats, without gradient.

    A forbidden token (logit -inf) adds 0. Entropy is a metric here: the objective has no entropy term.

    Raises:
        ValueError: `temperature` is not positive.
    """
    with torch.no_grad():
        return _entropy(_log_softmax(logits_TV, temperature))


def logprobs_and_entropy(logits_TV: Tensor, ids_T: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return `token_logprobs` (with gradient) and `token_entropy` (without) from one log_softmax."""
    log_softmax_TV = _log_softmax(logits_TV, temperature)
    logprobs_T = log_softmax_TV.gather(-1, ids_T.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        return logprobs_T, _entropy(log_softmax_TV)


def _log_softmax(logits_TV: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}; greedy tokens have no log-prob")
    wide_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    return torch.log_softmax(wide_TV / temperature, dim=-1)


def _entropy(log_softmax_TV: Tensor) -> Tensor:
    # entr(p) = -p log p with entr(0) = 0; -p * log_softmax would be NaN for a forbidden token.
    entropy_T: Tensor = torch.special.entr(log_softmax_TV.exp()).sum(-1)
    return entropy_T


def _clip_codes(
    ratio_T: Tensor, advantages_T: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """Name the branch of min/clip that each token takes; the sign of A decides which bound can act."""
    code_T = torch.full_like(ratio_T, CLIP_NONE, dtype=torch.int8)
    code_T[(advantages_T < 0) & (ratio_T < 1 - clip_low)] = CLIP_LOW
    code_T[(advantages_T > 0) & (ratio_T > 1 + clip_high)] = CLIP_HIGH
    if dual_clip is not None:
        code_T[(advantages_T < 0) & (ratio_T > dual_clip)] = CLIP_DUAL
    return code_T


def _check(**tensors_T: Tensor | None) -> None:
    """Raise unless all tensors are 1-D, of one length, full precision and finite; one device sync in all."""
    given = {name: tensor for name, tensor in tensors_T.items() if tensor is not None}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise ValueError(f"need 1-D tensors of one length, got {shapes}")
    half = [name for name, tensor in given.items() if tensor.dtype not in (torch.float32, torch.float64)]
    if half:
        raise ValueError(f"need float32 or float64, got {half[0]} in {given[half[0]].dtype}")
    is_finite = torch.stack([tensor.detach().isfinite().all() for tensor in given.values()])
    if not bool(is_finite.all()):
        bad = [name for name, good in zip(given, is_finite.tolist(), strict=True) if not good]
        raise ValueError(f"NaN or infinity in {', '.join(bad)}")
