"""How per-token losses become one number: a weight per token, from global counts.

The loss is always `sum_t weight_t * loss_t`. The weights carry the whole normalisation, so splitting a
batch into microbatches, or over ranks, does not change the gradient.
"""

from collections.abc import Sequence


def token_weights(lengths: Sequence[int]) -> list[float]:
    """Return, for each trajectory, the weight of each one of its loss tokens.

    Every loss token of the batch counts equally: w_i = 1 / sum_j |o_j| (arXiv 2508.20722, Eq. 6).

    Args:
        lengths: number of loss tokens of every trajectory of the batch, over all microbatches and ranks.

    Invariant: `sum_i lengths[i] * weight[i] == 1` if the batch has a loss token.

    Edge cases: a trajectory without loss tokens gets weight 0.0; a batch without loss tokens gets 0.0
    everywhere.
    """
    num_tokens = sum(lengths)
    return [1.0 / num_tokens if length else 0.0 for length in lengths]
