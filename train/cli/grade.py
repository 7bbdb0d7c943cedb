"""`rocstar grade`: the judge alone."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "grade", "the judge alone: JSON Lines of answer and text in, reward and method out"
    )
    parser.add_argument(
        "rows", metavar="FILE", help='lines of {"answer": ..., "text": ...}; - = standard input'
    )
    text = "strict, or the verdicts of the original's graders (reward.mode)"
    parser.add_argument("--mode", choices=("strict", "fused"), default="strict", help=text)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    nothing_more(rest, "`rocstar grade FILE` takes only --mode")
    from rocstar.train.serving.grade import grade

    return grade(options.rows, mode=options.mode)
