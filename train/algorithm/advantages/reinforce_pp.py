"""REINFORCE++: the z-score of the reward over the whole batch of the step, whatever the task.

    A_i = (r_i - mean(r)) / sqrt(var(r) + eps)       mean and variance over all loss tokens of the batch

Source: arXiv 2501.03262 (global advantage normalisation), without its KL term, which this objective does not
have. Each token has its trajectory's reward as return, so a trajectory counts in mean and variance as often
as it has loss tokens; the variance is that of the batch (divided by N). `eps` = 1e-8 guards the division.

There is no baseline of a task: a trajectory of an easy task is above the batch's mean even where its siblings
were as good. Groups whose rewards are all equal were left out before (no signal), as for every estimator.

Edge cases: a batch of equal rewards, or without a loss token, has advantage 0 everywhere.
"""

import math

from rocstar.train.algorithm.advantages.sample import Groups, has_no_signal


def reinforce_pp(groups: Groups, *, eps: float = 1e-8) -> list[list[float]]:
    """Return the advantage of each sample of each group, normalised over all of them."""
    samples = [sample for group in groups for sample in group]
    num_tokens = sum(sample.num_tokens for sample in samples)
    if not num_tokens or has_no_signal([sample.reward for sample in samples]):
        return [[0.0] * len(group) for group in groups]
    mean = math.fsum(s.num_tokens * s.reward for s in samples) / num_tokens
    variance = math.fsum(s.num_tokens * (s.reward - mean) ** 2 for s in samples) / num_tokens
    return [[(s.reward - mean) / math.sqrt(variance + eps) for s in group] for group in groups]
