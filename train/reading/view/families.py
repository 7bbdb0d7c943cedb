"""Reward by where tasks come from: a curve for each family over the steps, and a table of them all."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.report.page import Drawn
from rocstar.train.record.report.svg import Chart, Series, line_chart

MOST_CURVES: Final = 9
"""So many colours there are; the families with the most trajectories are drawn."""
QUARTER: Final = 4


def families(listing: Listing) -> list[dict[str, Any]]:
    """Each family with its trajectories, share of correct ones and mean reward, over all steps, in the first
    quarter of its steps and in the last; the largest first. Of failed ones there is no reward."""
    rows = listing.rows[~np.isnan(listing.rows["reward"])]
    told = []
    for number, name in enumerate(listing.families):
        mine = rows[rows["family"] == number]
        if not len(mine):
            continue
        steps = np.unique(mine["step"])
        size = -(-len(steps) // QUARTER)
        first, last = (np.isin(mine["step"], part) for part in (steps[:size], steps[-size:]))
        told.append(
            {
                "name": name,
                "trajectories": len(mine),
                "correct": float(mine["is_correct"].mean()),
                "reward": float(mine["reward"].mean()),
                "first": float(mine["reward"][first].mean()),
                "last": float(mine["reward"][last].mean()),
                "tokens": float(mine["tokens"].mean()),
                "steps": steps.tolist(),
                "rewards": [float(mine["reward"][mine["step"] == step].mean()) for step in steps],
            }
        )
    return sorted(told, key=lambda one: -one["trajectories"])


def families_drawing(told: list[dict[str, Any]]) -> Drawn | None:
    """The mean reward of the largest families over the steps; None where there is one at most."""
    if len(told) < 2:
        return None
    series = [
        Series(label=one["name"], color=color, points=list(zip(one["steps"], one["rewards"], strict=True)))
        for color, one in enumerate(told[:MOST_CURVES])
    ]
    left_out = len(told) - len(series)
    caption = "Mean reward of the generated trajectories of each family of tasks." + (
        f" {left_out} smaller families are in the table alone." if left_out else ""
    )
    chart = Chart(title="Reward by task family", unit="reward", series=series)
    return Drawn(partial(line_chart, chart), caption, is_wide=True)
