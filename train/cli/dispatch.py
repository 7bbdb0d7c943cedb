"""Parse the command line, run one verb, and turn an error of the user into one message and exit code 2.

Exit codes: see record/ending.py.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from rocstar.sandbox.command_line import USAGE_ERROR, CommandParser, parse_or_exit
from rocstar.sandbox.extras import missing_extra_message, shell_command
from rocstar.train.cli.training import interrupted, refuse_unknown
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
    if arguments[0] in ("-V", "--version"):
        from rocstar.train.record.manifest import commit, version_of

        found, version = commit(), version_of("rocstar") or "unknown"  # runs git, and so not with each parser
        print(f"rocstar {version}" + (f" (commit {found})" if found else ""))
        return 0
    if arguments[0] in OWN_PARSERS:
        return guarded(lambda: _run_own(*arguments))
    if arguments[0] in {verb.name for verb in VERBS if verb.fields == "always"}:
        arguments = _joined(arguments)
    options, rest = parse_or_exit(lambda: build_parser().parse_known_args(arguments))
    verb: Verb | None = getattr(options, "verb", None)

    def work() -> int:
        if verb is None:  # `rocstar --option sandbox`
            raise ConfigError(f"option {arguments[0]!r} is not known; the verb comes first")
        if verb.fields != "checked by run":
            refuse_unknown(options.parser, rest, takes_fields=verb.fields == "always")
        if verb.extra and (message := missing_extra_message(f"rocstar {verb.name}", verb.extra)):
            raise ConfigError(message)
        return verb.run(options) if verb.fields == "never" else verb.run(options, rest)

    if verb is None or verb.name not in ("train", "sft") or options.dry_run:
        return guarded(work)
    return guarded(work, resumes=not options.only_sft, interrupted=lambda: interrupted(options, rest))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every verb but those of OWN_PARSERS, of which it has only the help."""
    parser = CommandParser(
        prog="rocstar",
        description=GREETING.format(rocstar=shell_command()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print version and commit")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    for name, (text, _, _) in OWN_PARSERS.items():
        verbs.add_parser(name, help=text, add_help=False)
    return parser


def _run_own(name: str, *arguments: str) -> int:
    """Run a verb of OWN_PARSERS."""
    _, extra, module = OWN_PARSERS[name]
    message = missing_extra_message(f"rocstar {name}", extra) if extra else ""
    if message and not {"-h", "--help"} & set(arguments):
        raise ConfigError(message)
    return int(importlib.import_module(module).main(list(arguments)))


OWN_PARSERS: dict[str, tuple[str, str, str]] = {
    "import-gguf": ("convert a GGUF file to a Hugging Face folder", "gguf", "rocstar.train.learner.import_gguf"),
    "sandbox": ("run|serve|worker|mcp|doctor|bench: the sandbox", "", "rocstar.sandbox.cli"),
    "sim": ("simulate scheduling policies, without GPUs", "sim", "rocstar.engine.sim.cli"),
}
"""Help, extra and module of each verb that parses its own arguments."""


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
