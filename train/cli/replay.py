"""`rocstar replay`: the loss of a step, computed again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more, step_number


def add(verbs: Any) -> None:
    parser = new_verb(verbs, "replay", "compute the loss of a step again from the run's records")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--step", type=step_number, required=True, help="the RL step, from 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.replay import replay

    nothing_more(rest, "`rocstar replay RUN --step N` takes only --json")
    result = replay(options.run, options.step)
    print(result.to_json() if options.json else result.to_text())
    return 0 if result.agrees else 1
