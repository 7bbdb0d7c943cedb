"""Where the rollout's probabilities are not the learner's: how far apart, what to do, when to stop.

The inference engine and the learner hold the same weights and still disagree: other kernels, another
precision, weights that never arrived. Three answers, all from the log-probs of the tokens that were sampled:

    correct    a constant factor per token: truncated importance sampling, or a mask
    measure    mismatch KL and the spread of the ratios, apart for tokens after tool output
    start_kl   distance of the policy to the policy at the start of RL
    gate       no update after several steps too far apart

Legend: `_T` packed tokens that carry loss, `_S` sequences, in the same order. Everywhere

    ratio = learner at the batch start / rollout = exp(old - rollout)         (contract: TIS, not PPO's ratio)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from rocstar.train.algorithm.loss import MAX_LOG_RATIO, PolicyTokens, sequence_means, sequence_sums


class Correction(StrEnum):
    """The weight of a token's loss, with r its ratio."""

    none = "none"  # 1
    token = "token"  # min(r, cap)
    sequence = "sequence"  # min(product of r over the sequence, cap)
    icepop = "icepop"  # r within [floor, cap], else 0
    sequence_mask = "sequence_mask"  # product of r over the sequence up to cap, else 0
    negative_mask = "negative_mask"  # 0 if A < 0 and the sequence's mean current ratio is below floor, else 1

    @property
    def reads_sequences(self) -> bool:
        """True if the weight of a token depends on other tokens of its sequence."""
        return self in (Correction.sequence, Correction.sequence_mask, Correction.negative_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The factor of every token, and which tokens the bounds acted on; no gradient in any of them."""

    weights_T: Tensor | None
    """None: nothing is multiplied, not even by one."""
    is_capped_T: Tensor
    is_masked_T: Tensor
    """A masked token has weight 0: it adds exactly nothing."""


def correct(tokens: PolicyTokens, *, mode: Correction, cap: float, floor: float) -> Corrected:
    """Return the importance weight of each token.

    token          w_t = min(r_t, cap). Truncated importance sampling (Ionides 2008), per token as in Yao et al.
                   2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    sequence       w_t = min(W, cap), W = prod_{u in sequence} r_u: the unbiased weight of the whole sequence,
                   truncated; its variance grows with the length.
    icepop         w_t = r_t if floor <= r_t <= cap else 0. Ring-1T report (arXiv 2510.18855), IcePop; there
                   floor = 0.5 and cap = 5.
    sequence_mask  w_t = W if W <= cap else 0. TRL's default, there cap = 3. A mean gap of 1e-4 over 10,000 tokens
                   makes W = 2.7: the mask is harder on long sequences. W near 0 is not masked.
    negative_mask  w_t = 0 if A_t < 0 and m < floor, else 1; m = exp(mean_{u in sequence} (current_u - rollout_u)).
                   DeepSeek-V3.2 (arXiv 2512.02556), Eq. 9, whose bound d is floor = exp(-d). TRL suggests d = 0.5,
                   slime 1e-4. It weights no token, so it also fits a loss that starts from the rollout.

    A masked token keeps its share of the denominator, so the loss shrinks by what was masked and no other
    token counts for more. A value that is not finite is not looked for, as that would wait for the device.

    Args:
        tokens: whole sequences if `mode.reads_sequences`.
        cap, floor: bounds on the ratio, 0 <= floor < cap; `floor` is used by `icepop` and `negative_mask` only.

    Raises:
        ValueError: parts of sequences where whole ones are needed.
    """
    log_ratio_T = (tokens.old_logprobs_T - tokens.rollout_logprobs_T).detach()
    dtype = log_ratio_T.dtype
    if mode == Correction.negative_mask:
        gap_T = tokens.logprobs_T.detach() - tokens.rollout_logprobs_T
        log_ratio_T = sequence_means(gap_T, tokens.lengths_S).to(dtype)
    elif mode.reads_sequences:
        log_ratio_T = sequence_sums(log_ratio_T, tokens.lengths_S).to(dtype)
    ratio_T, nothing_T = log_ratio_T.exp(), torch.zeros_like(log_ratio_T, dtype=torch.bool)
    weights_T, is_capped_T, is_masked_T = ratio_T, nothing_T, nothing_T
    match mode:
        case Correction.none:
            return Corrected(weights_T=None, is_capped_T=nothing_T, is_masked_T=nothing_T)
        case Correction.token | Correction.sequence:
            weights_T, is_capped_T = ratio_T.clamp(max=cap), log_ratio_T > math.log(cap)
        case Correction.icepop:
            is_masked_T = (ratio_T < floor) | (ratio_T > cap)
        case Correction.sequence_mask:
            is_masked_T = ratio_T > cap
        case Correction.negative_mask:
            weights_T, is_masked_T = torch.ones_like(ratio_T), (tokens.advantages_T < 0) & (ratio_T < floor)
    weights_T = weights_T.masked_fill(is_masked_T, 0.0)
    return Corrected(weights_T=weights_T, is_capped_T=is_capped_T, is_masked_T=is_masked_T)


# ---- how far apart ----

ELSEWHERE, AFTER_TOOL = 0, 1
"""Rows of `Mismatch.sums`: tokens before any tool output of their trajectory, and tokens behind some."""
TOKENS, KL, CAPPED, MASKED, FIRST_BIN = range(5)
"""Columns of `Mismatch.sums`; a histogram of |log ratio| begins at FIRST_BIN."""
SMALLEST, BINS_PER_E, NUM_BINS = 1e-7, 64, 1226
"""Bins of |log ratio|, each 1.6% wider than the one before: up to SMALLEST, ..., up to MAX_LOG_RATIO."""


@dataclass(slots=True, eq=False)
class Mismatch:
    """Sums over tokens; adding two of them gives that of both batches, so microbatches and ranks add up.

    `sums` is a float64 tensor on the CPU: (ELSEWHERE, AFTER_TOOL) x (TOKENS, KL, CAPPED, MASKED, bins).
    In what reads it, `row` None means all tokens.
    """

    sums: Tensor = field(default_factory=lambda: torch.zeros(2, FIRST_BIN + NUM_BINS, dtype=torch.float64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mismatch) and torch.equal(self.sums, other.sums)

    def add(self, other: Mismatch) -> None:
        self.sums = self.sums + other.sums

    def num_tokens(self, row: int | None = None) -> int:
        return int(self._of(row)[TOKENS])

    def kl(self, row: int | None = None) -> float:
        """Mean of rollout - old log-prob: the estimate k1 of KL(rollout || learner), in nats (Schulman 2020).

        Its expectation is never negative; a mean clearly below 0 says that the rollout's log-probs are not
        those of the distribution it sampled from.
        """
        return self.mean(KL, row)

    def ratio_p99(self, row: int | None = None) -> float:
        """99% of the tokens have max(ratio, 1 / ratio) at most this: 1 if nothing is measured.

        Both directions count, for a token that the learner finds unlikely is as wrong as one that it finds
        likely. From the histogram: log of it at most 1.6% too large, never too small.
        """
        sums = self._of(row)
        if not sums[TOKENS]:
            return 1.0
        reached = sums[FIRST_BIN:].cumsum(0) >= 0.99 * sums[TOKENS]
        k = int(reached.nonzero()[0])
        return math.exp(min(SMALLEST * math.exp(k / BINS_PER_E), MAX_LOG_RATIO)) if k else 1.0

    def _of(self, row: int | None) -> Tensor:
        return self.sums.sum(0) if row is None else self.sums[row]

    def mean(self, column: int, row: int | None = None) -> float:
        """The mean of a sum over the tokens: CAPPED and MASKED as shares. 0 without tokens."""
        sums = self._of(row)
        return float(sums[column] / sums[TOKENS]) if sums[TOKENS] else 0.0


def measure(tokens: PolicyTokens, corrected: Corrected) -> Mismatch:
    """Return the sums of these tokens."""
    gap_T = (tokens.rollout_logprobs_T - tokens.old_logprobs_T).detach().double().cpu()
    size_T = gap_T.abs().clamp(max=MAX_LOG_RATIO)
    bin_T = ((size_T / SMALLEST).clamp(min=1.0).log() * BINS_PER_E).ceil().long().clamp(max=NUM_BINS - 1)
    result, after_tool_T = Mismatch(), tokens.after_tool_T.cpu()
    for row, chosen_T in ((ELSEWHERE, ~after_tool_T), (AFTER_TOOL, after_tool_T)):
        sums = result.sums[row]
        sums[TOKENS], sums[KL] = chosen_T.sum(), gap_T[chosen_T].sum()
        sums[CAPPED] = corrected.is_capped_T.cpu()[chosen_T].sum()
        sums[MASKED] = corrected.is_masked_T.cpu()[chosen_T].sum()
        sums[FIRST_BIN:] = torch.bincount(bin_T[chosen_T], minlength=NUM_BINS)
    return result


def start_kl(logprobs_T: Tensor, start_logprobs_T: Tensor) -> Tensor:
    """Return each token's estimate of KL(policy || policy at the start of RL): nats, float64, at least 0.

    k3_t = exp(d_t) - 1 - d_t, with d_t = start - present log-prob of the token, clamped to +-MAX_LOG_RATIO.

    Its expectation is the KL of the next-token distributions where the present policy drew the tokens
    (Schulman 2020, "Approximating KL Divergence", k3). Tokens of trajectories that RoC kept are not drawn
    evenly, so their mean shows a trend rather than an unbiased KL.

    Args:
        logprobs_T, start_logprobs_T: of the same T tokens, under either policy.
    """
    gap_T = (start_logprobs_T.detach().double() - logprobs_T.detach().double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap_T.expm1() - gap_T


# ---- when to stop ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """When the optimizer pauses: after `steps` steps in a row that are too far apart; 0 = never.

    A step is measured before any of its updates, so the last of these steps changes no weight. The first
    step that is near again updates at once.
    """

    kl: float
    """Bound on the size of the mismatch KL, in nats."""
    ratio_p99: float
    steps: int

    def count(self, bad_before: int, mismatch: Mismatch) -> int:
        """Steps in a row that are too far apart, this one included; a step without tokens says nothing."""
        if not mismatch.num_tokens():
            return bad_before
        # Negated, so that NaN is too far.
        near = abs(mismatch.kl()) <= self.kl and mismatch.ratio_p99() <= self.ratio_p99
        return 0 if near else bad_before + 1

    def pauses(self, bad_steps: int) -> bool:
        return 0 < self.steps <= bad_steps

    def skipped(self, bad_steps: int) -> int:
        """The number of `bad_steps` in a row that made no update."""
        return max(0, bad_steps - self.steps + 1) if self.steps else 0
