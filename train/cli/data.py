"""`rocstar data`: tasks held against evaluation sets."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more
from rocstar.train.data import data_command


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "data", "check: tasks against the questions of evaluation sets")
    data_command.add_arguments(parser)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    nothing_more(rest, "see `rocstar data check --help`")
    return data_command.run(options)
