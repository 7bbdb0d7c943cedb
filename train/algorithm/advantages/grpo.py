"""GRPO: the z-score of the reward among the kept siblings.

    A_i = (r_i - mean(r)) / (std(r) + eps)

Source: arXiv 2402.03300 (DeepSeekMath), section 4.1.2; arXiv 2508.20722, Eq. 2 and 7, taken over the group
after Resample-on-Correct. Neither says which standard deviation; this is the unbiased one (N - 1), as in the
released code of the second, and so is `eps` = 1e-6.

Legend: `_G` kept siblings of one task.
"""

import math
from collections.abc import Sequence

from rocstar.train.algorithm.advantages.sample import Sample, has_no_signal, per_group


@per_group
def grpo(samples_G: Sequence[Sample]) -> list[float]:
    """Return `group_advantages` of the samples' rewards."""
    return group_advantages([sample.reward for sample in samples_G])


def group_advantages(rewards_G: Sequence[float], *, std_eps: float = 1e-6) -> list[float]:
    """Return the advantage of each kept sibling: A_i = (r_i - mean) / (std + std_eps).

    Edge cases: a group without signal (also a group of one) gets exactly 0.0 everywhere.

    Raises:
        ValueError: the group is empty, or a reward is NaN or infinite.
    """
    if not rewards_G:
        raise ValueError("cannot compute advantages of an empty group; drop the group before this call")
    if not all(math.isfinite(reward) for reward in rewards_G):
        raise ValueError(f"rewards must be finite, got {list(rewards_G)}; a failed trajectory has no reward")
    if has_no_signal(rewards_G):
        return [0.0] * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards_G) / (len(rewards_G) - 1)
    return [(reward - mean) / (math.sqrt(variance) + std_eps) for reward in rewards_G]
