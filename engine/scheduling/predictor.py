"""How long trajectories grow: the chance that one which has written n tokens in t turns goes on to n + k.

Learned per stage while it runs. A trajectory counts, from its t-th turn on, among those with t turns or more;
of these it is known at each length how many got there and how many ended there. Those still running are
counted up to where they are (product-limit estimate, Kaplan and Meier 1958, with late entry), so that the
short ones, which end first, do not make all look short. Nothing is random, and no sample is kept: only counts
per length bin.

Legend: C curves (stage x turn class), B length bins of `bin_tokens` tokens, K = B steps ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_BINS = 64
NUM_TURN_CLASSES = 6
PRIOR_WEIGHT = 2.0
"""Imagined trajectories per curve whose lengths are uniform up to the limit: what is believed at first."""


@dataclass(slots=True)
class _Progress:
    """One trajectory: its stage's first curve, how many curves it counts in, the bin it has reached."""

    first_curve: int
    limit_bin: int
    num_curves: int = 0
    bin: int = 0


@dataclass(slots=True, eq=False)
class LengthPredictor:
    """Lengths are response tokens: context minus prompt, tool results included.

    Invariant: per curve, entered == those that ended or were dropped + those still counted; a trajectory with
    t turns done counts in curves 0..min(t, last) of its stage.
    """

    bin_tokens: int = 0
    _stages: dict[str, int] = field(default_factory=dict)
    _entered: list[list[int]] = field(default_factory=list)
    _stopped: list[list[int]] = field(default_factory=list)
    """By bin: those that were last seen there, whether they ended, were dropped or still run."""
    _ended: list[list[int]] = field(default_factory=list)
    _limit_bins: list[int] = field(default_factory=list)
    _progress: dict[str, _Progress] = field(default_factory=dict)
    _news: int = 0
    _known: int = 0
    _go_on: Floats | None = None

    def add(self, traj: str, stage: str, max_tokens: int) -> None:
        if not self.bin_tokens:
            self.bin_tokens = max(1, -(-max_tokens // (NUM_BINS - 1)))
        limit_bin = min(NUM_BINS - 1, max_tokens // self.bin_tokens)
        if stage not in self._stages:
            self._stages[stage] = len(self._entered)
            for _ in range(NUM_TURN_CLASSES):
                self._entered.append([0] * NUM_BINS)
                self._stopped.append([0] * NUM_BINS)
                self._ended.append([0] * NUM_BINS)
                self._limit_bins.append(limit_bin)
            self._go_on = None
        self._progress[traj] = _Progress(first_curve=self._stages[stage], limit_bin=limit_bin)

    def turn_starts(self, traj: str, turns: int, length: int) -> int:
        """It asks for turn number `turns` (from 0) with `length` tokens behind its prompt; its curve."""
        progress = self._progress[traj]
        self.advance(traj, length)
        last = min(turns, NUM_TURN_CLASSES - 1)
        while progress.num_curves <= last:
            curve = progress.first_curve + progress.num_curves
            self._entered[curve][progress.bin] += 1
            self._stopped[curve][progress.bin] += 1
            progress.num_curves += 1
        return progress.first_curve + last

    def advance(self, traj: str, length: int) -> None:
        progress = self._progress[traj]
        reached = min(NUM_BINS - 1, length // self.bin_tokens)
        if reached != progress.bin:
            for curve in range(progress.first_curve, progress.first_curve + progress.num_curves):
                self._stopped[curve][progress.bin] -= 1
                self._stopped[curve][reached] += 1
            progress.bin = reached

    def leave(self, traj: str, *, finished: bool) -> None:
        """It is over; only one that finished says how long trajectories are."""
        progress = self._progress.pop(traj)
        if finished:
            self._news += 1
            for curve in range(progress.first_curve, progress.first_curve + progress.num_curves):
                self._ended[curve][progress.bin] += 1

    def going_on_CBK(self) -> Floats:
        """P(length bin >= b + k | length bin >= b) by curve c, bin b, steps ahead k, both in bins.

        Made anew when the number of ended trajectories has grown by a twentieth, at least by 4.
        """
        if self._go_on is None or self._news - self._known >= max(4, self._known // 20):
            self._known = self._news
            self._go_on = _conditional(self._survival_CB())
        return self._go_on

    def _survival_CB(self) -> Floats:
        """P(length bin >= b) of each curve; beyond the last bin it is 0."""
        entered, ended = np.array(self._entered, dtype=np.float64), np.array(self._ended, dtype=np.float64)
        stopped = np.array(self._stopped, dtype=np.float64)
        at_risk = np.cumsum(entered, axis=1) - (np.cumsum(stopped, axis=1) - stopped)
        limits = np.array(self._limit_bins, dtype=np.float64)[:, None]
        bins = np.arange(NUM_BINS, dtype=np.float64)[None, :]
        prior_at_risk = PRIOR_WEIGHT * np.clip(limits + 1 - bins, 0.0, None) / (limits + 1)
        prior_ended = np.where(bins <= limits, PRIOR_WEIGHT / (limits + 1), 0.0)
        hazard = (ended + prior_ended) / np.maximum(at_risk + prior_at_risk, 1e-9)
        hazard = np.where(bins >= limits, 1.0, np.clip(hazard, 0.0, 1.0))
        survival = np.cumprod(1.0 - hazard, axis=1)
        return np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1)


def _conditional(survival_CB: Floats) -> Floats:
    num_curves, num_bins = survival_CB.shape
    padded = np.concatenate([survival_CB, np.zeros((num_curves, num_bins))], axis=1)
    ahead = np.arange(num_bins)[:, None] + np.arange(num_bins)[None, :]
    out = padded[:, ahead] / np.maximum(survival_CB, 1e-12)[:, :, None]
    out[:, :, 0] = 1.0  # who is there is there, even where none was ever seen
    return np.asarray(np.minimum(out, 1.0))
