"""Input and output types of advantage estimators.

Legend: `_G` kept siblings of one task, `_U` turns of a trajectory, `_T` its loss tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps

Advantage = float | Sequence[float]
"""The advantage of one trajectory: a number for all of its loss tokens, or one for each, in order."""

Path = tuple[tuple[int, int], ...]
"""Where a trajectory comes from: (0, sibling), then for each fork that it left its parent at (turns before the fork,
number of the continuation, from 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A kept trajectory as an estimator sees it.

    Invariant: the reward is finite. A trajectory that failed for reasons of ours has none and is no sample.
    """

    reward: float
    is_correct: bool
    tokens_U: tuple[int, ...]
    """Loss tokens of each turn; 0 for the turns before a branch, which are its parent's samples."""
    errors_U: tuple[int, ...]
    """Tool calls of each turn whose result is an error, those before a branch included."""
    tool_tokens: int = 0
    """Tokens behind the prompt that the policy did not write."""
    shared_tokens: int = 0
    """Tokens that the policy wrote before a branch."""
    path: Path = ()
    """Empty: a root of its own."""
    gaps_T: tuple[float, ...] = ()
    """Log-prob of each loss token under a teacher less that of the rollout; empty without a teacher."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"a reward must be finite, got {self.reward}; a failed trajectory has no reward")

    @property
    def num_tokens(self) -> int:
        """Loss tokens of all turns."""
        return sum(self.tokens_U)

    def spread(self, values_U: Sequence[float]) -> list[float]:
        """Return one number per loss token from one per turn. ValueError unless every turn has one."""
        return [value for value, tokens in zip(values_U, self.tokens_U, strict=True) for _ in range(tokens)]


Groups = Sequence[Sequence[Sample]]
"""The whole batch of a step: the kept siblings of each task, at least two, not all of one reward."""

Estimator = Callable[[Groups], Sequence[Sequence[Advantage]]]
"""Gives the advantages of a batch, group by group and sample by sample."""


def has_no_signal(rewards: Sequence[float]) -> bool:
    """Say whether a group teaches nothing: all rewards equal, or fewer than two of them.

    Such a group has advantage 0 everywhere (arXiv 2508.20722, Eq. 2), so its gradient is exactly zero.
    """
    return all(reward == rewards[0] for reward in rewards)


def per_group(of_group: Callable[[Sequence[Sample]], Sequence[Advantage]]) -> Estimator:
    """Make an estimator of a function that needs to see only one group at a time."""

    @wraps(of_group)
    def estimate(groups: Groups) -> list[Sequence[Advantage]]:
        return [of_group(group) for group in groups]

    return estimate
