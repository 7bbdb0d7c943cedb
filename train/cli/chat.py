"""`rocstar chat`: a model in the terminal."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import RECIPE_HELP, check_fields, loading, new_verb
from rocstar.train.served import verbs as served


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "chat", "talk with a model in the terminal, and see its tools at work")
    served.add_chat(parser, recipe_help=RECIPE_HELP)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    check_fields(rest)
    return served.chat(options, rest, loading=loading)
