"""GSPO: the clipped loss with one ratio for a sequence, the geometric mean of those of its tokens.

    loss_t = -min(s A_t, clip(s, low, high) A_t)        s = exp(mean over the sequence of (current_t - rollout_t))

Source: arXiv 2507.18071. There the loss is a mean over sequences; here every token of the batch weighs the same.
Constants: bounds of s itself; 1 - 3e-4 and 1 + 4e-4 in verl's example.
Edge cases: the mean is over sampled tokens: tool output is not among them. s has a gradient in every token of its
sequence, so the log-probs of a sequence are computed before any gradient. The mean of rollout - current is an estimate
of the KL of engine and learner: if it is above the width of the interval without any update, every sequence with A < 0
is stopped (`clip/low_fraction`), and the bounds must be wider.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rocstar.train.algorithm.loss import MAX_LOG_RATIO, PolicyLoss, PolicyTokens, clipped_surrogate, sequence_means


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(PolicyLoss):
    """Constants: `low` < `high`, bounds of the sequence's ratio."""

    reads_sequences: ClassVar[bool] = True
    low: float
    high: float

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        mean_T = sequence_means(tokens.logprobs_T - tokens.rollout_logprobs_T.detach(), tokens.lengths_S)
        ratio_T = mean_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        loss_T = -clipped_surrogate(ratio_T, tokens.advantages_T, low=self.low, high=self.high)
        return loss_T.to(tokens.logprobs_T.dtype)
