"""The loss, as it runs: the policy loss that a recipe names, and that of imitation.

    hidden_TD ──head──> logits_TV ──log_softmax──> logprobs_T ──policy_loss──> loss_T ──sum──> loss

The learner (train/learner/learner.py) hands these functions to `rocstar.kernels`, which makes the log-probs
some rows at a time, calls the function on them, and takes its gradient by autograd: there is no second
implementation of a loss. Policy losses by name are in losses/, one file each.
The kernels have their own log_softmax, since logits of a whole batch do not fit in memory;
`logprobs_and_entropy` is its definition, and they are tested against both.

Legend: `_T` packed tokens that carry loss, `_S` sequences in the same order, `_V` vocabulary. Log-probs are natural
logarithms in float32 (float64 in tests). A tensor of log-probs is one of three, by who computed it and when:

    rollout   the inference engine, while sampling
    old       the learner, at the start of the batch
    current   the learner, now; the only one that carries gradient
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(89) overflows float32, and the gradient of a dropped infinity is NaN

CLIP_NONE = 0
CLIP_LOW = 1
CLIP_HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The input of a policy loss: the sampled tokens with loss, sequence by sequence, each tensor of shape (T,)."""

    logprobs_T: Tensor
    """Current log-probs; the only tensor with gradient."""
    old_logprobs_T: Tensor
    """Equal to the current ones in the first update of a batch: the ratio to them is then exactly 1."""
    rollout_logprobs_T: Tensor
    advantages_T: Tensor
    """Those of a trajectory are equal in GRPO."""
    after_tool_T: Tensor
    """bool: whether the token comes after tool output of its trajectory."""
    lengths_S: Sequence[int] | None
    """Tokens of each sequence; None: a block of tokens that may begin and end within a sequence."""


class PolicyLoss(ABC):
    """A policy loss with its constants; its result depends on nothing else."""

    __slots__ = ()
    reads_sequences: ClassVar[bool] = False
    """True if a token's loss depends on other tokens of its sequence: `lengths_S` is then given."""
    problem: str = ""
    """Why a loss could not be made: those tokens then have NaN, which stops all ranks."""

    @abstractmethod
    def __call__(self, tokens: PolicyTokens) -> Tensor:
        """Return the loss of each token, (T,), before any weight, differentiable in the current log-probs.

        It must not synchronize with the device and need not handle values that are not finite. Without tokens its
        sum is 0 and still has a gradient function.
        """


def policy_loss(
    loss: PolicyLoss, tokens: PolicyTokens, *, weights_T: Tensor, factors_T: Tensor | None = None
) -> Tensor:
    """Return each token's term of the loss, which is their sum: w_t * factor_t * loss_t.

    Masked tokens were left out before.

    Args:
        loss: one of losses/, or an own function of the recipe.
        weights_T: the whole normalisation, from global counts (see `aggregate`), so that the losses of parts
            of a batch add up. A token with weight 0 adds exactly nothing.
        factors_T: a constant factor per token (see `off_policy`); None: 1.

    Edge cases: no tokens: the sum is 0 and still runs backward to the log-probs. A value that is not finite is
    not looked for, as that would wait for the device: the learner checks its input, and `kernels/row_loss.py`
    makes loss and gradient NaN where a log-prob is not finite.

    Raises:
        ValueError: tensors of different or not 1-D shapes, or half precision.
    """
    _check(
        logprobs_T=tokens.logprobs_T,
        old_logprobs_T=tokens.old_logprobs_T,
        rollout_logprobs_T=tokens.rollout_logprobs_T,
        advantages_T=tokens.advantages_T,
        weights_T=weights_T,
        factors_T=factors_T,
    )
    loss_T = loss(tokens)
    if factors_T is not None:
        loss_T = loss_T * factors_T.detach()
    return weights_T * loss_T


def stopped(loss: PolicyLoss, tokens: PolicyTokens) -> Tensor:
    """Return which tokens have no gradient under `loss`, by the sign of their advantage (int8, (T,)).

    CLIP_LOW: A < 0, its probability has fallen enough. CLIP_HIGH: A > 0, it has risen enough. CLIP_NONE: the loss
    still moves the token, or A is 0.
    """
    with torch.enable_grad():
        leaf_T = tokens.logprobs_T.detach().requires_grad_()
        (slope_T,) = torch.autograd.grad(loss(replace(tokens, logprobs_T=leaf_T)).sum(), leaf_T)
    code_T = torch.full_like(slope_T, CLIP_NONE, dtype=torch.int8)
    is_stopped_T = slope_T == 0
    code_T = code_T.masked_fill(is_stopped_T & (tokens.advantages_T < 0), CLIP_LOW)
    return code_T.masked_fill(is_stopped_T & (tokens.advantages_T > 0), CLIP_HIGH)


def ratios(logprobs_T: Tensor, start_logprobs_T: Tensor) -> Tensor:
    """Return exp(current - start) of each token, with gradient in the current log-probs.

    Log-ratios are clamped to +-MAX_LOG_RATIO; beyond it a token has no gradient.
    """
    return (logprobs_T - start_logprobs_T.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(ratio_T: Tensor, advantages_T: Tensor, *, low: float, high: float) -> Tensor:
    """Return min(ratio * A, clip(ratio, low, high) * A) of each token.

    The sign of A decides which bound can act, and a token beyond it has no gradient. A ratio on a bound is free.
    """
    surrogate_T = ratio_T * advantages_T
    surrogate_T = torch.where((advantages_T < 0) & (ratio_T < low), low * advantages_T, surrogate_T)
    return torch.where((advantages_T > 0) & (ratio_T > high), high * advantages_T, surrogate_T)


def sequence_sums(values_T: Tensor, lengths_S: Sequence[int] | None) -> Tensor:
    """Return for each token the sum of the values over its sequence, in float64.

    Sequence by sequence: the same bits whatever else is in the microbatch.

    Raises:
        ValueError: the tokens are no whole sequences.
    """
    if lengths_S is None or sum(lengths_S) != len(values_T):
        raise ValueError(f"need whole sequences, got {len(values_T)} tokens of sequences of lengths {lengths_S}")
    sums_S = torch.stack([part.double().sum() for part in torch.split(values_T, list(lengths_S))])
    repeats_S = torch.tensor(list(lengths_S), device=sums_S.device)
    return sums_S.repeat_interleave(repeats_S, output_size=len(values_T))


def sequence_means(values_T: Tensor, lengths_S: Sequence[int] | None) -> Tensor:
    """Return for each token the mean of the values over its sequence, in float64. ValueError: see `sequence_sums`."""
    return sequence_sums(values_T, lengths_S) / sequence_sums(torch.ones_like(values_T), lengths_S)


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
    float32 (float64 for float64 logits). Entropy, in nats, has no gradient here; `linear_loss` has that of the entropy
    term. A forbidden token (logit -inf) adds 0 to it.

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
