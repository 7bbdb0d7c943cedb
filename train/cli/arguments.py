"""Arguments that several verbs share: recipe and its fields, output directory, numbers."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rocstar.sandbox.command_line import closest, number_option
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.explain import find_meant
from rocstar.train.recipe.load import shipped_recipes

FIELDS = "fields are set with --section.field=value or --section.field value, switches with true or false"
RECIPE_HELP = f"a TOML file, or one of {', '.join(shipped_recipes())}; {FIELDS}"
TARGET_HELP = f"a run directory (its last checkpoint), a checkpoint or model folder, or {RECIPE_HELP}"


def refuse_unknown(parser: argparse.ArgumentParser, rest: list[str], *, takes_fields: bool) -> None:
    """Raise ConfigError for an argument that is no recipe field, or whose name is close to an option's."""
    names = re.findall(r"--([a-z][a-z-]*)", parser.format_usage()) if rest else []
    for option in rest:
        name, given, _ = option.removeprefix("--").partition("=")
        is_option = option.startswith("--")
        if is_option and takes_fields and ("." in name or (given and name in Recipe.model_fields)):
            continue
        near = closest(name, names) if is_option else ""
        fix = f"did you mean --{near}?" if near else f"see `{parser.prog} --help`"
        if takes_fields and not near:
            meant = find_meant(name) if is_option else ""
            fix = meant or "recipe fields are set with --section.field=value"
        raise ConfigError(f"option {option!r} is not known; {fix}")


def directory_of(options: argparse.Namespace, recipe: Recipe) -> Path:
    """Return the run directory. Raise ConfigError for `--output-dir "$UNSET"`, never take the default."""
    if options.output_dir == "":
        raise ConfigError("--output-dir is empty; name a folder, or leave it out for runs/NAME")
    return Path(options.output_dir or f"runs/{recipe.run.name}")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Show on rank 0 that torch is being imported: it takes seconds, on a busy machine a minute."""
    from rocstar.engine.progress.progress import working
    from rocstar.engine.progress.status import StatusLine

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with StatusLine(), working("importing torch"):
        yield


def number(what: str, least: int) -> Callable[[str], Any]:
    """Return the type of an option whose value is a whole number from `least` on."""
    return number_option(least, math.inf, f"{what}, {least} or more")
