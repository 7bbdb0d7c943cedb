"""`rocstar view`: a local page of runs."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more
from rocstar.train.reading.view import command


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "view", "a local page of runs, live: curves, groups, trajectories and tokens")
    command.add_arguments(parser)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    nothing_more(rest, "see `rocstar view --help`")
    return command.run(options)
