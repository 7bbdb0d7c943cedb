"""CISPO: the log-likelihood, weighted by a truncated ratio without gradient.

    loss_t = -sg(clip(r_t, low, high)) A_t current_t        r_t = exp(current_t - rollout_t), sg: no gradient

Source: arXiv 2506.13585; arXiv 2510.13786 compares it with others.
Constants: bounds of the ratio itself, 0 and 5 by default. Other programs write the same bounds differently: SkyRL adds
-1 and 4 to 1, verl and slime add their numbers too, 0.2 by default; TRL's `epsilon_high` is an absolute upper bound,
whose default of 0.2 scales every gradient by 0.2.
Edge cases: every token keeps a gradient, so `clip/*` is 0; `mismatch_ratio/p99` shows whether a bound acts. The value
of the loss is in nats and not comparable with that of the other losses.
"""

from dataclasses import dataclass

from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(PolicyLoss):
    """Constants: `low` < `high`, bounds of the ratio."""

    low: float
    high: float

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        ratio_T = ratios(tokens.logprobs_T.detach(), tokens.rollout_logprobs_T)
        return -ratio_T.clamp(self.low, self.high) * tokens.advantages_T * tokens.logprobs_T
