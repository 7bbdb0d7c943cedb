"""`rocstar serve`: an OpenAI-compatible endpoint of an agent."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import RECIPE_HELP, check_fields, loading, new_verb
from rocstar.train.served import verbs as served


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "serve", "an OpenAI-compatible endpoint of an agent, whose tools run here")
    served.add_serve(parser, recipe_help=RECIPE_HELP)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    check_fields(rest)
    return served.serve(options, rest, loading=loading)
