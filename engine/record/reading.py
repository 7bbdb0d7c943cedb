"""Trajectory records on disk, whatever they are written as. Replay, report and viewer read nothing else.

    step_N.columns + .index   a step of a run: columns with an index (step_file.py)
    NAME.jsonl                version 1, and the export: one JSON object per line (plain.py)

`read_records` gives the same objects of both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import FRAMES, LINES, record_files, whole_file
from rocstar.engine.record.json_record import VERSION, RecordError
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.types import HIDDEN


def export_lines(folder: Path, out: Path, *, steps: Collection[int] | None = None) -> list[Path]:
    """Write finished steps as JSON Lines, one file per step, and yield their paths in order. Hidden tasks are
    left out.

    Args:
        folder: the folder of records.
        out: the folder of the files; existing ones are replaced.
        steps: the steps to write; None for all.
    """
    written = []
    for step, path in record_files(folder).items():
        if steps is None or step in steps:
            written.append(out / f"{path.stem}{LINES}")
            records = read_records(path)
            shown = (r for r in records if not ((r.get("task") or {}).get("meta") or {}).get(HIDDEN))
            write_records(written[-1], shown)
    return written


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as lines; the file appears whole or not at all.

    ASCII only: a policy may write half of a surrogate pair into its arguments, which UTF-8 cannot carry.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, is_synced=False) as file:
        for record in records:
            file.write(json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one file. RecordError names an invalid record and its position."""
    if path.suffix == FRAMES:
        step_file = StepFile(path)
        yield from map(step_file.record, range(len(step_file)))
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even text
                raise RecordError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(record, dict) or record.get("v") != VERSION:
                raise RecordError(f"{path}:{number}: not a trajectory record of version {VERSION}")
            yield record
