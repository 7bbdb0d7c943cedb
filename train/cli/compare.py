"""`rocstar compare`: two evaluations of the same questions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import any_step, new_verb, nothing_more


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "compare", "which of two evaluations of the same questions is better, and how surely"
    )
    text = (
        "a run, a checkpoint, what `rocstar eval --out` wrote, or a table (CSV, JSON Lines: question, score)"
    )
    parser.add_argument("a", type=Path, metavar="A", help=text)
    parser.add_argument("b", type=Path, metavar="B", help="the same; differences are B minus A")
    text = "of runs: the evaluation at this step; default: the last that both have"
    parser.add_argument("--step", type=any_step, metavar="N", help=text)
    text = "only this set; may be repeated"
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.evaluation.compare import as_text, compare_paths

    nothing_more(rest, "see `rocstar compare --help`")
    found = compare_paths(options.a, options.b, step=options.step, only=options.sets)
    print(json.dumps(found.as_json()) if options.json else as_text(found))
    return 0
