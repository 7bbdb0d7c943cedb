"""A step's trajectories on one clock: which ended last, and what each of them waited for.

index of the step: began, seconds ──> the last to end ──their frames, and no others──> lanes
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rocstar.engine.record.reading import RecordError
from rocstar.train.reading.view.drawings import told
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.timeline import MOST_LANES, step_timeline
from rocstar.train.record.run_directory import records_file


def timeline_of_step(listing: Listing, step: int) -> dict[str, Any]:
    """The trajectories of a step of the learner that ended last, those that began first on top, and what all
    of the step spent. `drawing` is None where no times are known.

    RecordError: the step is not there.
    """
    files = [path.stem for path in listing.files]
    stem = records_file(listing.files[0].parent, step).stem if files else ""
    number = listing.number_of(stem)
    if number is None:
        raise RecordError(f"there are no records of a step {step}")
    records = listing.opened(number)
    rows = records.rows
    first = int(listing.rows["file"].searchsorted(number))
    chosen = _last_to_end(rows)
    times = {row: found for row in chosen if (found := records.times(row)) is not None}
    shown = [row for row in chosen if row in times]
    began = min((times[row].began for row in shown), default=0.0)
    at = files.index(stem)
    told_rows = [
        {
            **listing.told(first + row),
            "began_s": times[row].began - began,
            "writing_s": float(rows["writing_s"][row]),
        }
        for row in shown
    ]
    names = [f"{one['name']} #{one['sibling']}" for one in told_rows]
    known = ~np.isnan(rows["began"])
    drawing = step_timeline(
        [(name, times[row]) for name, row in zip(names, shown, strict=True)], of=int(known.sum())
    )
    return {
        "step": step,
        "before": _step_of(files[at - 1]) if at else None,
        "after": _step_of(files[at + 1]) if at + 1 < len(files) else None,
        "drawing": None if drawing is None else told(drawing),
        "rows": told_rows,
        "sums": _sums(rows[known]),
    }


def _last_to_end(rows: npt.NDArray[Any]) -> list[int]:
    """The rows that ended last, in the order in which they began."""
    known = np.flatnonzero(~np.isnan(rows["began"]))
    ends = rows["began"][known] + rows["seconds"][known]
    last = known[np.argsort(-ends, kind="stable")[:MOST_LANES]]
    ordered: list[int] = last[np.argsort(rows["began"][last], kind="stable")].tolist()
    return ordered


def _sums(rows: npt.NDArray[Any]) -> dict[str, Any] | None:
    """Seconds that all trajectories spent, added up, and how long the whole took; None of none."""
    if not len(rows):
        return None
    seconds, writing_s, tools_s = (
        math.fsum(rows[name].tolist()) for name in ("seconds", "writing_s", "tools_s")
    )
    whole = float((rows["began"] + rows["seconds"]).max() - rows["began"].min())
    return {
        "trajectories": len(rows),
        "whole_s": whole,
        "seconds": seconds,
        "policy": writing_s,
        "tools": tools_s,
        "rest": max(0.0, seconds - writing_s - tools_s),
    }


def _step_of(stem: str) -> int | None:
    number = stem.removeprefix("step_")
    return int(number) if number.isdecimal() else None
