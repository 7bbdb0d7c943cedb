"""`rocstar records`: the trajectory records of a run as JSON Lines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more, step_number
from rocstar.train.recipe.errors import ConfigError


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "records", "write the trajectory records of a run as JSON Lines, a file per step"
    )
    parser.add_argument("run", type=Path, help="run directory, or folder of records")
    parser.add_argument("--out", required=True, type=Path, help="a folder that is new or empty")
    text = "only this step; may be repeated"
    parser.add_argument("--step", dest="steps", type=step_number, action="append", metavar="N", help=text)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.engine.record.files import FRAMES, record_files
    from rocstar.engine.record.reading import RecordError, export_lines
    from rocstar.train.record.run_directory import TRAJECTORIES
    from rocstar.train.record.targets import make_folder

    nothing_more(rest, "`rocstar records RUN --out FOLDER` takes --step")
    inner = options.run / TRAJECTORIES
    folder = inner if inner.is_dir() else options.run
    there = record_files(folder)
    if missing := [step for step in options.steps or [] if step not in there]:
        raise ConfigError(f"{str(options.run)!r} has no records of step {missing[0]}; it has {list(there)}")
    if not there:
        is_begun = any(folder.glob(f"step_*{FRAMES}"))
        fix = "its step, or its server, has not ended: wait for it" if is_begun else "give a run directory"
        raise ConfigError(f"{str(options.run)!r} has no records of a finished step; {fix}")
    make_folder(options.out)
    try:
        for path in export_lines(folder, options.out, steps=options.steps):
            print(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    return 0
