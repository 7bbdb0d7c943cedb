"""Helpers for an example of several phases: verbs of `rocstar` one after the other, in this process.

    main ──exit_code_of──> phases ──do, told, train──> rocstar VERB       one that fails ends the command

Each phase writes files; existing files are not made again, so a file appears only when complete.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import whole_file
from rocstar.train.cli import main as rocstar


class PhaseFailed(Exception):
    """A verb ended with an exit code other than 0, or a phase found nothing to go on with."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def exit_code_of(phases: Callable[[], None]) -> int:
    """The exit code of the phase that failed, which is the last one; 0 if none did."""
    try:
        phases()
    except PhaseFailed as failed:
        return failed.code
    return 0


def do(*command: str) -> None:
    """`rocstar COMMAND`. PhaseFailed if it ends otherwise than well."""
    if code := rocstar(list(command)):
        raise PhaseFailed(code)


def told(*command: str) -> Any:
    """Return the output of `rocstar COMMAND --json`. Raise PhaseFailed if it fails."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        do(*command, "--json")
    return json.loads(printed.getvalue())


def train(recipe: Path, run: Path, fields: Sequence[str]) -> None:
    """Begin the run of that folder, or go on with it."""
    going_on = ["--resume"] if (run / "metrics.jsonl").exists() else []
    do("train", str(recipe), "--output-dir", str(run), *going_on, *fields)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines that appear whole or not at all, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, is_synced=False) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
