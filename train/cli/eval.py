"""`rocstar eval`: avg@k and pass@k of a model."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import RECIPE_HELP, check_fields, count, loading, new_verb
from rocstar.train.evaluation import command


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "eval", "avg@k and pass@k of a model on sets of tasks, kept as evidence")
    command.add_arguments(parser, recipe_help=RECIPE_HELP, count=count)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    check_fields(rest)
    return command.run(options, rest, loading=loading)
