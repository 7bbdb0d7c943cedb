"""GSPO: the clipped loss with one ratio for a sequence, the geometric mean of those of its tokens.

    loss_t = -min(s_t A_t, clip(s_t, low, high) A_t)        s_t = sg(s) p_t / sg(p_t), sg: no gradient
    s = exp(mean over the sequence of (current_t - rollout_t)), p_t = exp(current_t)

Source: arXiv 2507.18071, GSPO-token: where A is the same in all tokens of a sequence the gradient is that of GSPO, and
else an advantage moves its own token alone. There the loss is a mean over sequences; here every token of the batch
weighs the same.
Constants: bounds of s itself; 1 - 3e-4 and 1 + 4e-4 in verl's example.
Edge cases: the mean is over sampled tokens: tool output is not among them. s needs the log-probs of a
sequence before any gradient. The mean of rollout - current is an estimate of the KL of engine and learner: if it is
above the width of the interval without any update, every sequence with A < 0 is stopped (`clip/low_fraction`), and the
bounds must be wider.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens, clipped_surrogate, ratios, sequence_means


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(PolicyLoss):
    """Constants: `low` < `high`, bounds of the sequence's ratio."""

    reads_sequences: ClassVar[bool] = True
    low: float
    high: float

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        now_T = tokens.logprobs_T.detach()
        mean_T = sequence_means(now_T - tokens.rollout_logprobs_T, tokens.lengths_S)
        ratio_T = ratios(tokens.logprobs_T, now_T - mean_T)  # s, with the gradient of the token's own log-prob
        loss_T = -clipped_surrogate(ratio_T, tokens.advantages_T, low=self.low, high=self.high)
        return loss_T.to(tokens.logprobs_T.dtype)
