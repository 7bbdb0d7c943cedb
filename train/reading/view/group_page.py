"""A group in Resample-on-Correct: the penalties, weight and decision of each sibling.

The sums are those of the rows, next to those of the step's ledger in metrics.jsonl.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.metrics import Row

LEDGER: Final = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed", "ended_early")


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
    listing: Listing, *, step: int, task: int, config: Mapping[str, Any], row: Row | None, reveal: bool
) -> dict[str, Any]:
    """Return the siblings of a task at a step, their sums, and the sums of the step.

    `config` is the recipe of the step, and `row` its row of metrics.jsonl, or None. The siblings are empty if
    there is no such group.
    """
    rl = config.get("rl")
    rl = rl if isinstance(rl, dict) else {}
    draw = {"mode": rl.get("roc_mode"), "eps": rl.get("roc_eps")}
    ledger = None
    if row is not None and row.get("ledger/generated") is not None:
        ledger = {name: int(row.get(f"ledger/{name}") or 0) for name in (*LEDGER, "generated")}
    rows = listing.rows
    of_step = rows["step"] == step
    places = np.flatnonzero(of_step & (rows["task"] == task))
    group_places = listing.group_at(int(places[0])) if len(places) else []
    siblings = [listing.row_with_texts(at, reveal=reveal) for at in group_places]
    buckets = {sibling["bucket"] for sibling in siblings}
    is_drawn = bool(buckets & {"dropped_positive", "dropped_negative"})
    for sibling in siblings:
        sibling["weight"] = draw_weight(sibling, mode=draw["mode"], eps=draw["eps"]) if is_drawn else None
    return {
        "step": step,
        "draw": {**draw, "happened": is_drawn},
        "siblings": siblings,
        "sums": _sums([s["bucket"] for s in siblings]),
        "step_sums": _sums([listing.buckets[code] for code in rows["bucket"][of_step].tolist()]),
        "ledger": ledger,
    }


def _sums(buckets: Sequence[str]) -> dict[str, int]:
    counts = {name: buckets.count(name) for name in sorted(set(buckets) - set(LEDGER))}
    return {name: buckets.count(name) for name in LEDGER} | counts | {"generated": len(buckets)}


def task_over_steps(listing: Listing, task: int) -> list[dict[str, Any]]:
    """A task at each step that has it: attempts, correct ones, mean reward and tokens."""
    rows = listing.rows[listing.rows["task"] == task]
    steps = []
    for step in np.unique(rows["step"]).tolist():
        mine = rows[rows["step"] == step]
        scored = mine[~np.isnan(mine["reward"])]
        steps.append(
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
    return steps


def pass_rates(listing: Listing, *, step: int) -> dict[str, Any]:
    """Return the number of groups by their number of correct siblings."""
    rows = listing.rows[listing.rows["step"] == step]
    tasks, inverse = np.unique(rows["task"], return_inverse=True)
    right = rows["is_correct"] & ~np.isnan(rows["reward"])
    correct = np.bincount(inverse, weights=right, minlength=len(tasks)).astype(int)
    size = int(np.bincount(inverse).max()) if len(rows) else 0
    return {"step": step, "size": size, "groups": np.bincount(correct, minlength=size + 1).tolist()}
