"""The clipped token-level loss of PPO, with a higher upper bound.

    loss_t = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)        r_t = exp(current_t - old_t)

Source: arXiv 2508.20722, Eq. 6: clip-higher, token-level, no KL and no entropy term.
Constants: distances from 1; 0.2 and 0.28 there.
Edge cases: with one update of a batch r is exactly 1, the bounds cannot act, and the gradient is that of A * log-prob.
"""

from dataclasses import dataclass

from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens, clipped_surrogate, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(PolicyLoss):
    clip_low: float
    """How far below 1 the ratio of a token with A < 0 has an effect."""
    clip_high: float
    """How far above 1 the ratio of a token with A > 0 has an effect."""

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        ratio_T = ratios(tokens.logprobs_T, tokens.old_logprobs_T)
        return -clipped_surrogate(ratio_T, tokens.advantages_T, low=1 - self.clip_low, high=1 + self.clip_high)
