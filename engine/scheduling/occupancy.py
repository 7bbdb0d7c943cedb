"""The KV of one replica over the coming steps, from the predicted lengths of those that live on it.

All running trajectories of a replica write one token per step, so that its steps are its clock, read off
the turns that end (a turn of n tokens granted at step s ends at step s + n or later). Trajectories peak at
different times: what is predicted is the sum over all of them at each step ahead, never the sum of their
peaks.

Legend: as predictor.py; N trajectories.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rocstar.engine.scheduling.predictor import NUM_BINS, Floats

_FIELDS = 4
_CURVE, _LENGTH, _CONTEXT, _SINCE = range(_FIELDS)
AT_TOOL = -1


class Occupancy:
    """The trajectories of one replica in a dense table (N rows: curve, length, context, step of the grant).

    Invariant: rows 0..len-1 are in use and `slots` names each once.
    """

    def __init__(self) -> None:
        self.clock = 0
        """Steps that the replica has made, as far as is known."""
        self.slots: dict[str, int] = {}
        self._names: list[str] = []
        self._table: npt.NDArray[np.int64] = np.zeros((16, _FIELDS), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def put(self, traj: str, *, curve: int, length: int, context: int, running: bool) -> None:
        slot = self.slots.get(traj)
        if slot is None:
            slot = self.slots[traj] = len(self._names)
            self._names.append(traj)
            if slot == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[slot] = (curve, length, context, self.clock if running else AT_TOOL)

    def turn_ended(self, traj: str, new_tokens: int) -> None:
        slot = self.slots.get(traj)
        if slot is not None and (since := int(self._table[slot, _SINCE])) != AT_TOOL:
            self.clock = max(self.clock, since + new_tokens)

    def discard(self, traj: str) -> None:
        slot = self.slots.pop(traj, None)
        if slot is None:
            return
        last = self._names.pop()
        if last != traj:
            self._table[slot] = self._table[len(self._names)]
            self._names[slot] = last
            self.slots[last] = slot

    def forecast_K(self, going_on_CBK: Floats, bin_tokens: int) -> tuple[Floats, Floats]:
        """Mean and variance of the resident tokens, k bins of steps from now."""
        table = self._table[: len(self._names)]
        ahead_K = np.arange(NUM_BINS, dtype=np.float64) * bin_tokens
        since = table[:, _SINCE]
        written = np.where(since == AT_TOOL, 0, self.clock - since)
        bins = np.minimum((table[:, _LENGTH] + written) // bin_tokens, NUM_BINS - 1)
        cell = table[:, _CURVE] * NUM_BINS + bins
        context = (table[:, _CONTEXT] + written).astype(np.float64)
        num_cells = going_on_CBK.shape[0] * NUM_BINS
        sums = np.stack(
            [
                np.bincount(cell, minlength=num_cells).astype(np.float64),
                np.bincount(cell, weights=context, minlength=num_cells),
                np.bincount(cell, weights=context * context, minlength=num_cells),
            ]
        )
        used = np.flatnonzero(sums[0])
        p = going_on_CBK.reshape(num_cells, NUM_BINS)[used]
        count, first, _ = sums[:, used] @ p
        count_v, first_v, second_v = sums[:, used] @ (p * (1.0 - p))
        mean = first + count * ahead_K
        variance = second_v + 2.0 * first_v * ahead_K + count_v * ahead_K * ahead_K
        return mean, variance
