"""`rocstar analyse RUN`: options and output. Exit codes: 0, 2 for bad input."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.sandbox.command_line import number_option
from rocstar.train.recipe.errors import ConfigError

if TYPE_CHECKING:
    from rocstar.train.reading.analysis.analyse import Analysis

NUMBER, WINDOW, MAX_WINDOW = 64, 8, 64
"""Trajectories, as in the report; first tokens of a turn."""
FOLDER = "analysis"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    whole = number_option(1, math.inf, "a whole number, 1 or more")
    window = number_option(1, MAX_WINDOW, f"a number of tokens, 1 to {MAX_WINDOW}")
    seed = number_option(0, math.inf, "a whole number, 0 or more")
    text = "run directory, or a file of records: the attempts of an evaluation, or of `rocstar rollout`"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    text = "the RL step of a run; default: the last"
    parser.add_argument("--step", type=whole, metavar="N", help=text)
    text = "a Hugging Face directory or hub name; default: the run's checkpoint nearest to the step"
    parser.add_argument("--checkpoint", metavar="DIR", help=text)
    text = f"the maximum number of trajectories, spread over tasks; default {NUMBER}"
    parser.add_argument("--trajectories", type=whole, default=NUMBER, metavar="N", help=text)
    text = f"the number of first tokens of a turn, up to {MAX_WINDOW}; default {WINDOW}"
    parser.add_argument("--window", type=window, default=WINDOW, metavar="N", help=text)
    text = "divides the logits; default: the run's sampling temperature if known, else 1"
    parser.add_argument("--temperature", type=float, metavar="T", help=text)
    text = "the seed of the selection and of the intervals"
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help=text)
    text = "the page; default: RUN/analysis/step_N.html, or next to the file"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)
    parser.add_argument("--force", action="store_true", help="replace the file --out if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


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
