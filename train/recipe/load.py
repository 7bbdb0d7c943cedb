"""A recipe from its file: read, overridden by options, paths and names resolved, checked. No torch."""

from __future__ import annotations

import codecs
import copy
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rocstar.sandbox.command_line import closest
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.describe import find_fields
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.explain import explain
from rocstar.train.recipe.named_tasks import Place, expand_names, resolve_names
from rocstar.train.recipe.paths import resolve_paths

if TYPE_CHECKING:
    from rocstar.train.recipe.config import Recipe


def read_toml(path: Path, *, what: str) -> dict[str, Any]:
    """The table of a file. `what` names it in messages, its path included.

    Raises:
        ConfigError: it is not UTF-8 or not TOML, with the line.
        OSError: it cannot be opened.
    """
    data = path.read_bytes()
    try:
        return tomllib.loads(data.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise ConfigError(
            f"{what} is not UTF-8: line {line} has the byte 0x{byte:02x}; save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}; correct that line") from None


def to_toml(recipe: Recipe) -> str:
    """The recipe with its defaults, as TOML that loads back to the same object."""
    import tomli_w  # only here: reading a recipe needs no writer

    return tomli_w.dumps(recipe.model_dump(exclude_none=True))


def flat_fields(table: Any) -> dict[str, Any]:
    """Return the values of a recipe's table by dotted name; a value of None has no name."""

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        tables = isinstance(node, list) and node and all(isinstance(item, dict) for item in node)
        if isinstance(node, dict) or tables:
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                yield from walk(value, f"{prefix}.{key}" if prefix else str(key))
        elif node is not None:
            yield prefix, node

    return dict(walk(table, ""))


RECIPES = Path(__file__).parents[1] / "recipes"


def load_recipe(path: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, others: str = "") -> Recipe:
    """Read, override, validate. Raises ConfigError with the value, the reason and the fix.

    `path`: a TOML file, a run's folder (its config.toml), the name of a shipped recipe, or the table of a
    recipe. `others`: further things that may be passed, for errors.

    Relative paths become absolute: those of the file start at its folder, those of overrides, of a table,
    and of a shipped recipe that is called by its name, at the current directory.
    """
    if isinstance(path, Mapping):
        return _finished(copy.deepcopy(dict(path)), overrides, folder=Path(), where="recipe")
    named = path = Path(path)
    shipped = RECIPES / f"{named.name.removesuffix('.toml')}.toml"
    if len(named.parts) == 1 and shipped.stem in shipped_recipes() and not named.is_file():
        path = shipped
    elif (named / "config.toml").is_file():
        named = path = named / "config.toml"
    try:
        raw = read_toml(path, what=f"recipe {str(path)!r}")
    except (FileNotFoundError, IsADirectoryError):
        problem = "is a folder without config.toml" if path.is_dir() else "does not exist"
        near = closest(named.name.removesuffix(".toml"), shipped_recipes())
        known = f"pass a TOML file, a run's folder{others}, or one of {', '.join(shipped_recipes())}"
        fix = f"did you mean {near!r}?" if near else known
        raise ConfigError(f"{'' if others else 'recipe '}{str(path)!r} {problem}; {fix}") from None
    except OSError as error:
        raise ConfigError(
            f"recipe {str(path)!r} cannot be read: {error.strerror}; give a file that this user can read"
        ) from None
    return _finished(raw, overrides, folder=path.parent if path == named else Path(), where=str(path))


def recipe_of_model(model: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a model's folder: of the run whose checkpoint it is, else one that says nothing else."""
    model, config = Path(os.path.abspath(model)), config_of_model(model)
    if config is not None:
        return load_recipe(config, [*overrides, f"--model.path={model}"])
    raw: dict[str, Any] = {"model": {"path": str(model)}}
    return _finished(raw, overrides, folder=Path(), where=str(model))


def config_of_model(model: str | Path) -> Path | None:
    """The recipe of the run whose checkpoint the folder is; None for another folder."""
    model = Path(os.path.abspath(model))
    config = model.parent.parent / "config.toml"
    return config if model.parent.name == "checkpoints" and config.is_file() else None


def _finished(raw: dict[str, Any], overrides: Sequence[str], *, folder: Path, where: str) -> Recipe:
    expand_names(raw)
    overrides = [apply_override(raw, option) for option in overrides]
    resolve_paths(raw, folder, overrides)
    return parse_recipe(raw, where=where, options=overrides)


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with rocstar."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def parse_recipe(raw: Mapping[str, Any], *, where: str, options: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a table. Raise ConfigErrors with all errors; those of a named table once.

    An error names the option that set its field, else the file, `where`.
    """
    try:
        Recipe.model_validate({"tasks": raw.get("tasks", {})})
        return Recipe.model_validate(resolve_names(raw, where=where))
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        for one in error.errors():
            origin, is_option = _origin(tuple(map(str, one["loc"])), where, options)
            found.setdefault(origin, []).append(explain(one, is_option=is_option))
        raise ConfigErrors([f"{origin}: {'; '.join(lines)}" for origin, lines in found.items()]) from None


def _origin(location: Place, where: str, options: Sequence[str]) -> tuple[str, bool]:
    """Return the option that set the field at `location`, and True; else the file with the options that set
    parts of it, and False."""
    places = {option: tuple(option.removeprefix("--").partition("=")[0].split(".")) for option in options}
    for option, place in reversed(places.items()):
        if location[: len(place)] == place:
            return option, True
    parts = [option for option, place in places.items() if place[: len(location)] == location]
    return " with ".join([where, " ".join(parts)] if parts else [where]), False


def apply_override(raw: dict[str, Any], option: str) -> str:
    """Set raw['a']['b'] to c for `--a.b=c`; c is read as a TOML value, or as a string if that fails.

    A number, a date, `nan` or `true` for a field of type text is the text as written. `--eval.1.set=NAME`
    after the last set adds one; if there is at most one set, `--eval.data.limit=2` is of that set.

    Returns the option with the number of its set.
    """
    body = option.removeprefix("--")
    key, sign, text = body.partition("=")
    if not sign or not key or not option.startswith("--"):
        raise ConfigError(f"option {option!r} is not of the form --section.field=value")
    node: Any = raw
    *parents, last = _place_in_set(raw, key.split("."), option)
    value = _read_value(text, ".".join((*parents, last)))
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, part, option)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise ConfigError(f"option {option!r}: {part!r} is below a value, not a section")
    if isinstance(node, list):
        node[_index(node, last, option)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"option {option!r}: {'.'.join(parents)!r} is a value, not a section")
    return f"--{'.'.join((*parents, last))}={text}"


def _place_in_set(raw: dict[str, Any], parts: list[str], option: str) -> list[str]:
    """Return the place of a field, with the number of its set; a missing set of [[eval]] is added."""
    if parts[0] != "eval" or len(parts) == 1:
        return parts
    sets = raw.setdefault("eval", [])
    if not isinstance(sets, list):
        return parts
    if not parts[1].isdecimal():
        if len(sets) > 1:
            raise ConfigError(
                f"option {option!r}: the recipe has {len(sets)} sets; say which, --eval.0.{'.'.join(parts[1:])}"
            )
        parts = ["eval", "0", *parts[1:]]
    if int(parts[1]) == len(sets):
        sets.append({})
    return parts


def _read_value(text: str, field: str) -> Any:
    try:
        table = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if len(table) > 1:  # a line break in the text can begin another key
        return text
    value = table["v"]
    return value if isinstance(value, str | list | dict) or not _is_text(field) else text


def _is_text(field: str) -> bool:
    try:
        _, found = find_fields(field)
    except ConfigError:  # validation names the unknown field
        return False
    return [one.type for one in found] == ["text"]


def _index(node: list[Any], part: str, option: str) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise ConfigError(f"option {option!r}: {part!r} is not one of the {len(node)} entries 0..{len(node) - 1}")
    return int(part)
