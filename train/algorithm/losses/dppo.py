"""DPPO with the binary total variation: a token is left out once its probability has moved too far.

    loss_t = -M_t r_t A_t        r_t = exp(current_t - rollout_t), p = exp(current_t), q = exp(rollout_t)
    M_t = 0 if A_t > 0 and p - q > high, or A_t < 0 and q - p > low, else 1

Source: arXiv 2602.04879.
Constants: differences of probabilities, 0.2 and 0.2 in prime-rl, which adds 1e-3 (current - rollout)^2; here there is
no such term.
Edge cases: a token with p + q below the bound is never left out, whatever its ratio, and r has no upper bound but
e^20. A token that moves against its advantage is never left out.
"""

from dataclasses import dataclass

from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Dppo(PolicyLoss):
    """Constants: the largest fall (`low`) and rise (`high`) of a token's probability, from 0 to 1."""

    low: float
    high: float

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        rise_T = tokens.logprobs_T.detach().exp() - tokens.rollout_logprobs_T.exp()
        too_high_T = (tokens.advantages_T > 0) & (rise_T > self.high)
        too_low_T = (tokens.advantages_T < 0) & (rise_T < -self.low)
        surrogate_T = ratios(tokens.logprobs_T, tokens.rollout_logprobs_T) * tokens.advantages_T
        return -surrogate_T.masked_fill(too_high_T | too_low_T, 0.0)
