"""The sequential test over seeds: pure functions of paired differences.

A seed gives one difference, arm minus control, from the same cold start, tasks and noise. Without an effect of the
arm its sign is a fair coin, given its size, so all 2^n signs of n differences are equally likely. At each look
the test rejects the patterns of signs with the largest |sum| among those that no earlier look rejected, as many
as the spending allows: alpha n / N by the look at n of N seeds (Lan and DeMets 1983, linear). The observed
pattern is one of them with probability alpha at most, whatever the distribution of the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["higher", "lower", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the seeds so far say of one arm against the control."""

    verdict: Verdict
    difference: float
    """Mean over seeds."""
    interval: tuple[float, float]
    """Every shift that the test does not reject; infinite while it can reject nothing."""
    seeds: int


def decide(differences: Sequence[float], looks: Sequence[int], alpha: float) -> Decision:
    """Test at the looks in turn; seeds behind the deciding look, or behind the last one, are not used."""
    past = [look for look in looks if look <= len(differences)]
    for number in range(1, len(past) + 1):
        used = list(differences[: past[number - 1]])
        if is_rejected(used, past[:number], looks[-1], alpha):
            return _decision("higher" if math.fsum(used) > 0 else "lower", used, past[:number], looks[-1], alpha)
    used = list(differences[: past[-1]]) if past else list(differences)
    return _decision("undecided", used, past, looks[-1], alpha)


def is_rejected(differences: Sequence[float], looks: Sequence[int], last: int, alpha: float) -> bool:
    """Whether any look, each a number of the first differences, rejects that the signs are coins."""
    rejected = np.zeros(1, dtype=bool)
    sums = np.zeros(1)
    begun = 0
    for look in looks:
        for difference in differences[begun:look]:
            sums = np.concatenate([sums + difference, sums - difference])
            rejected = np.concatenate([rejected, rejected])
        begun = look
        rejected |= _extreme(np.abs(sums), rejected, alpha * look / last)
        if rejected[0]:  # pattern 0 is the observed one
            return True
    return False


def _extreme(sizes: NDArray[np.float64], rejected: NDArray[np.bool_], spent: float) -> NDArray[np.bool_]:
    """Return the patterns with the largest sizes that fit into `spent`, a share of all; equal ones go together."""
    free = math.floor(spent * len(sizes) + 1e-9) - int(rejected.sum())
    alive = np.sort(sizes[~rejected])[::-1]
    if free <= 0 or not len(alive):
        return np.zeros_like(rejected)
    if free >= len(alive):
        return ~rejected
    return np.asarray(~rejected & (sizes > alive[free] + 1e-12))


def _decision(verdict: Verdict, used: Sequence[float], looks: Sequence[int], last: int, alpha: float) -> Decision:
    mean = math.fsum(used) / len(used) if used else 0.0
    ends = [_end(used, looks, last, alpha, mean, side) for side in (-1, 1)]
    return Decision(verdict=verdict, difference=mean, interval=(ends[0], ends[1]), seeds=len(used))


def _end(used: Sequence[float], looks: Sequence[int], last: int, alpha: float, mean: float, side: int) -> float:
    """Return the end of the interval on one side of the mean, by bisection."""
    reach = 4 * max((abs(d - mean) for d in used), default=0.0) + 1e-9

    def holds(shift: float) -> bool:
        return not is_rejected([d - shift for d in used], looks, last, alpha)

    if holds(mean + side * reach):
        return side * math.inf
    near, far = 0.0, reach
    for _ in range(40):
        middle = (near + far) / 2
        near, far = (middle, far) if holds(mean + side * middle) else (near, middle)
    return mean + side * far
