"""The viewer as one file: some trajectories of a run, with the page's data about them.

    places ──exported_responses.py──> responses ──document.py──> one HTML

Withheld tasks are left out, and so is data beyond the size limit: tokens first, then whole trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from rocstar.train.reading.view.document import build_document, static_table
from rocstar.train.reading.view.exported_responses import (
    ExportedResponses,
    Place,
    keep_conversations,
    keep_evaluation,
    keep_groups,
    keep_tokens,
)
from rocstar.train.reading.view.reader import NothingThereError, RunReader
from rocstar.train.reading.view.viewed_run import STEPS

MOST: Final = 50
"""Trajectories of a page."""


def export_page(
    reader: RunReader, run: str, collection: str, places: Sequence[Place], *, made: str, start: str = "run"
) -> str:
    """Return the page of these trajectories of a collection; `made` is the creation time, and `start` the
    first page. NothingThereError for no trajectories, or more than MOST."""
    if not 0 < len(places) <= MOST:
        raise NothingThereError(f"choose 1 to {MOST} trajectories, these are {len(places)}")
    kept, mine = ExportedResponses(), {"run": run}
    told = kept.ask("run", mine, partial(reader.run, run))
    if told is None:
        raise NothingThereError(f"there is no run {run!r}")
    summaries = [one for one in reader.runs()["runs"] if one["name"] == run]
    kept.ask("runs", {}, lambda: {"runs": summaries})
    kept.ask("groups", mine, partial(reader.groups_of, run))
    kept.ask("families", mine, partial(reader.families, run))
    kept.ask("alarms", mine, partial(reader.alarms, run))
    for step in told["evaluated"]:
        keep_evaluation(kept, reader, run, step)
    of = {} if collection == STEPS else {"of": collection}
    shown = keep_conversations(kept, reader, run, collection, of, places)
    if collection == STEPS:
        _keep_surroundings(kept, reader, run, [row for _, row in shown])
    for place, _ in shown:
        keep_tokens(kept, reader, run, collection, of, place)
    about = {
        "made": made,
        "start": f"#/{start}?{urlencode({'run': run, **of})}",
        "left_out": len(places) - len(shown),
    }
    head = ("trajectory", "step", "verdict", "fate", "tokens", "calls")
    cells = [
        [
            f"{row['name']} #{row['sibling']}",
            *(row[key] for key in ("step", "verdict", "bucket", "tokens", "calls")),
        ]
        for _, row in shown
    ]
    return build_document(f"rocstar: {run}", about, kept.texts, static_table(run, head, cells))


def _keep_surroundings(
    kept: ExportedResponses, reader: RunReader, run: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """The groups, tasks and steps that these rows are of."""
    keep_groups(kept, reader, run, rows)
    for task in dict.fromkeys(row["task"] for row in rows):
        kept.ask("task", {"run": run, "task": task}, partial(reader.task, run, task=int(task, 16)))
    for step in dict.fromkeys(row["step"] for row in rows):
        kept.ask("timeline", {"run": run, "step": step}, partial(reader.timeline, run, step))
