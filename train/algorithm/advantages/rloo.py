"""RLOO, REINFORCE leave-one-out: the reward above the mean of the other kept siblings.

    A_i = r_i - 1/(G - 1) * sum of r_j over j != i
        = G/(G - 1) * (r_i - mean(r))

Source: Kool, van Hoof and Welling 2019 ("Buy 4 REINFORCE samples, get a baseline for free!"); for language
models arXiv 2402.14740 (RLOO). A baseline without the sample itself leaves the gradient unbiased.

Edge cases: equal rewards, and a group of one, which has no others, have advantage 0.

Legend: `_G` kept siblings of one task.
"""

import math
from collections.abc import Sequence

from rocstar.train.algorithm.advantages.sample import Sample, has_no_signal, per_group


@per_group
def rloo(samples_G: Sequence[Sample]) -> list[float]:
    """Return A_i = r_i - mean of the others' rewards, of each kept sibling."""
    rewards_G = [sample.reward for sample in samples_G]
    if has_no_signal(rewards_G):
        return [0.0] * len(rewards_G)
    total = math.fsum(rewards_G)
    return [reward - (total - reward) / (len(rewards_G) - 1) for reward in rewards_G]
