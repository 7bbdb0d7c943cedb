"""The KV of one replica over the coming steps, from the predicted lengths of those that live on it.

All running trajectories of a replica write one token per step, so that its steps are its clock, read off the
turns that end (a turn of n tokens granted at step s ends at step s + n or later). Trajectories peak at
different times: the forecast is the sum over all of them at each step ahead, never the sum of their peaks.
Siblings share their prompt: it counts once.

Legend: as predictor.py; N trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rocstar.engine.scheduling.predictor import NUM_BINS, Floats, Ints

Chances = Callable[[Ints], Floats]
"""LengthPredictor.chances_NK."""
_FIELDS = 4
_CELL, _BASE, _RUNNING, _SINCE = range(_FIELDS)


@dataclass(slots=True)
class Forecast:
    """Resident tokens k bins of steps from now: mean and variance; trajectories that are still there.
    `area`: tokens read in all future steps, prompts and rows included (token-steps)."""

    mean_K: Floats
    variance_K: Floats
    count_K: Floats
    area: float
    bin_tokens: int
    clock: int = 0
    """The replica's step when it was made."""
    highest: int = 0
    """Where `peak` was highest when it was last asked for, or nearly so."""

    def load(self, forward_tokens: float, extra: Forecast | None = None, less: Forecast | None = None) -> float:
        """Return the time to the end in token-steps, with `extra` and without `less`: tokens read, and
        `forward_tokens` for each step with a trajectory."""
        count_K, area = self.count_K, self.area
        if extra is not None:
            count_K, area = count_K + extra.count_K, area + extra.area
        if less is not None:
            count_K, area = np.maximum(count_K - less.count_K, 0.0), area - less.area
        steps = float(len(count_K) - np.add.reduce(np.exp(-count_K))) * self.bin_tokens
        return area + forward_tokens * steps

    def peak(self, safety: float, extra: Forecast | None = None, room_K: Floats | None = None) -> float:
        """The highest mean + `safety` standard deviations, with `extra` on top, as a share of `room_K`."""
        mean_K, variance_K = self.mean_K, self.variance_K
        if extra is not None:
            mean_K, variance_K = mean_K + extra.mean_K, variance_K + extra.variance_K
        high_K = np.sqrt(variance_K)
        high_K *= safety
        high_K += mean_K
        if room_K is not None:
            high_K /= room_K
        self.highest = int(high_K.argmax())
        return float(high_K[self.highest])

    def exceeds(self, limit: float, safety: float, going_on_K: Floats, tokens: int) -> bool:
        """True: the peak with one more trajectory, of `tokens` tokens now, is above the limit, as is seen at
        one step alone. False says nothing."""
        k = self.highest
        stays, size = going_on_K.item(k), tokens + float(k * self.bin_tokens)
        mean = stays * size
        variance = self.variance_K.item(k) + mean * (1.0 - stays) * size
        return self.mean_K.item(k) + mean + safety * math.sqrt(variance) > limit

    def add(self, extra: Forecast) -> None:
        self.mean_K += extra.mean_K
        self.variance_K += extra.variance_K
        self.count_K += extra.count_K
        self.area += extra.area


class Occupancy:
    """The trajectories of one replica in a dense table, N columns in use: the first cell of its curve; its
    length, less the step of the grant if it runs; whether it runs; the step of the grant.

    Invariant: columns 0..len-1 are in use and `slots` names each once; `prompt_tokens` is the sum over the
    groups of those columns, each once, and the other sums are over all of them.
    """

    def __init__(self) -> None:
        self.clock = 0
        """Steps that the replica has made, as far as is known."""
        self.slots: dict[str, int] = {}
        self.prompt_tokens = 0
        self.groups: dict[str, int] = {}
        """How many siblings of each group live here."""
        self._names: list[str] = []
        self._table: Ints = np.zeros((_FIELDS, 16), dtype=np.int64)
        self._base_tokens = 0
        self._num_running = 0
        self._all_prompt_tokens = 0
        """Siblings' prompts not shared."""

    def __len__(self) -> int:
        return len(self._names)

    def put(self, traj: str, group: str, *, prompt_tokens: int, curve: int, length: int, running: bool) -> bool:
        """Record its state; True if it is new here."""
        slot = self.slots.get(traj)
        is_new = slot is None
        if slot is None:
            slot = self.slots[traj] = len(self._names)
            self._names.append(traj)
            if slot == self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            siblings = self.groups[group] = self.groups.get(group, 0) + 1
            self.prompt_tokens += prompt_tokens * (siblings == 1)
            self._all_prompt_tokens += prompt_tokens
        else:
            self._forget(slot)
        table, base = self._table, length - self.clock if running else length
        table[_CELL, slot], table[_BASE, slot] = curve * NUM_BINS, base
        table[_RUNNING, slot], table[_SINCE, slot] = running, self.clock
        self._base_tokens += base
        self._num_running += running
        return is_new

    def _forget(self, slot: int) -> None:
        self._base_tokens -= self._table.item(_BASE, slot)
        self._num_running -= self._table.item(_RUNNING, slot)

    def turn_ended(self, traj: str, new_tokens: int) -> None:
        slot = self.slots.get(traj)
        if slot is not None and self._table.item(_RUNNING, slot):
            self.clock = max(self.clock, self._table.item(_SINCE, slot) + new_tokens)

    def discard(self, traj: str, group: str, *, prompt_tokens: int) -> None:
        slot = self.slots.pop(traj, None)
        if slot is None:
            return
        self._forget(slot)
        self._all_prompt_tokens -= prompt_tokens
        self.groups[group] -= 1
        if not self.groups[group]:
            del self.groups[group]
            self.prompt_tokens -= prompt_tokens
        last = self._names.pop()
        if last != traj:
            self._table[:, slot] = self._table[:, len(self._names)]
            self._names[slot] = last
            self.slots[last] = slot

    def lengths(self) -> list[tuple[str, int]]:
        """(trajectory, its length by now as the clock says)."""
        return list(zip(self._names, self._lengths_N().tolist(), strict=True))

    def tokens_now(self, buffer_tokens: int) -> int:
        """Resident tokens as the clock says, and the buffers."""
        own = self._base_tokens + self._num_running * self.clock
        return own + self.prompt_tokens + buffer_tokens * len(self._names)

    def _lengths_N(self) -> Ints:
        table = self._table[:, : len(self._names)]
        return np.asarray(table[_BASE] + table[_RUNNING] * self.clock)

    def forecast(self, chances: Chances, bin_tokens: int, buffer_tokens: int, request_tokens: float) -> Forecast:
        """`buffer_tokens` are added to the tokens of each trajectory, `request_tokens` to the tokens read."""
        number = len(self._names)
        ahead_K = ahead(bin_tokens)
        length_N = self._lengths_N()
        cell_N = self._table[_CELL, :number] + np.minimum(length_N // bin_tokens, NUM_BINS - 1)
        tokens_N = (length_N + buffer_tokens).astype(np.float64)
        # Those in one cell are one row: their chances are the same.
        count_C = np.bincount(cell_N)
        used = (count_C != 0).nonzero()[0]
        sums = np.empty((3, len(used)))
        sums[0] = count_C[used]
        sums[1] = np.bincount(cell_N, weights=tokens_N)[used]
        sums[2] = np.bincount(cell_N, weights=tokens_N * tokens_N)[used]
        sums_K = sums @ chances(used)
        count, first = sums_K[0, :NUM_BINS], sums_K[1, :NUM_BINS]
        count_v, first_v, second_v = sums_K[:, NUM_BINS:]
        grown_K = first + count * ahead_K
        variance_K = second_v + 2.0 * first_v * ahead_K + count_v * ahead_K * ahead_K
        each = request_tokens - buffer_tokens + (self._all_prompt_tokens / number if number else 0.0)
        area = float(np.add.reduce(grown_K) + each * np.add.reduce(count)) * bin_tokens
        return Forecast(grown_K + self.prompt_tokens, variance_K, count, area, bin_tokens, self.clock)


@lru_cache(maxsize=8)
def ahead(bin_tokens: int) -> Floats:
    """Tokens that one which runs on writes until each bin of steps; not to be written to."""
    return np.arange(NUM_BINS, dtype=np.float64) * bin_tokens
