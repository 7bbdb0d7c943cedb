"""How per-token losses become one number: a weight per token, from global counts.

The loss is always `sum_t weight_t * loss_t`. The weights carry the whole normalisation, so splitting a
batch into microbatches, or over ranks, does not change the gradient.
"""

from collections.abc import Sequence
from enum import StrEnum


class Aggregation(StrEnum):
    """What counts equally in the mean."""

    token_mean = "token_mean"  # every loss token of the batch: arXiv 2508.20722, Eq. 6
    sequence_mean = "sequence_mean"  # every trajectory, then every token in it: Eq. 1


def token_weights(lengths: Sequence[int], mode: Aggregation) -> list[float]:
    """Return, for each trajectory, the weight of each one of its loss tokens.

    token_mean (Eq. 6):     w_i = 1 / sum_j |o_j|
    sequence_mean (Eq. 1):  w_i = 1 / (number of trajectories * |o_i|)

    Args:
        lengths: number of loss tokens of every trajectory of the batch, over all microbatches and ranks.
        mode: what the mean is over.

    Invariant: `sum_i lengths[i] * weight[i] == 1` if the batch has a loss token.

    Edge cases: a trajectory without loss tokens gets weight 0.0 and is not counted as a trajectory; a
    batch without loss tokens gets 0.0 everywhere.

    Raises:
        ValueError: a length is negative.
    """
    if any(length < 0 for length in lengths):
        raise ValueError(f"token counts cannot be negative, got {list(lengths)}")
    num_tokens = sum(lengths)
    if mode == Aggregation.token_mean:
        return [1.0 / num_tokens if length else 0.0 for length in lengths]
    num_trajectories = sum(length > 0 for length in lengths)
    return [1.0 / (num_trajectories * length) if length else 0.0 for length in lengths]
