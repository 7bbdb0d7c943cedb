"""Which verb, what of rocstar it needs, and what becomes of a mistake: one message and exit code 2.

Exit codes: see record/ending.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rocstar.sandbox.console import parsed
from rocstar.sandbox.extras import lacking
from rocstar.train.cli import (
    analyse,
    chat,
    compare,
    data,
    doctor,
    eval,  # noqa: A004
    export,
    grade,
    recipe,
    records,
    replay,
    report,
    rollout,
    serve,
    train,
    view,
)
from rocstar.train.cli.arguments import refuse_misspelt
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.ending import guarded

Verb = Callable[[argparse.Namespace, list[str]], int]
ADDERS = (
    train.add, train.add_sft, eval.add, rollout.add, serve.add, chat.add, report.add, view.add, compare.add,
    replay.add, analyse.add, records.add, doctor.add, export.add, data.add, grade.add, recipe.add,
)  # fmt: skip
"""Adds each verb to the parser, in the order of help."""
WITH_RECIPE = ("train", "sft", "eval", "rollout", "serve", "chat")
EXTRAS = {
    **dict.fromkeys((*WITH_RECIPE[:-1], "replay", "analyse", "compare", "grade"), "train"),
    **dict.fromkeys(("sim", "report", "records"), "sim"),
    **dict.fromkeys(("doctor", "export"), "train"),
    "view": "view",
    "import-gguf": "gguf",
}
"""The extra of each verb that needs one. `sandbox` needs only what rocstar itself brings, and so do help,
versions and checks of a recipe's fields; `chat` tells its own, which depend on whom one talks with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sandbox"]:
        from rocstar.sandbox.cli import main as sandbox_main

        return sandbox_main(arguments[1:])
    if arguments[:1] == ["sim"]:
        return guarded(lambda: _simulate(arguments[1:]))
    if arguments[:1] == ["import-gguf"]:
        return guarded(lambda: _import_gguf(arguments[1:]))
    if arguments[:1] in [[verb] for verb in WITH_RECIPE]:
        arguments = _joined(arguments)
    options, rest = parsed(lambda: _parser().parse_known_args(arguments))
    verb: Verb | None = getattr(options, "verb", None)
    if verb is None:  # `rocstar --option sandbox`: the verb comes first
        return guarded(lambda: _fail(f"option {arguments[0]!r} is not known; the verb comes first"))
    runs = verb is train.run and not options.dry_run

    def work() -> int:
        refuse_misspelt(options, rest)
        return _with_extra(arguments[0], lambda: verb(options, rest))

    return guarded(
        work,
        resumes=runs and not options.only_sft,
        interrupted=lambda: train.interrupted(options, rest, arguments) if runs else "interrupted",
    )


def _with_extra(verb: str, work: Callable[[], int]) -> int:
    """Do the work of a verb. Raises ConfigError first where the part of rocstar that it needs is missing."""
    if verb in EXTRAS and (missing := lacking(f"rocstar {verb}", EXTRAS[verb])):
        raise ConfigError(missing)
    return work()


def _simulate(arguments: list[str]) -> int:
    def work() -> int:
        from rocstar.engine.sim.cli import main as sim_main

        return sim_main(arguments)

    return _with_extra("sim", work)


def _import_gguf(arguments: list[str]) -> int:
    from rocstar.train.learner.import_gguf import main as import_main

    if {"-h", "--help"} & set(arguments):
        return import_main(arguments)
    return _with_extra("import-gguf", lambda: import_main(arguments))


def _joined(arguments: list[str]) -> list[str]:
    """`--rl.lr 1e-3` as `--rl.lr=1e-3`: a recipe field always takes a value, a switch too (`... true`)."""
    joined: list[str] = []
    for argument in arguments:
        last = joined[-1] if joined else ""
        if last.startswith("--") and "." in last and "=" not in last and not argument.startswith("--"):
            joined[-1] = f"{last}={argument}"
        else:
            joined.append(argument)
    return joined


def _fail(message: str) -> int:
    raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocstar",
        description="Train language models to solve problems with Python.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and commit")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for add in ADDERS:
        add(verbs)
    elsewhere = {
        "import-gguf": "turn a GGUF file into a Hugging Face directory",
        "sandbox": "run|serve|worker|mcp|doctor|bench: the tool environment alone",
        "sim": "replay a step through scheduling policies, without GPUs",
    }
    for name, text in elsewhere.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


class _Version(argparse.Action):
    """Asks for the version only when it is wanted: git is a process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from rocstar.train.record.version import describe

        print(describe())
        parser.exit()
