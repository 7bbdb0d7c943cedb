"""The KV of one replica over the coming steps, from the predicted lengths of those that live on it.

All running trajectories of a replica write one token per step, so that its steps are its clock, read off the
turns that end (a turn of n tokens granted at step s ends at step s + n or later). Trajectories peak at
different times: what is predicted is the sum over all of them at each step ahead, never the sum of their
peaks. Siblings share their prompt: it counts once.

Legend: as predictor.py; N trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rocstar.engine.scheduling.predictor import NUM_BINS, Floats, Ints

GoingOn = Callable[[Ints, Ints], Floats]
"""LengthPredictor.going_on_NK."""
_FIELDS = 3
_CURVE, _LENGTH, _SINCE = range(_FIELDS)
AT_TOOL = -1


@dataclass(slots=True)
class Forecast:
    """Resident tokens k bins of steps from now: mean and variance. `area` = their mean sum over all steps to
    come (token-steps), to which the decoding time that is left is proportional."""

    mean_K: Floats
    variance_K: Floats
    area: float
    clock: int = 0
    """The replica's step when it was made."""

    def peak(self, safety: float, extra: Forecast | None = None, room_K: Floats | None = None) -> float:
        """The highest mean + `safety` standard deviations, with `extra` on top, as a share of `room_K`."""
        mean_K, variance_K = self.mean_K, self.variance_K
        if extra is not None:
            mean_K, variance_K = mean_K + extra.mean_K, variance_K + extra.variance_K
        high_K = mean_K + safety * np.sqrt(variance_K)
        return float(np.max(high_K if room_K is None else high_K / room_K))

    def add(self, extra: Forecast) -> None:
        self.mean_K += extra.mean_K
        self.variance_K += extra.variance_K
        self.area += extra.area


class Occupancy:
    """The trajectories of one replica in a dense table (N rows: curve, length, step of the grant).

    Invariant: rows 0..len-1 are in use and `slots` names each once; `prompt_tokens` is the sum over the
    groups of those rows, each once.
    """

    def __init__(self) -> None:
        self.clock = 0
        """Steps that the replica has made, as far as is known."""
        self.slots: dict[str, int] = {}
        self.prompt_tokens = 0
        self.groups: dict[str, int] = {}
        """How many siblings of each group live here."""
        self._names: list[str] = []
        self._table: Ints = np.zeros((16, _FIELDS), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def put(
        self, traj: str, group: str, *, prompt_tokens: int, curve: int, length: int, running: bool
    ) -> None:
        slot = self.slots.get(traj)
        if slot is None:
            slot = self.slots[traj] = len(self._names)
            self._names.append(traj)
            if slot == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            siblings = self.groups[group] = self.groups.get(group, 0) + 1
            self.prompt_tokens += prompt_tokens * (siblings == 1)
        self._table[slot] = (curve, length, self.clock if running else AT_TOOL)

    def turn_ended(self, traj: str, new_tokens: int) -> None:
        slot = self.slots.get(traj)
        if slot is not None and (since := int(self._table[slot, _SINCE])) != AT_TOOL:
            self.clock = max(self.clock, since + new_tokens)

    def discard(self, traj: str, group: str, *, prompt_tokens: int) -> None:
        slot = self.slots.pop(traj, None)
        if slot is None:
            return
        self.groups[group] -= 1
        if not self.groups[group]:
            del self.groups[group]
            self.prompt_tokens -= prompt_tokens
        last = self._names.pop()
        if last != traj:
            self._table[slot] = self._table[len(self._names)]
            self._names[slot] = last
            self.slots[last] = slot

    def lengths(self) -> list[tuple[str, int]]:
        """(trajectory, its length by now as the clock says)."""
        return list(zip(self._names, self._lengths_N().tolist(), strict=True))

    def tokens_now(self, buffer_tokens: int) -> int:
        """Resident tokens as the clock says, and the buffers."""
        return int(self._lengths_N().sum()) + self.prompt_tokens + buffer_tokens * len(self._names)

    def _lengths_N(self) -> Ints:
        table = self._table[: len(self._names)]
        since = table[:, _SINCE]
        return np.asarray(table[:, _LENGTH] + np.where(since == AT_TOOL, 0, self.clock - since))

    def forecast(self, going_on: GoingOn, num_curves: int, bin_tokens: int, buffer_tokens: int) -> Forecast:
        """`buffer_tokens` are added to each trajectory for as long as it lives."""
        table = self._table[: len(self._names)]
        ahead_K = np.arange(NUM_BINS, dtype=np.float64) * bin_tokens
        length = self._lengths_N()
        cell = table[:, _CURVE] * NUM_BINS + np.minimum(length // bin_tokens, NUM_BINS - 1)
        tokens = length.astype(np.float64) + buffer_tokens
        num_cells = num_curves * NUM_BINS
        sums = np.empty((3, num_cells))
        sums[0] = np.bincount(cell, minlength=num_cells)
        sums[1] = np.bincount(cell, weights=tokens, minlength=num_cells)
        sums[2] = np.bincount(cell, weights=tokens * tokens, minlength=num_cells)
        used = np.flatnonzero(sums[0])
        p = going_on(used // NUM_BINS, used % NUM_BINS)
        sums = sums[:, used]
        count, first, _ = sums @ p
        count_v, first_v, second_v = sums @ (p * (1.0 - p))
        mean_K = first + count * ahead_K + self.prompt_tokens
        variance_K = second_v + 2.0 * first_v * ahead_K + count_v * ahead_K * ahead_K
        return Forecast(mean_K, variance_K, area_of(first + count * ahead_K, bin_tokens), self.clock)


def area_of(mean_K: Floats, bin_tokens: int) -> float:
    return float(mean_K.sum()) * bin_tokens


def forecast_of_one(going_on_K: Floats, bin_tokens: int, length: int, prompt_tokens: int) -> Forecast:
    """Of one trajectory: `prompt_tokens` is what it adds beside its own tokens."""
    size_K = length + prompt_tokens + np.arange(NUM_BINS, dtype=np.float64) * bin_tokens
    mean_K = going_on_K * size_K
    return Forecast(mean_K, mean_K * (1.0 - going_on_K) * size_K, area_of(mean_K, bin_tokens))
