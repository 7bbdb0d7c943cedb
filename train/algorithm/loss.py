"""The loss, as it runs: the clipped token-level policy loss, and that of imitation.

    hidden_TD ──head──> logits_TV ──log_softmax──> logprobs_T ──policy_loss──> loss_T ──sum──> loss

The learner (train/learner/learner.py) hands these functions to `rocstar.kernels`, which makes the log-probs
some rows at a time, calls the function on them, and takes its gradient by autograd: there is no second
implementation of the loss.
The kernels have their own log_softmax, since logits of a whole batch do not fit in memory;
`logprobs_and_entropy` is its definition, and they are tested against both.

Legend: `_T` packed tokens that carry loss, `_V` vocabulary. Log-probs are natural logarithms in float32
(float64 in tests). A tensor of log-probs is one of three, by who computed it and when:

    rollout   the inference engine, while sampling
    old       the learner, at the start of the batch
    current   the learner, now; the only one that carries gradient

    ratio = exp(current - old)        TIS weight = min(exp(old - rollout), cap), see off_policy.py
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(89) overflows float32, and the gradient of a dropped infinity is NaN

CLIP_NONE = 0
CLIP_LOW = 1
CLIP_HIGH = 2


def policy_loss(
    logprobs_T: Tensor,
    *,
    old_logprobs_T: Tensor | None,
    advantages_T: Tensor,
    weights_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    tis_T: Tensor | None = None,
) -> Tensor:
    """Return each token's term of the loss, which is their sum:

        loss_t = w_t * tis_t * -min(ratio_t * A_t, clip(ratio_t, 1 - clip_low, 1 + clip_high) * A_t)

    Source: arXiv 2508.20722, Eq. 6: clip-higher, token-level, no KL and no entropy term. Masked tokens were
    left out before. Which bound holds a token: see `clip`.

    Args:
        logprobs_T: current log-probs; the only argument with gradient.
        old_logprobs_T: None means "the policy is the old policy": the ratio is exactly 1 and the gradient is
            that of A * log-prob.
        advantages_T: one per token; those of a trajectory are equal in GRPO.
        weights_T: the whole normalisation, from global counts (see `aggregate`), so that the losses of parts
            of a batch add up. A token with weight 0 adds exactly nothing.
        clip_low: how far below 1 the ratio of a token with A < 0 has an effect.
        clip_high: how far above 1 the ratio of a token with A > 0 has an effect.
        tis_T: a constant factor per token (see `off_policy`); None: 1.

    Edge cases: no tokens: the sum is 0 and still runs backward to `logprobs_T`. A value that is not finite is
    not looked for, as that would wait for the device: the learner checks what goes in, and
    `kernels/row_loss.py` makes loss and gradient NaN where a log-prob is not finite.

    Raises:
        ValueError: tensors of different or not 1-D shapes, half precision, or clip bounds that make no
            interval around 1.
    """
    _check(
        logprobs_T=logprobs_T,
        old_logprobs_T=old_logprobs_T,
        advantages_T=advantages_T,
        weights_T=weights_T,
        tis_T=tis_T,
    )
    # The code comes first and chooses the term, so that value, gradient and code cannot disagree.
    ratio_T, code_T = clip(logprobs_T, old_logprobs_T, advantages_T, clip_low, clip_high)
    surrogate_T = ratio_T * advantages_T
    surrogate_T = torch.where(code_T == CLIP_LOW, (1 - clip_low) * advantages_T, surrogate_T)
    surrogate_T = torch.where(code_T == CLIP_HIGH, (1 + clip_high) * advantages_T, surrogate_T)
    if tis_T is not None:
        surrogate_T = surrogate_T * tis_T.detach()
    return weights_T * -surrogate_T


def clip(
    logprobs_T: Tensor, old_logprobs_T: Tensor | None, advantages_T: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Return the ratio of each token, and which bound holds it: CLIP_NONE, CLIP_LOW or CLIP_HIGH (int8).

    The sign of A decides which bound can act, and a token that one holds has no gradient. A ratio on a bound
    is free. Log-ratios are clamped to +-MAX_LOG_RATIO; beyond it a token has no gradient.
    """
    if not (0 <= clip_low < 1 and clip_high >= 0):
        raise ValueError(f"need 0 <= clip_low < 1 and clip_high >= 0, got clip_low={clip_low}, clip_high={clip_high}")
    old_T = logprobs_T.detach() if old_logprobs_T is None else old_logprobs_T.detach()
    ratio_T = (logprobs_T - old_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    is_low_T = (advantages_T < 0) & (ratio_T < 1 - clip_low)
    is_high_T = (advantages_T > 0) & (ratio_T > 1 + clip_high)
    code_T = torch.full_like(ratio_T, CLIP_NONE, dtype=torch.int8, requires_grad=False)
    return ratio_T, code_T.masked_fill(is_low_T, CLIP_LOW).masked_fill(is_high_T, CLIP_HIGH)


def imitation_loss(logprobs_T: Tensor, *, weights_T: Tensor) -> Tensor:
    """Return each token's term of the weighted cross-entropy: w_t * -log p_t.

    It is the loss of the cold start, and of ECHO (arXiv 2605.24517) beside the policy loss: there the tokens are those
    of tool results after the policy's first turn, and w_t = `rl.echo` / their number in the optimizer step.
    """
    _check(logprobs_T=logprobs_T, weights_T=weights_T)
    return weights_T * -logprobs_T


def logprobs_and_entropy(logits_TV: Tensor, ids_T: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log_softmax(logits / temperature)[token], and the entropy of softmax(logits / temperature).

    This is the one definition of a log-prob: sampling, old and current ones all follow it. Both are in
    float32 (float64 for float64 logits). Entropy, in nats, has no gradient: it is a metric here, and the
    objective has no entropy term. A forbidden token (logit -inf) adds 0 to it.

    Raises:
        ValueError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}; greedy tokens have no log-prob")
    wide_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    log_softmax_TV = torch.log_softmax(wide_TV / temperature, dim=-1)
    with torch.no_grad():
        # entr(p) = -p log p with entr(0) = 0; -p * log_softmax would be NaN for a forbidden token.
        entropy_T: Tensor = torch.special.entr(log_softmax_TV.exp()).sum(-1)
    return log_softmax_TV.gather(-1, ids_T.unsqueeze(-1)).squeeze(-1), entropy_T


def _check(**tensors_T: Tensor | None) -> None:
    """Raise unless all tensors are 1-D, of one length and full precision. Does not look at values."""
    given = {name: tensor for name, tensor in tensors_T.items() if tensor is not None}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise ValueError(f"need 1-D tensors of one length, got {shapes}")
    half = [name for name, tensor in given.items() if tensor.dtype not in (torch.float32, torch.float64)]
    if half:
        raise ValueError(f"need float32 or float64, got {half[0]} in {given[half[0]].dtype}")
