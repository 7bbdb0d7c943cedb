"""SAPO: a soft gate in place of the clip; the gradient fades as the ratio leaves 1.

    loss_t = -(4 / tau) sigmoid(tau (r_t - 1)) A_t        r_t = exp(current_t - rollout_t)
    tau = tau_positive if A_t > 0 else tau_negative

Source: arXiv 2511.20347. There the loss is a mean over sequences; here every token of the batch weighs the same.
Constants: 1.0 and 1.05 there; a larger one fades sooner.
Edge cases: at r = 1 the gradient is that of A * log-prob, the value is -2 A / tau. No token is stopped until the
gradient is rounded to 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo(PolicyLoss):
    """Constants: the slopes of the gate, above 0, by the sign of the advantage."""

    tau_positive: float
    tau_negative: float

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        tau_T = torch.full_like(tokens.advantages_T, self.tau_negative)
        tau_T = tau_T.masked_fill(tokens.advantages_T > 0, self.tau_positive)
        ratio_T = ratios(tokens.logprobs_T, tokens.rollout_logprobs_T)
        return -4 / tau_T * torch.sigmoid(tau_T * (ratio_T - 1)) * tokens.advantages_T
