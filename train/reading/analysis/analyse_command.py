"""`rocstar analyse RUN`: what it takes and what it prints. Exit codes: 0, 2 for bad input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.train.recipe.errors import ConfigError

if TYPE_CHECKING:
    from rocstar.train.reading.analysis.analyse import Analysis

NUMBER, WINDOW, MAX_WINDOW = 64, 8, 64
"""Trajectories, as in the report; first tokens of a turn."""
FOLDER = "analysis"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    text = "run directory, or a file of records: the attempts of an evaluation, or of `rocstar rollout`"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    text = "of a run: the trajectories of this RL step; default: the last"
    parser.add_argument("--step", type=_whole, metavar="N", help=text)
    text = "the weights, a Hugging Face directory or hub name; default: the run's nearest to those that wrote"
    parser.add_argument("--checkpoint", metavar="DIR", help=text)
    text = f"at most so many, of as many tasks as there are; default {NUMBER}"
    parser.add_argument("--trajectories", type=_whole, default=NUMBER, metavar="N", help=text)
    text = f"so many tokens are the first ones of a turn, up to {MAX_WINDOW}; default {WINDOW}"
    parser.add_argument("--window", type=_window, default=WINDOW, metavar="N", help=text)
    text = "divides the logits; default: as the records were sampled, if the run says so, else 1"
    parser.add_argument("--temperature", type=float, metavar="T", help=text)
    text = "of the choice and of the intervals"
    parser.add_argument("--seed", type=_natural, default=0, metavar="N", help=text)
    text = "the page; default: RUN/analysis/step_N.html, or beside the file"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)
    parser.add_argument("--force", action="store_true", help="replace the file --out if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Analyse, write the page and print what the intervals show; 0. ConfigError for bad input."""
    from rocstar.engine.progress.status import StatusLine
    from rocstar.train.reading.analysis.analyse import analyse
    from rocstar.train.reading.analysis.analysis_page import as_plain, html_page
    from rocstar.train.reading.analysis.trajectory_selection import resolve_source
    from rocstar.train.record.run_directory import replace_text
    from rocstar.train.record.targets import check_file

    source = resolve_source(
        options.run, step=options.step, checkpoint=options.checkpoint, temperature=options.temperature
    )
    if options.out:
        check_file(options.out, force=options.force)
    with StatusLine():
        found = analyse(source, number=options.trajectories, window=options.window, seed=options.seed)
    out = options.out or _default_page(options.run, source.step)
    try:
        out.parent.mkdir(exist_ok=True)
        replace_text(out, html_page(found))
    except OSError as error:
        raise ConfigError(
            f"{str(out)!r} cannot be written ({error.strerror}); say with --out where the page goes"
        ) from None
    print(json.dumps({**as_plain(found), "page": str(out)}) if options.json else _as_text(found, out))
    return 0


def _default_page(run: Path, step: int | None) -> Path:
    """Where the page of a run's step goes, or of a file of records."""
    if step is None:
        return run.with_name(f"{run.stem}.analysis.html")
    return run / FOLDER / f"step_{step:06d}.html"


def _as_text(found: Analysis, out: Path) -> str:
    from rocstar.train.reading.analysis.analysis_page import facts, format_findings, notes

    width = max(len(name) for name, _ in facts(found))
    lines = [f"{name:<{width}}  {value}" for name, value in facts(found)]
    return "\n".join([*lines, *notes(found), "", *format_findings(found), "", f"wrote {out}"])


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _whole(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("0 is too few; give a whole number from 1 on")
    return int(text)


def _window(text: str) -> int:
    if (window := _whole(text)) > MAX_WINDOW:
        raise argparse.ArgumentTypeError(f"{text} tokens are more than the {MAX_WINDOW} that are kept apart")
    return window
