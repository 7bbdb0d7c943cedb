"""`rocstar analyse RUN`: work and output. Exit codes: 0, 2 for bad input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.train.recipe.errors import ConfigError

if TYPE_CHECKING:
    from rocstar.train.reading.analysis.analyse import Analysis

FOLDER = "analysis"


def run(options: argparse.Namespace) -> int:
    """Analyse, write the page and print the findings; return 0. ConfigError for bad input."""
    from rocstar.engine.progress.status import StatusLine
    from rocstar.train.reading.analysis.analyse import analyse
    from rocstar.train.reading.analysis.analysis_page import as_plain, html_page
    from rocstar.train.reading.analysis.trajectory_selection import resolve_source
    from rocstar.train.record.run_directory import check_file, replace_text

    source = resolve_source(
        options.run, step=options.step, checkpoint=options.checkpoint, temperature=options.temperature
    )
    if options.out:
        check_file(options.out, force=options.force)
    with StatusLine():
        found = analyse(source, number=options.trajectories, window=options.window, seed=options.seed)
    if source.step is None:
        default = options.run.with_name(f"{options.run.stem}.analysis.html")
    else:
        default = options.run / FOLDER / f"step_{source.step:06d}.html"
    out = options.out or default
    try:
        out.parent.mkdir(exist_ok=True)
        replace_text(out, html_page(found))
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}. Pass another path as --out.") from None
    print(json.dumps({**as_plain(found), "page": str(out)}) if options.json else _as_text(found, out))
    return 0


def _as_text(found: Analysis, out: Path) -> str:
    from rocstar.train.reading.analysis.analysis_page import facts, format_findings, notes

    width = max(len(name) for name, _ in facts(found))
    lines = [f"{name:<{width}}  {value}" for name, value in facts(found)]
    return "\n".join([*lines, *notes(found), "", *format_findings(found), "", f"wrote {out}"])
