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
_FIELDS = 4
_CURVE, _LENGTH, _SINCE, _PROMPT = range(_FIELDS)
AT_TOOL = -1
FORWARD_TOKENS = 190_000
REQUEST_TOKENS = 450
"""Tokens of KV that are read in the time of a forward's fixed part, and of a request's row (8.5 ms and 20 us
over 44 ns for 14B on one MI300X)."""


@dataclass(slots=True)
class Forecast:
    """Resident tokens k bins of steps from now: mean and variance; trajectories that are still there.
    `area` = what is read in all steps to come, prompts and rows included (token-steps)."""

    mean_K: Floats
    variance_K: Floats
    count_K: Floats
    area: float
    bin_tokens: int
    clock: int = 0
    """The replica's step when it was made."""

    def load(self, extra: Forecast | None = None, less: Forecast | None = None) -> float:
        """The time to the end in token-steps, with `extra` and without `less`: what is read, and the steps
        in which anybody is there."""
        count_K, area = self.count_K, self.area
        if extra is not None:
            count_K, area = count_K + extra.count_K, area + extra.area
        if less is not None:
            count_K, area = np.maximum(count_K - less.count_K, 0.0), area - less.area
        steps = float(len(count_K) - np.exp(-count_K).sum()) * self.bin_tokens
        return area + FORWARD_TOKENS * steps

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
        self.count_K += extra.count_K
        self.area += extra.area


class Occupancy:
    """The trajectories of one replica in a dense table (N rows: curve, length, step of the grant, prompt).

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
        self._table[slot] = (curve, length, self.clock if running else AT_TOOL, prompt_tokens)

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
        grown_K = first + count * ahead_K
        variance_K = second_v + 2.0 * first_v * ahead_K + count_v * ahead_K * ahead_K
        each = REQUEST_TOKENS - buffer_tokens + (float(table[:, _PROMPT].mean()) if len(table) else 0.0)
        area = float(grown_K.sum() + each * count.sum()) * bin_tokens
        return Forecast(grown_K + self.prompt_tokens, variance_K, count, area, bin_tokens, self.clock)


def forecast_of_one(
    going_on_K: Floats, bin_tokens: int, length: int, *, prompt_tokens: int, extra_tokens: int
) -> Forecast:
    """Of one trajectory: `extra_tokens` is what it takes beside its own tokens."""
    ahead_K = np.arange(NUM_BINS, dtype=np.float64) * bin_tokens
    size_K = length + extra_tokens + ahead_K
    mean_K = going_on_K * size_K
    area = float((going_on_K * (length + prompt_tokens + REQUEST_TOKENS + ahead_K)).sum()) * bin_tokens
    return Forecast(mean_K, mean_K * (1.0 - going_on_K) * size_K, going_on_K.copy(), area, bin_tokens)
