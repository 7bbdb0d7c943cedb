"""`rocstar data`: tasks and conversations from sources, held against evaluation sets."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more
from rocstar.train.data import data_command


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "data", "build|check|show: tasks and conversations, held against evaluation sets"
    )
    data_command.add_arguments(parser)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    nothing_more(rest, f"see `rocstar data {options.data_verb} --help`")
    return data_command.run(options)
