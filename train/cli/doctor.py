"""`rocstar doctor`: what is wrong with a run, or with a node before one."""

from __future__ import annotations

import argparse
from typing import Any

from rocstar.train.cli.arguments import check_fields, new_verb, nothing_more
from rocstar.train.plan.node_doctor import add_node_options, node_doctor
from rocstar.train.reading.diagnosis import doctor_command
from rocstar.train.recipe.errors import ConfigError


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "doctor", "what is wrong with a run, or with this node before one, and what to do"
    )
    doctor_command.add_arguments(parser)
    add_node_options(parser)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    if options.node is not None:
        if options.run is not None:
            raise ConfigError(f"{str(options.run)!r} and --node: look at a run, or at this node")
        check_fields(rest)
        return node_doctor(options, rest)
    from rocstar.engine.record.reading import RecordError
    from rocstar.train.record.manifest import ManifestError
    from rocstar.train.record.metrics import MetricsFileError

    nothing_more(rest, "`rocstar doctor RUN` takes only --json")
    if options.run is None:
        raise ConfigError("what is to be looked at? rocstar doctor RUN, or rocstar doctor --node [RECIPE]")
    if not (options.run / "metrics.jsonl").is_file():
        raise ConfigError(f"{str(options.run)!r} is no run directory: it has no metrics.jsonl; give one")
    try:
        return doctor_command.examine(options.run, as_json=options.json)
    except (MetricsFileError, ManifestError, RecordError) as error:
        raise ConfigError(str(error)) from None
