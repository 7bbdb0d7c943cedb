"""Group-relative advantages (GRPO).

Legend: `_G` kept siblings of one task.
"""

import math
from collections.abc import Sequence


def has_no_signal(rewards: Sequence[float]) -> bool:
    """Say whether a group teaches nothing: all rewards equal, or fewer than two of them.

    Such a group has advantage 0 everywhere (arXiv 2508.20722, Eq. 2), so its gradient is exactly zero.
    """
    return all(reward == rewards[0] for reward in rewards)


def group_advantages(rewards_G: Sequence[float], *, std_eps: float = 1e-6) -> list[float]:
    """Return the advantage of each kept sibling: A_i = (r_i - mean) / (std + std_eps).

    Source: arXiv 2508.20722, Eq. 2 and 7, taken over the group after Resample-on-Correct. The paper does
    not say which standard deviation; this is the unbiased one (N - 1), as in the released code, and so is
    `std_eps`.

    Assumes that every reward is a real score. A trajectory that failed for reasons of ours has none and
    must not be in the group.

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
