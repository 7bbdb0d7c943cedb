"""Which tokens of a trajectory are the most uncertain ones.

Legend: N tokens that the policy wrote.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOP_SHARE: Final = 0.2


def top_membership(entropy_N: Floats, share: float = TOP_SHARE) -> Floats:
    """How much of each token lies among the `share` of highest entropy: 1, 0, or a part.

    It sums to share * N. Tokens that are equal at the edge have the rest of the room in equal parts, so that
    the order in which they were written gives none of them a place. ValueError for an entropy that is NaN.
    """
    if np.isnan(entropy_N).any():
        raise ValueError("an entropy is not a number")
    room = share * len(entropy_N)
    if not len(entropy_N):
        return np.zeros(0)
    edge = np.sort(entropy_N)[::-1][max(0, int(np.ceil(room - 1e-9)) - 1)]
    above_N, equal_N = entropy_N > edge, entropy_N == edge
    member_N: Floats = above_N + equal_N * (room - above_N.sum()) / equal_N.sum()
    return member_N
