"""A group in Resample-on-Correct: the penalties, weight and decision of each sibling.

The sums are those of the rows, next to those of the step's ledger in metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rocstar.train.reading.view.conversation import WHY
from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.metrics import Row

LEDGER: Final = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed")


def roc_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of resampling in a run's config.toml: mode, eps and keep; None if unknown."""
    rl = config.get("rl")
    rl = rl if isinstance(rl, dict) else {}
    return {"mode": rl.get("roc_mode"), "eps": rl.get("roc_eps"), "keep": rl.get("group_size")}


def draw_weight(sibling: Mapping[str, Any], *, mode: str | None, eps: float | None) -> float | None:
    """Return the weight of a sibling in the draw that it took part in (contract 8); None if unknown.

    As `algorithm/roc.py` weighs: in mode `paper` a correct one by its penalty, and else all alike.
    """
    if sibling["reward"] is None or mode in (None, "none"):
        return None
    if mode == "uniform" or sibling["verdict"] != "correct":
        return 1.0
    if mode == "sort" or eps is None:
        return None
    penalty = (sibling["penalty_error"] or 0.0) + (sibling["penalty_format"] or 0.0)
    return 1.0 / (eps + penalty)


def group(
    listing: Listing, *, step: int, task: int, draw: Mapping[str, Any], ledger: Row | None
) -> dict[str, Any]:
    """The siblings of a task at a step, their sums, and the sums of the step; empty where there are none.

    `draw` is of `roc_settings`, and `ledger` the step's row of metrics.jsonl; None where it has none.
    """
    rows = listing.rows
    of_step = rows["step"] == step
    places = np.flatnonzero(of_step & (rows["task"] == task))
    siblings = [dict(listing.told(int(at))) for at in places[np.argsort(rows["sibling"][places])]]
    buckets = {sibling["bucket"] for sibling in siblings}
    scored = [s for s in siblings if s["reward"] is not None]
    is_drawn = bool(buckets & {"dropped_positive", "dropped_negative"})
    for sibling in siblings:
        sibling["weight"] = draw_weight(sibling, mode=draw["mode"], eps=draw["eps"]) if is_drawn else None
        sibling["why"] = WHY.get(sibling["bucket"], "")
    total = sum(s["weight"] for s in scored if s["verdict"] == "correct" and s["weight"] is not None)
    for sibling in siblings:
        mine = sibling["verdict"] == "correct" and sibling["weight"] is not None and total > 0
        sibling["share"] = sibling["weight"] / total if mine else None
    return {
        "step": step,
        "task": format(task, "x"),
        "name": listing.names.get(task, ""),
        "draw": {**draw, "happened": is_drawn},
        "siblings": siblings,
        "sums": _sums([s["bucket"] for s in siblings]),
        "rewards": [s["reward"] for s in scored],
        "step_sums": _sums([listing.buckets[code] for code in rows["bucket"][of_step].tolist()]),
        "ledger": _ledger(ledger),
    }


def _sums(buckets: Sequence[str]) -> dict[str, int]:
    counts = {name: buckets.count(name) for name in sorted(set(buckets) - set(LEDGER))}
    return {name: buckets.count(name) for name in LEDGER} | counts | {"generated": len(buckets)}


def _ledger(row: Row | None) -> dict[str, int] | None:
    if row is None or row.get("ledger/generated") is None:
        return None
    return {name: int(row.get(f"ledger/{name}") or 0) for name in (*LEDGER, "generated")}


def task_over_steps(listing: Listing, task: int) -> list[dict[str, Any]]:
    """A task at each step that has it: attempts, correct ones, mean reward and tokens."""
    rows = listing.rows[listing.rows["task"] == task]
    told = []
    for step in np.unique(rows["step"]).tolist():
        mine = rows[rows["step"] == step]
        scored = mine[~np.isnan(mine["reward"])]
        told.append(
            {
                "step": step,
                "attempts": len(mine),
                "correct": int(scored["is_correct"].sum()),
                "reward": float(scored["reward"].mean()) if len(scored) else None,
                "tokens": float(mine["tokens"].mean()),
                "errors": int(mine["errors"].sum()),
                "kept": int(mine["kept"].sum()),
            }
        )
    return told


def pass_rates(listing: Listing, *, step: int) -> dict[str, Any]:
    """Return the number of groups by their number of correct siblings."""
    rows = listing.rows[listing.rows["step"] == step]
    tasks, inverse = np.unique(rows["task"], return_inverse=True)
    right = rows["is_correct"] & ~np.isnan(rows["reward"])
    correct = np.bincount(inverse, weights=right, minlength=len(tasks)).astype(int)
    size = int(np.bincount(inverse).max()) if len(rows) else 0
    return {"step": step, "size": size, "groups": np.bincount(correct, minlength=size + 1).tolist()}
