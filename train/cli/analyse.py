"""`rocstar analyse`: where the policy of a run was uncertain."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more
from rocstar.train.reading.analysis import analyse_command


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "analyse", "where the policy was uncertain: exact entropies by what each token is for"
    )
    analyse_command.add_arguments(parser)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    nothing_more(rest, "see `rocstar analyse --help`")
    return analyse_command.run(options)
