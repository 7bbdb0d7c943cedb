"""One token row that the learner learns from, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rocstar.train.algorithm.advantages import Advantage

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One token row ready to learn from. All columns have one entry per token; any sequence becomes one.

    Invariant: mask[0] is False (the first token is predicted by nothing) and mask is True only on tokens the
    policy (or a demonstrator) wrote.
    """

    ids: Any
    mask: Any
    weights: Any
    """Share of each token in the loss of its optimizer step; 0 where the mask is."""
    rollout_logprobs: Any = None
    """Rollout log-probs; None, for one token or all, counts as 0. NaN is refused later."""
    echo: Any = None
    """True on tokens of tool results that are learned by imitation; None: on none. Those before the first token with
    loss, or behind the last, are left out."""
    echo_weight: float = 0.0
    """Share of each of them in the loss of the optimizer step."""
    advantage: Advantage
    """The advantage of every token with loss, or one number for each."""
    name: str = ""
    """The name of its trajectory, for messages."""
    is_branch: bool = False
    """Another trajectory sampled its beginning, up to a tool's output."""

    def __post_init__(self) -> None:
        """Take columns from sequences. ValueError for lengths that do not fit together."""
        given = self.ids, self.mask, self.weights, self.rollout_logprobs, self.echo
        if len({len(column) for column in given if column is not None}) > 1:
            raise ValueError("ids, mask, weights, rollout_logprobs and echo must have one entry per token")
        mask = np.asarray(self.mask, dtype=bool)
        if len(mask) < 2 or mask[0]:
            raise ValueError("an example needs two tokens or more, the first without loss")
        if not isinstance(self.advantage, int | float) and len(self.advantage) != mask.sum():
            raise ValueError(f"{len(self.advantage)} advantages for {mask.sum()} loss tokens")
        object.__setattr__(self, "ids", np.asarray(self.ids, dtype=np.int64))
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=np.float64))
        object.__setattr__(self, "rollout_logprobs", _numbers(self.rollout_logprobs, mask))
        if self.echo is not None:
            echo = np.asarray(self.echo, dtype=bool) & ~mask & np.logical_or.accumulate(mask)
            echo[self.last_loss :] = False
            object.__setattr__(self, "echo", echo)

    @property
    def num_targets(self) -> int:
        return int(self.mask.sum())

    @property
    def num_echo(self) -> int:
        """Number of tokens that are learned by imitation."""
        return 0 if self.echo is None else int(self.echo.sum())

    @property
    def last_loss(self) -> int:
        """Place of the last token with loss; 0 without one."""
        places = np.flatnonzero(self.mask)
        return int(places[-1]) if len(places) else 0

    @property
    def advantages(self) -> Floats:
        """The advantage of each token with loss."""
        if isinstance(self.advantage, int | float):
            return np.full(self.num_targets, self.advantage, dtype=np.float64)
        return np.asarray(self.advantage, dtype=np.float64)


def _numbers(logprobs: Sequence[float | None] | Floats | None, mask: Mask) -> Floats:
    """The log-probs as numbers. A missing one is 0, and one that is not a number stays so, to be refused."""
    if logprobs is None:
        return np.zeros(len(mask))
    values = np.array(logprobs, dtype=np.float64)  # None becomes nan
    values[~mask] = 0.0
    if isinstance(logprobs, np.ndarray):
        return values
    for place in np.flatnonzero(np.isnan(values)):
        if logprobs[int(place)] is None:
            values[place] = 0.0
    return values
