"""What the verbs share: how a verb is added, a recipe given and loaded, a number read."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.explain import NEAR
from rocstar.train.recipe.load import load_recipe, shipped_recipes

FIELDS = "fields are set with --section.field=value or --section.field value, switches with true or false"
RECIPE_HELP = f"a TOML file, or one of {', '.join(shipped_recipes())}; {FIELDS}"


def new_verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    # Abbreviations would let a mistyped recipe field pass for an option.
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, allow_abbrev=False)
    parser.set_defaults(known=lambda: re.findall(r"--([a-z][a-z-]*)", parser.format_usage()))
    return parser


def recipe_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help=RECIPE_HELP)


def refuse_misspelt(options: argparse.Namespace, rest: list[str]) -> None:
    """Raises ConfigError for what was left over of a verb's options and is nearly one of them."""
    for option in rest:
        name = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or "." in name or name in Recipe.model_fields:
            continue
        if near := difflib.get_close_matches(name, options.known(), n=1, cutoff=NEAR):
            raise ConfigError(f"option {option!r} is not known; did you mean --{near[0]}?")


def nothing_more(rest: list[str], hint: str) -> None:
    """Raises ConfigError where there is an option that the verb does not know; `hint` says what it takes."""
    if rest:
        raise ConfigError(f"option {rest[0]!r} is not known; {hint}")


def check_fields(rest: list[str]) -> None:
    for option in rest:
        field, given, _ = option.removeprefix("--").partition("=")
        is_section = bool(given) and field in Recipe.model_fields
        if not option.startswith("--") or ("." not in field and not is_section):
            raise ConfigError(
                f"option {option!r} is not known; recipe fields are set with --section.field=value"
            )


def load(options: argparse.Namespace, rest: list[str]) -> Recipe:
    check_fields(rest)
    return load_recipe(options.recipe, rest)


def directory_of(options: argparse.Namespace, recipe: Recipe) -> Path:
    """ConfigError: `--output-dir "$EMPTY"`, which must not become somebody's default folder."""
    if options.output_dir == "":
        raise ConfigError("--output-dir is empty; name a folder, or leave it out for runs/NAME")
    return Path(options.output_dir or f"runs/{recipe.run.name}")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Show the import of torch, which takes seconds, on a busy machine a minute; of one rank is enough."""
    from rocstar.engine.progress.progress import working
    from rocstar.engine.progress.status import StatusLine

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with StatusLine(), working("importing torch"):
        yield


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tasks, 0 or more")
    return int(text)


def positive(text: str) -> int:
    if not count(text):
        raise argparse.ArgumentTypeError("0 tasks give no trajectory; take 1 or more")
    return int(text)


def any_step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step, 0 or more")
    return int(text)


def step_number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a step, 1 or more")
    return int(text)
