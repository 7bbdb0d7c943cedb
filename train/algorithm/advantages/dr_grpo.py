"""Dr. GRPO ("GRPO done right"): the reward above the mean of the kept siblings, not divided by their spread.

    A_i = r_i - mean(r)

Source: arXiv 2503.20783, section 3.2. Dividing by the standard deviation weighs tasks by how unequal their
rewards are: the easiest and the hardest ones most. The other half of the paper's change, a loss divided by a
constant instead of each answer's length, is no matter of advantages: the loss here is a mean over all tokens
of the step, which has no length of one answer in it.

Edge cases: equal rewards, and a group of one, have advantage 0.

Legend: `_G` kept siblings of one task.
"""

import math
from collections.abc import Sequence

from rocstar.train.algorithm.advantages.sample import Sample, has_no_signal, per_group


@per_group
def dr_grpo(samples_G: Sequence[Sample]) -> list[float]:
    """Return A_i = r_i - mean(r) of each kept sibling."""
    rewards_G = [sample.reward for sample in samples_G]
    if has_no_signal(rewards_G):  # rounding would leave a trace of the mean
        return [0.0] * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    return [reward - mean for reward in rewards_G]
