"""Tasks named once, [tasks.NAME], and referred to by name.

    data = "NAME"                            all fields of [tasks.NAME]
    data = { tasks = "NAME", limit = 64 }    those of [tasks.NAME], but this limit

After loading every reference is replaced by its table: the recipe of a run shows the used data, and a change
of a named table is a change of all fields that use it.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.errors import ConfigError

Place = tuple[str, ...]
KEY = "tasks"


def task_places(raw: Mapping[str, Any]) -> Iterator[Place]:
    """Where a recipe may say which tasks it means, named tables aside."""
    yield ("sft", "demonstration_tasks")
    for section in ("environments", "eval", "stages"):
        tables = raw.get(section)
        yield from ((section, str(k), "data") for k in range(len(tables) if isinstance(tables, list) else 0))


def table_at(raw: Mapping[str, Any], place: Place) -> dict[str, Any] | None:
    """The table at `place`, if there is one."""
    node: Any = raw
    for part in place:
        if isinstance(node, list) and part.isdecimal():
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def expand_names(raw: Mapping[str, Any]) -> None:
    """Make tables of bare names, so that an option can change one field: `--eval.0.data.limit=2`."""
    for *parents, last in task_places(raw):
        table = table_at(raw, tuple(parents))
        if table is not None and isinstance(table.get(last), str):
            table[last] = {KEY: table[last]}


def resolve_names(raw: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The recipe with a table of its own at every place, and without the named ones.

    Raises:
        ConfigError: a name that the recipe does not have.
    """
    placed: dict[str, Any] = copy.deepcopy(dict(raw))
    named = placed.pop(KEY, {})
    expand_names(placed)
    for place in task_places(placed):
        table = table_at(placed, place)
        if table is None or KEY not in table:
            continue
        name = table.pop(KEY)
        if not isinstance(name, str) or name not in named:
            fix = suggest(str(name), named) if named else f"add [tasks.{name}], or pass a table with source"
            raise ConfigError(f"{where}: {'.'.join(place)} = {name!r} is not in [tasks]; {fix}")
        table |= copy.deepcopy({key: value for key, value in named[name].items() if key not in table})
    return placed
