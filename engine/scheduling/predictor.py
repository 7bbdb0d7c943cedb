"""How long trajectories grow: the chance that one which has written n tokens in t turns goes on to n + k.

Learned while it runs, per stage, turn and level; the level says how its group's expected length compares with
the stage's (siblings share a task, and with it much of their length). A trajectory counts on a curve from the
length at which it had that turn and level; of those it is known at each length how many got there and how
many ended there. Those still running are counted up to where they are (product-limit estimate, Kaplan and
Meier 1958, with late entry), so that the short ones, which end first, do not make all look short. A curve
with little behind it leans on its stage's, stretched by its level, and that on lengths uniform to the limit.
Nothing is random, and no sample is kept: only counts per length bin.

Legend: C curves (stage x level x turn class), B length bins of `bin_tokens` tokens, K = B steps ahead. A cell
is one bin of one curve: curve * NUM_BINS + bin.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NUM_BINS = 64
NUM_TURN_CLASSES = 4
LEVEL_FACTORS = (0.35, 0.45, 0.55, 0.67, 0.82, 1.0, 1.25, 1.6, 2.1, 3.0)
"""How far a level stretches its stage's curve before anything is known of the level itself."""
NUM_LEVELS = len(LEVEL_FACTORS)
CURVES_PER_STAGE = 1 + NUM_LEVELS * NUM_TURN_CLASSES
PRIOR_WEIGHT = 2.0
CURVE_PRIOR_WEIGHT = 50.0
"""Imagined trajectories behind a stage's curve, and behind each other curve."""
GROUP_PRIOR_WEIGHT = 0.7
"""Siblings that the stage's mean counts for, in the expected length of a group."""


@dataclass(slots=True)
class _GroupLengths:
    """Sums over the informative siblings: their weights, and weight times expected length."""

    weight: float = 0.0
    weighted_length: float = 0.0
    stage: int = -1
    level: int = -1
    level_of: int = 0
    """The tables by which `level` was found; 0: the sums have changed since."""


@dataclass(slots=True)
class _Progress:
    """One trajectory: the bin it has reached, the first cells of its curves, its information on the group."""

    stage: int
    group: _GroupLengths
    bin: int = 0
    curves: list[int] = field(default_factory=list)
    weight: float = 0.0
    weighted_length: float = 0.0


@dataclass(slots=True, eq=False)
class LengthPredictor:
    """Lengths are response tokens: context minus prompt, tool results included.

    Invariant: on each curve, those that entered are those last seen in one of its bins; a trajectory enters
    a curve once, at the bin that it had reached then.
    """

    positions: Callable[[], Iterable[tuple[str, int]]] = tuple
    """Asked before the curves are made: how far those that run have come by now. Without it they would count
    up to their last turn only, and all would look as short as those that have ended."""
    bin_tokens: int = 0
    version: int = 0
    """Another one: what `cell` and `work` say may have changed."""
    _stages: dict[str, int] = field(default_factory=dict)
    """The first curve of each stage: its own; those by level and turn follow."""
    _groups: dict[str, _GroupLengths] = field(default_factory=dict)
    _entered: array[float] = field(default_factory=lambda: array("d"))
    _stopped: array[float] = field(default_factory=lambda: array("d"))
    """Trajectories that were last seen in a cell, whether they ended, were dropped or still run."""
    _ended: array[float] = field(default_factory=lambda: array("d"))
    _limit_bins: list[int] = field(default_factory=list)
    _progress: dict[str, _Progress] = field(default_factory=dict)
    _news: int = 0
    _due: int = 0
    """The tables are made anew when there are so many news."""
    _made: int = 0
    """How often they were."""
    _chances: Floats = field(default_factory=lambda: np.empty((0, 2 * NUM_BINS)))
    """The chances of each cell, as chances_NK gives them."""
    _lengths: dict[int, list[float]] = field(default_factory=dict)
    """The expected length of a trajectory that has reached bin b, by stage."""
    _edges: dict[int, list[float]] = field(default_factory=dict)
    """The expected lengths between which the levels lie, by stage."""
    _steady: dict[int, Floats] = field(default_factory=dict)
    _shares: dict[int, list[float]] = field(default_factory=dict)
    """The share of trajectories that end before bin b, by stage."""
    _work: dict[int, float] = field(default_factory=dict)
    _peaks: dict[tuple[str, int], float] = field(default_factory=dict)

    def add(self, traj: str, group: str, stage: str, max_tokens: int) -> None:
        if not self.bin_tokens:
            self.bin_tokens = max(1, -(-max_tokens // (NUM_BINS - 1)))
        if stage not in self._stages:
            self._stages[stage] = len(self._limit_bins)
            limit_bin = min(NUM_BINS - 1, max_tokens // self.bin_tokens)
            self._limit_bins += [limit_bin] * CURVES_PER_STAGE
            for counts in (self._entered, self._stopped, self._ended):
                counts.extend([0.0] * (CURVES_PER_STAGE * NUM_BINS))
            self._due = 0
            self.version += 1
        progress = _Progress(stage=self._stages[stage], group=self._groups.setdefault(group, _GroupLengths()))
        self._progress[traj] = progress
        self._enter(progress, progress.stage)

    def turn_starts(self, traj: str, turns: int, length: int) -> int:
        """It asks for turn number `turns` (from 0) with `length` tokens behind its prompt; its curve."""
        progress = self._progress[traj]
        self._advance(progress, length)
        curve = self._curve(progress, turns)
        if curve * NUM_BINS not in progress.curves:
            self._enter(progress, curve)
        return curve

    def cell(self, traj: str, turns: int, length: int) -> int:
        """The cell of a trajectory on the curve that it would enter now."""
        at = length // self.bin_tokens
        return self._curve(self._progress[traj], turns) * NUM_BINS + (at if at < NUM_BINS else NUM_BINS - 1)

    def _advance(self, progress: _Progress, length: int) -> None:
        reached = length // self.bin_tokens
        if reached >= NUM_BINS:
            reached = NUM_BINS - 1
        if reached == progress.bin:
            return
        stopped, was = self._stopped, progress.bin
        for first in progress.curves:
            stopped[first + was] -= 1.0
            stopped[first + reached] += 1.0
        progress.bin = reached
        if self._made:
            share = self._shares[progress.stage][reached]
            self._tell_group(progress, share, self._lengths[progress.stage][reached])

    def leave(self, traj: str, length: int, *, finished: bool) -> None:
        """It is over; only one that finished says how long trajectories are."""
        self.version += 1
        progress = self._progress.pop(traj)
        self._advance(progress, length)
        if finished:
            self._news += 1
            self._tell_group(progress, 1.0, float(length))
            for first in progress.curves:
                self._ended[first + progress.bin] += 1.0

    def group_length(self, group: str, stage: str) -> float:
        """The expected length of a sibling that has not started: from its group's, leaning on the stage's."""
        self._tables()
        return self._expected(self._groups[group], self._stages[stage])

    def level(self, expected: float, stage: str) -> int:
        """Which of the stage's levels an expected length belongs to: 0 is the shortest."""
        self._tables()
        return bisect.bisect(self._edges[self._stages[stage]], expected)

    def work(self, cell: int) -> float:
        """Token-steps to come of one in this cell: its own tokens, summed over its steps."""
        if self._news >= self._due:
            self._make_tables()
        found = self._work.get(cell)
        if found is None:
            at = cell % NUM_BINS
            found = float((self.going_on_K(cell) * (at + np.arange(NUM_BINS))).sum()) * self.bin_tokens**2
            self._work[cell] = found
        return found

    def mean_work(self, stage: str) -> float:
        """The same of one of the stage that has not started, of whatever group."""
        return self.work(self._stages[stage] * NUM_BINS)

    def peak_tokens(self, stage: str, prompt_tokens: int) -> float:
        """The most that one of the stage holds on average, over all steps since its start."""
        self._tables()
        found = self._peaks.get((stage, prompt_tokens))
        if found is None:
            going_on_K = self.going_on_K(self._stages[stage] * NUM_BINS)
            found = float(np.max(going_on_K * (prompt_tokens + np.arange(NUM_BINS) * self.bin_tokens)))
            self._peaks[stage, prompt_tokens] = found
        return found

    def steady_K(self, stage: str) -> Floats:
        """The share of a pool in steady state that those now in it still hold k bins of steps later.

        In steady state ages are distributed as the survival curve; the rest to 1 at k is for new ones.
        """
        self._tables()
        return self._steady[self._stages[stage]]

    def forget_group(self, group: str) -> None:
        self._groups.pop(group, None)

    def going_on_K(self, cell: int) -> Floats:
        """P(length bin >= b + k | length bin >= b) in bin b of a curve, k = 0..K-1. Not to be written to, nor
        kept.

        The curves are made anew when the number of ended trajectories has grown by a tenth, at least by 4.
        """
        self._tables()
        return np.asarray(self._chances[cell, :NUM_BINS])

    def chances_NK(self, cells_N: Ints) -> Floats:
        """The same of N cells, then p (1 - p) of each: 2 K columns."""
        self._tables()
        return np.asarray(self._chances.take(cells_N, axis=0))

    def _curve(self, progress: _Progress, turns: int) -> int:
        if self._news >= self._due:
            self._make_tables()
        group, stage = progress.group, progress.stage
        if group.level_of != self._made or group.stage != stage:
            level = bisect.bisect(self._edges[stage], self._expected(group, stage))
            if level != group.level:
                group.level = level
                self.version += 1
            group.level_of, group.stage = self._made, stage
        turn_class = turns if turns < NUM_TURN_CLASSES else NUM_TURN_CLASSES - 1
        return stage + 1 + group.level * NUM_TURN_CLASSES + turn_class

    def _expected(self, group: _GroupLengths, stage: int) -> float:
        mean = self._lengths[stage][0]
        return (group.weighted_length + GROUP_PRIOR_WEIGHT * mean) / (group.weight + GROUP_PRIOR_WEIGHT)

    def _enter(self, progress: _Progress, curve: int) -> None:
        first = curve * NUM_BINS
        self._entered[first + progress.bin] += 1.0
        self._stopped[first + progress.bin] += 1.0
        progress.curves.append(first)

    def _tell_group(self, progress: _Progress, weight: float, length: float) -> None:
        """`weight` 1 is a length that is known; one that runs counts by the share that would have ended."""
        group = progress.group
        group.weight += weight - progress.weight
        group.weighted_length += weight * length - progress.weighted_length
        progress.weight, progress.weighted_length = weight, weight * length
        group.level_of = 0

    def _tables(self) -> None:
        if self._news >= self._due:
            self._make_tables()

    def _make_tables(self) -> None:
        self._due = self._news + max(4, self._news // 10)
        self._work, self._peaks = {}, {}
        for traj, length in self.positions():
            self._advance(self._progress[traj], length)
        survival_CB = self._survival_CB()
        if len(self._chances) != survival_CB.size:
            self._chances = np.empty((survival_CB.size, 2 * NUM_BINS))
        _fill_chances(self._chances, survival_CB)
        self._made += 1
        self.version += 1
        middle_B = (np.arange(NUM_BINS) + 0.5) * self.bin_tokens
        for stage in self._stages.values():
            ends_B = -np.diff(survival_CB[stage], append=0.0)
            beyond_B = np.cumsum((ends_B * middle_B)[::-1])[::-1]
            self._lengths[stage] = list(beyond_B / np.maximum(survival_CB[stage], 1e-12))
            self._shares[stage] = list(1.0 - survival_CB[stage])
            size_B = survival_CB[stage] * (middle_B + 2 * self.bin_tokens)
            beyond_K = np.cumsum(size_B[::-1])[::-1]
            self._steady[stage] = beyond_K / beyond_K[0]
            limit = self._limit_bins[stage]
            means = [_stretched(survival_CB[stage], f, limit).sum() - 0.5 for f in LEVEL_FACTORS]
            self._edges[stage] = [float(a + b) / 2 * self.bin_tokens for a, b in itertools.pairwise(means)]

    def _survival_CB(self) -> Floats:
        """P(length bin >= b) of each curve; beyond its limit it is 0."""
        entered, ended, stopped = (
            np.array(counts).reshape(-1, NUM_BINS) for counts in (self._entered, self._ended, self._stopped)
        )
        at_risk = np.cumsum(entered, axis=1) - (np.cumsum(stopped, axis=1) - stopped)
        limits = np.array(self._limit_bins)
        bins = np.arange(NUM_BINS)
        out = np.empty_like(ended)
        for stage in self._stages.values():
            limit = int(limits[stage])
            uniform = 1.0 / np.maximum(limit + 1.0 - bins, 1.0)
            own = _hazard(ended[stage], at_risk[stage], uniform, PRIOR_WEIGHT)
            out[stage] = _survival(own, limit)
            for level, factor in enumerate(LEVEL_FACTORS):
                stretched = _stretched(out[stage], factor, limit)
                ahead = np.append(stretched[1:], 0.0)
                prior = 1.0 - ahead / np.maximum(stretched, 1e-12)
                first = stage + 1 + level * NUM_TURN_CLASSES
                curves = slice(first, first + NUM_TURN_CLASSES)
                hazard = _hazard(ended[curves], at_risk[curves], prior, CURVE_PRIOR_WEIGHT)
                out[curves] = _survival(hazard, limit)
        return out


def _fill_chances(out: Floats, survival_CB: Floats) -> None:
    padded = np.concatenate([survival_CB, np.zeros_like(survival_CB)], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, NUM_BINS, axis=1)[:, :NUM_BINS]
    out = out.reshape(*windows.shape[:2], 2 * NUM_BINS)
    going_on = out[:, :, :NUM_BINS]
    np.divide(windows, np.maximum(windows[:, :, :1], 1e-12), out=going_on)
    going_on[:, :, 0] = 1.0  # the trajectory has reached this bin, even if no other did before
    np.minimum(going_on, 1.0, out=going_on)
    np.multiply(going_on, 1.0 - going_on, out=out[:, :, NUM_BINS:])


def _stretched(survival_B: Floats, factor: float, limit_bin: int) -> Floats:
    bins = np.arange(len(survival_B))
    out = np.interp(bins / factor, bins, survival_B, right=0.0)
    # Those that the limit cuts would have gone on: the stretched curve ends where the limit is, too.
    beyond = bins / factor > limit_bin
    out[beyond] = survival_B[limit_bin]
    out[limit_bin + 1 :] = 0.0
    return np.asarray(out)


def _hazard(ended_B: Floats, at_risk_B: Floats, prior_B: Floats, weight: float) -> Floats:
    return np.asarray((ended_B + weight * prior_B) / (at_risk_B + weight))


def _survival(hazard_B: Floats, limit_bin: int) -> Floats:
    """Return the probability to reach each bin, from those to end in it; none passes the bin of the limit."""
    hazard_B = np.clip(hazard_B, 0.0, 1.0)
    hazard_B[..., limit_bin:] = 1.0
    survival_B = np.ones_like(hazard_B)
    survival_B[..., 1:] = np.cumprod(1.0 - hazard_B, axis=-1)[..., :-1]
    return survival_B
