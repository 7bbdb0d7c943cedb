"""Estimates from the sums: each class's part of the top fifth, and tokens after tool output compared with a
control.

The first tokens of any turn are uncertain, with or without a tool. So tokens after a response are compared
with tokens at the same offset of turns that answer no tool:

    ratio      = sum_o top(o) / sum_o n(o) c(o)           c(o): the control's share of tokens in the top fifth
    difference = sum_o n(o) (mean(o) - control mean(o)) / sum_o n(o)          in nats

over the offsets o that both have. The control does not remove other differences between such turns: they come
earlier, before any computation.

Intervals: tasks are sampled with replacement, because the trajectories of one are alike. The limits are
percentiles of the draws at the tails that Student's t with m - 1 degrees of freedom has beyond the normal
quantile, times sqrt(m / (m - 1)): plain percentiles of a mean of m clusters are too narrow by these two
factors (Hesterberg 2014, arXiv 1411.5279).

Legend: B draws, Q quantities, M tasks, K columns, C classes, L leads, W offsets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

TOP_SHARE: Final = 0.2


def top_membership(entropy_N: Floats, share: float = TOP_SHARE) -> Floats:
    """Return the membership of each token in the `share` of highest entropy: 1, 0, or a part. ValueError for
    NaN.

    The sum is share * N. Tokens that are equal at the edge have equal parts of the remainder, independent of
    their order.
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


Ints = NDArray[Any]


class Lead(IntEnum):
    """The input that a turn of the policy answers."""

    asked = 0
    """A question: there is no tool result directly before it."""
    ok = 1
    """Tool results without an error."""
    error = 2
    """Tool results with at least one error."""


class Quantity(IntEnum):
    """The summed quantities."""

    tokens = 0
    top = 1
    """The membership in the top fifth of the trajectory."""
    entropy = 2
    """Nats."""


NUM_OFFSETS: Final = 64
"""Offsets from the start of a turn with separate sums."""


class Tally:
    """Sums over trajectories by task.

    Invariant: every token is counted once in `by_class`, and once in `by_offset` if its offset from the start
    of its turn is below NUM_OFFSETS.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._rows: dict[str, int] = {}
        self._by_class: list[Floats] = []
        self._by_offset: list[Floats] = []
        self.num_trajectories = 0

    @property
    def num_tasks(self) -> int:
        return len(self._rows)

    @property
    def by_class(self) -> Floats:
        """Sums (Q, M, C)."""
        return np.stack(self._by_class, axis=1)

    @property
    def by_offset(self) -> Floats:
        """Sums (Q, M, L, W)."""
        return np.stack(self._by_offset, axis=1)

    def add(self, task: str, entropy_N: Floats, class_N: Ints, lead_N: Ints, offset_N: Ints) -> Floats:
        """Count a trajectory, and return its tokens' membership in the top fifth."""
        top_N = top_membership(entropy_N)
        if task not in self._rows:
            self._rows[task] = len(self._rows)
            self._by_class.append(np.zeros((len(Quantity), self._num_classes)))
            self._by_offset.append(np.zeros((len(Quantity), len(Lead), NUM_OFFSETS)))
        row = self._rows[task]
        is_near_N = offset_N < NUM_OFFSETS
        near = lead_N[is_near_N], offset_N[is_near_N]
        for quantity, value_N in zip(Quantity, (np.ones_like(top_N), top_N, entropy_N), strict=True):
            np.add.at(self._by_class[row][quantity], class_N, value_N)
            np.add.at(self._by_offset[row][quantity], near, value_N[is_near_N])
        self.num_trajectories += 1
        return top_N


NUM_DRAWS: Final = 4000
LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapEstimate:
    """A number with its 95% interval and its sample sizes."""

    value: float
    """NaN without data."""
    low: float
    high: float
    num_tasks: int
    num_tokens: int

    def lies_beyond(self, null: float) -> int:
        """Return 1 if the whole interval is above `null`, -1 if it is below, else 0."""
        return int(self.low > null) - int(self.high < null)


def draw_tasks(num_tasks: int, rng: np.random.Generator, num_draws: int = NUM_DRAWS) -> Floats:
    """Return the number of times of each task in draws of M tasks with replacement, (B, M).

    Its product with sums by task is the sum over the tasks of each draw. ValueError without a task.
    """
    if num_tasks < 1:
        raise ValueError("no task was drawn")
    return rng.multinomial(num_tasks, np.full(num_tasks, 1 / num_tasks), num_draws).astype(float)


def interval(values_B: Floats, num_tasks: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the limits for the values of the draws. NaN values count as beyond either limit. With one
    task, which has no information on others, both limits are infinite."""
    if num_tasks < 2:
        return -math.inf, math.inf
    quantile = float(special.stdtrit(num_tasks - 1, (1 + level) / 2))
    tail = float(special.ndtr(-quantile * math.sqrt(num_tasks / (num_tasks - 1))))
    unknown_B = np.isnan(values_B)
    low = np.quantile(np.where(unknown_B, -np.inf, values_B), tail, method="lower")
    high = np.quantile(np.where(unknown_B, np.inf, values_B), 1 - tail, method="higher")
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShare:
    """A class of tokens and the top fifth."""

    of_top: BootstrapEstimate
    """Its share of the top fifth's tokens."""
    of_all: float
    """Its share of all tokens."""
    lift: BootstrapEstimate
    """The first divided by the second; 1 if the class is as uncertain as the others."""
    mean_entropy: float
    """In nats; NaN without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlComparison:
    """Tokens after tool output compared with their control."""

    ratio: BootstrapEstimate
    """The ratio of shares in the top fifth; 1 if tool output makes no difference."""
    difference: BootstrapEstimate
    """The difference of mean entropies, in nats."""


def class_shares(tally: Tally, draws_BM: Floats) -> list[ClassShare]:
    """Return the shares of each class, in order."""
    sums_QMC = tally.by_class
    total_QC, drawn_QBC = sums_QMC.sum(1), np.stack([draws_BM @ sums_MC for sums_MC in sums_QMC])
    of_top_C, of_all_C = _shares(total_QC)
    of_top_BC, of_all_BC = _shares(drawn_QBC)
    with np.errstate(divide="ignore", invalid="ignore"):
        lift_C, lift_BC = of_top_C / of_all_C, of_top_BC / of_all_BC
        mean_C = total_QC[Quantity.entropy] / total_QC[Quantity.tokens]
    tasks_C = (sums_QMC[Quantity.tokens] > 0).sum(0)
    found = []
    for c, (num_tasks, num_tokens) in enumerate(zip(tasks_C, total_QC[Quantity.tokens], strict=True)):
        rests_on = int(num_tasks), int(num_tokens)
        found.append(
            ClassShare(
                of_top=_estimate(of_top_C[c], of_top_BC[:, c], *rests_on),
                of_all=float(of_all_C[c]),
                lift=_estimate(lift_C[c], lift_BC[:, c], *rests_on),
                mean_entropy=float(mean_C[c]),
            )
        )
    return found


def compare_with_control(tally: Tally, leads: Sequence[Lead], window: int, draws_BM: Floats) -> ControlComparison:
    """Compare the first `window` tokens of turns with one of `leads` with the control."""
    sums_QMLW = tally.by_offset[..., :window]
    after_QMW, control_QMW = sums_QMLW[:, :, list(leads)].sum(2), sums_QMLW[:, :, Lead.asked]
    ratio, difference = _against(after_QMW.sum(1), control_QMW.sum(1))
    ratio_B, difference_B = _against(
        np.stack([draws_BM @ one for one in after_QMW]), np.stack([draws_BM @ one for one in control_QMW])
    )
    tasks = min(int((one[Quantity.tokens].sum(-1) > 0).sum()) for one in (after_QMW, control_QMW))
    tokens = int(after_QMW[Quantity.tokens].sum())
    return ControlComparison(
        ratio=_estimate(float(ratio), ratio_B, tasks, tokens),
        difference=_estimate(float(difference), difference_B, tasks, tokens),
    )


def profile(tally: Tally, lead: Lead, draws_BM: Floats) -> list[BootstrapEstimate]:
    """Return the mean entropy by offset from the start of a turn, in nats."""
    sums_QMW = tally.by_offset[:, :, lead]
    drawn_QBW = np.stack([draws_BM @ one for one in sums_QMW])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_W = sums_QMW.sum(1)[Quantity.entropy] / sums_QMW.sum(1)[Quantity.tokens]
        mean_BW = drawn_QBW[Quantity.entropy] / drawn_QBW[Quantity.tokens]
    tasks_W, tokens_W = (sums_QMW[Quantity.tokens] > 0).sum(0), sums_QMW.sum(1)[Quantity.tokens]
    return [_estimate(mean_W[w], mean_BW[:, w], int(tasks_W[w]), int(tokens_W[w])) for w in range(len(mean_W))]


def _shares(sums: Floats) -> tuple[Floats, Floats]:
    """Return each class's share of the top fifth and of all tokens, from (Q, ..., C)."""
    top, tokens = sums[Quantity.top], sums[Quantity.tokens]
    return top / top.sum(-1, keepdims=True), tokens / tokens.sum(-1, keepdims=True)


def _against(after: Floats, control: Floats) -> tuple[Floats, Floats]:
    """Return ratio and difference, from (Q, ..., W) each; NaN if no offset is in both."""
    count, controls = after[Quantity.tokens], control[Quantity.tokens]
    is_both = (count > 0) & (controls > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = np.where(is_both, after[Quantity.top], 0).sum(-1)
        expected = np.where(is_both, count * control[Quantity.top] / controls, 0).sum(-1)
        nats = after[Quantity.entropy] - count * control[Quantity.entropy] / controls
        ratio: Floats = observed / expected
        difference: Floats = np.where(is_both, nats, 0).sum(-1) / np.where(is_both, count, 0).sum(-1)
    return ratio, difference


def _estimate(value: float, values_B: Floats, num_tasks: int, num_tokens: int) -> BootstrapEstimate:
    low, high = interval(values_B, num_tasks)
    return BootstrapEstimate(value=float(value), low=low, high=high, num_tasks=num_tasks, num_tokens=num_tokens)
