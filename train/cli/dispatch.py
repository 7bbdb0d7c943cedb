"""Parse the command line, run one verb, and turn an error of the user into one message and exit code 2.

Exit codes: see record/ending.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rocstar.sandbox.command_line import USAGE_ERROR, CommandParser, parse_or_exit
from rocstar.sandbox.extras import missing_extra_message
from rocstar.train.cli.arguments import check_fields, refuse_misspelt
from rocstar.train.cli.training import executable_name, interrupted
from rocstar.train.cli.verbs import VERBS, Verb
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.ending import guarded

GREETING = """\
Train language models to solve problems with Python. Begin with one of these:

  {rocstar} train quickstart        train a small model, in minutes and without a GPU
  {rocstar} view runs/quickstart    look at a run in the browser
  {rocstar} eval runs/quickstart    evaluate a run or a model
  {rocstar} chat runs/quickstart    talk with it
  {rocstar} recipe                  list the fields of a recipe"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(build_parser().format_help(), end="")
        return USAGE_ERROR
    if arguments[:1] and arguments[0] in OWN_PARSERS:
        return OWN_PARSERS[arguments[0]][1](arguments[1:])
    if arguments[:1] and arguments[0] in {verb.name for verb in VERBS if verb.fields == "always"}:
        arguments = _joined(arguments)
    options, rest = parse_or_exit(lambda: build_parser().parse_known_args(arguments))
    verb: Verb | None = getattr(options, "verb", None)

    def work() -> int:
        if verb is None:  # `rocstar --option sandbox`
            raise ConfigError(f"option {arguments[0]!r} is not known; the verb comes first")
        refuse_misspelt(options.parser, rest)
        if verb.extra and (message := missing_extra_message(f"rocstar {verb.name}", verb.extra)):
            raise ConfigError(message)
        if verb.fields == "always":
            check_fields(rest)
        elif verb.fields == "never" and rest:
            raise ConfigError(f"option {rest[0]!r} is not known; see `rocstar {verb.name} --help`")
        return verb.run(options) if verb.fields == "never" else verb.run(options, rest)

    if verb is None or verb.name not in ("train", "sft") or options.dry_run:
        return guarded(work)
    return guarded(
        work, resumes=not options.only_sft, interrupted=lambda: interrupted(options, rest, arguments)
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every verb but those of OWN_PARSERS, of which it has only the help."""
    parser = CommandParser(
        prog="rocstar",
        description=GREETING.format(rocstar=executable_name()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="print version and commit")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        # With abbreviations, a misspelt recipe field could be taken for an option.
        added = verbs.add_parser(verb.name, help=verb.help, allow_abbrev=False)
        verb.add_options(added)
        added.set_defaults(verb=verb, parser=added)
    for name, (text, _) in OWN_PARSERS.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


def _sandbox(arguments: list[str]) -> int:
    from rocstar.sandbox.cli import main as sandbox_main

    return sandbox_main(arguments)


def _simulate(arguments: list[str]) -> int:
    def work() -> int:
        if message := missing_extra_message("rocstar sim", "sim"):
            raise ConfigError(message)
        from rocstar.engine.sim.cli import main as sim_main
        from rocstar.train.reading.view.document import article_page

        return sim_main(arguments, article_page)

    return guarded(work)


def _import_gguf(arguments: list[str]) -> int:
    def work() -> int:
        from rocstar.train.learner.import_gguf import main as import_main

        if not {"-h", "--help"} & set(arguments) and (
            message := missing_extra_message("rocstar import-gguf", "gguf")
        ):
            raise ConfigError(message)
        return import_main(arguments)

    return guarded(work)


OWN_PARSERS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "import-gguf": ("convert a GGUF file to a Hugging Face folder", _import_gguf),
    "sandbox": ("run|serve|worker|mcp|doctor|bench: the sandbox", _sandbox),
    "sim": ("simulate scheduling policies, without GPUs", _simulate),
}
"""Help and work of each verb that parses its own arguments."""


def _joined(arguments: list[str]) -> list[str]:
    """Return `--rl.lr 1e-3` as `--rl.lr=1e-3`: a recipe field always takes a value, a switch too."""
    joined: list[str] = []
    for argument in arguments:
        last = joined[-1] if joined else ""
        if last.startswith("--") and "." in last and "=" not in last and not argument.startswith("--"):
            joined[-1] = f"{last}={argument}"
        else:
            joined.append(argument)
    return joined


class _Version(argparse.Action):
    """Print the version and exit. Runs git only when --version is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from rocstar.train.record.version import commit, version_of

        found = commit()
        version = version_of("rocstar") or "unknown"
        print(f"rocstar {version}" + (f" (commit {found})" if found else ""))
        parser.exit()
