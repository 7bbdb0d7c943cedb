"""Rewards by source of the tasks: a curve over the steps for each family, and a table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.train.reading.view.chart import Chart, Series
from rocstar.train.reading.view.listing import Listing

MOST_CURVES: Final = 9
"""The number of colours; only the largest families are drawn."""
QUARTER: Final = 4
CHUNK_ROWS: Final = 1 << 16


def families(listing: Listing) -> list[dict[str, Any]]:
    """Return the trajectories, pass rate and mean reward of each family, over all steps and over the first
    and last quarter; largest first. Failed trajectories have no reward."""
    steps = np.unique(listing.rows["step"])
    number, correct, reward, tokens = _sums(listing, steps)
    found = []
    for family, name in enumerate(listing.families):
        there = np.flatnonzero(number[family])
        if not len(there):
            continue
        size = -(-len(there) // QUARTER)
        first, last = there[:size], there[-size:]
        counts, rewards = number[family], reward[family]
        total = counts.sum()
        found.append(
            {
                "name": name,
                "trajectories": int(total),
                "correct": float(correct[family].sum() / total),
                "reward": float(rewards.sum() / total),
                "first": float(rewards[first].sum() / counts[first].sum()),
                "last": float(rewards[last].sum() / counts[last].sum()),
                "tokens": float(tokens[family].sum() / total),
                "steps": steps[there].tolist(),
                "rewards": (rewards[there] / counts[there]).tolist(),
            }
        )
    return sorted(found, key=lambda one: -one["trajectories"])


def _sums(listing: Listing, steps: npt.NDArray[Any]) -> list[npt.NDArray[np.float64]]:
    """Return the sums of each family and step: scored, correct, rewards and tokens. Rows are processed in
    chunks, because a copy of a million of them is large."""
    shape = max(1, len(listing.families)), len(steps)
    sums = [np.zeros(shape) for _ in range(4)]
    for start in range(0, len(listing.rows), CHUNK_ROWS):
        rows = listing.rows[start : start + CHUNK_ROWS]
        rows = rows[~np.isnan(rows["reward"])]
        cells = rows["family"].astype(np.intp) * len(steps) + np.searchsorted(steps, rows["step"])
        columns = (None, rows["is_correct"], rows["reward"], rows["tokens"])
        for total, weights in zip(sums, columns, strict=True):
            total += np.bincount(cells, weights, minlength=total.size).reshape(shape)
    return sums


def families_drawing(found: list[dict[str, Any]]) -> Chart | None:
    """Return the mean reward of the largest families over the steps, or None for fewer than two families."""
    if len(found) < 2:
        return None
    series = [
        Series(label=one["name"], color=color, points=list(zip(one["steps"], one["rewards"], strict=True)))
        for color, one in enumerate(found[:MOST_CURVES])
    ]
    left_out = len(found) - len(series)
    caption = "Mean reward of the generated trajectories of each family of tasks." + (
        f" {left_out} smaller families are in the table alone." if left_out else ""
    )
    return Chart(title="Reward by task family", unit="reward", series=series, caption=caption, is_wide=True)
