"""Where a recipe's relative paths start: those in the file at the file's folder, those on the command line at
the current directory. All become absolute, so that the recipe written beside a run loads from anywhere.

A model's path may be a hub name, and a template's a bundled one: these are paths only where there is such a
thing on this machine.
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.named_tasks import Place, table_at, task_places

CODE_FIELDS: tuple[Place, ...] = (
    ("reward", "kind"), ("rl", "advantage"), ("rl", "loss"), ("rl", "fork"), ("engine", "kind"), ("agent", "kind")
)  # fmt: skip
"""Fields that may name code of the recipe's own (own_code.py), "module:name"; callbacks, tools and
environments do, too."""


def resolve_paths(raw: dict[str, Any], folder: Path, overrides: Sequence[str]) -> None:
    """Make the paths of a recipe's table absolute; invalid tables are left to validation."""
    given = [tuple(option.removeprefix("--").partition("=")[0].split(".")) for option in overrides]

    def start_of(place: Place) -> Path:
        return Path() if any(_begins(place, option) for option in given) else folder

    for place, node, key, is_path in _paths(raw):
        value, start = node.get(key), start_of(place)
        if isinstance(value, str) and not os.path.isabs(value) and is_path(value, start):
            node[key] = os.path.abspath(start / value)
    for place, holder, key in _code_fields(raw):
        holder[key] = code_at(holder[key], start_of(place))
    agent = raw.get("agent")
    if isinstance(agent, dict) and "command" in agent:
        agent["command"] = _command_at(agent["command"], start_of(("agent", "command")))


def _command_at(command: Any, folder: Path) -> Any:
    """Return the words of a command, those that name a file of the folder as its path; validation refuses others."""
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError:
            return command
    if not isinstance(command, list):
        return command
    is_file = [isinstance(word, str) and (folder / word).is_file() for word in command]
    return [os.path.abspath(folder / word) if found else word for word, found in zip(command, is_file, strict=True)]


def _code_fields(raw: Mapping[str, Any]) -> Iterator[tuple[Place, Any, Any]]:
    """Yield every text that may name code: its place, the table or list with it, and its key there."""
    for *parents, last in CODE_FIELDS:
        table = table_at(raw, tuple(parents))
        if table is not None and isinstance(table.get(last), str):
            yield (*parents, last), table, last
    for *parents, last in (("run", "callbacks"), ("tools",), ("environments",)):
        table = table_at(raw, tuple(parents))
        entries = table.get(last) if table is not None else None
        for k, entry in enumerate(entries if isinstance(entries, list) else ()):
            place = (*parents, last, str(k), "kind")
            if isinstance(entry, str):
                yield place, entries, k
            elif isinstance(entry, dict) and isinstance(entry.get("kind"), str):
                yield place, entry, "kind"


def named_code(raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Field and "module:Name" of all code that a recipe's table names; it runs when it is imported."""
    found = ((".".join(place), holder[key]) for place, holder, key in _code_fields(raw))
    return [(field, spec) for field, spec in found if is_reference(spec)]


def is_reference(value: str) -> bool:
    """Say whether a value has the form "module:Name"."""
    module, _, name = value.rpartition(":")
    return bool(module) and name.isidentifier()


def check_kind(what: str, known: tuple[str, ...], kind: str) -> str:
    """Return a kind that is known or has the form "module:Class"; ValueError for another."""
    if kind in known or is_reference(kind):
        return kind
    raise ValueError(f"{what} {kind!r} is not known; {suggest(kind, (*known, 'module:Class'))}")


def code_at(spec: str, folder: Path) -> str:
    """Return "module:Name" as "/folder/module.py:Name", unless the module is found on sys.path alone.

    A module that is nowhere gets the path as well: its error then says where it was searched.
    """
    module, _, name = spec.rpartition(":")
    file = folder / (module if module.endswith(".py") else f"{module}.py")
    is_file = bool(module) and (module.endswith(".py") or file.is_file())
    if not (is_file or not module or "." in module or module in sys.modules):
        is_file = importlib.util.find_spec(module) is None
    return f"{os.path.abspath(file)}:{name}" if is_file else spec


def missing_path_hint(path: Path) -> str:
    """Return a hint for a missing path that exists in the current directory."""
    parts = path.parts[1:] if path.is_absolute() else ()
    for k in range(len(parts)):
        tail = Path(*parts[k:])
        if os.path.exists(tail):
            return (
                f", but {str(tail)!r} does in the current directory: paths in a recipe start at the recipe's "
                "folder, paths on the command line at the current one"
            )
    return ""


def _paths(raw: dict[str, Any]) -> Iterator[tuple[Place, dict[str, Any], str, Callable[[str, Path], bool]]]:
    """Yield every field that may hold a path: its position, table, key, and the test for a path."""
    named, sets = raw.get("tasks"), raw.get("eval")
    sources = [*task_places(raw), *(("tasks", name) for name in (named if isinstance(named, dict) else ()))]
    fields: list[tuple[Place, Callable[[str, Path], bool]]] = [
        *(
            ((*source, "source"), lambda value, _: not value.startswith(("reasoning_gym", "seeds", "hub:")))
            for source in sources
        ),
        *(
            (("eval", str(k), "path"), lambda value, _: bool(value))
            for k in range(len(sets) if isinstance(sets, list) else 0)
        ),
        (("sft", "data"), lambda value, _: value != "demonstrations"),
        (("model", "path"), _is_model_path),
        (("model", "template"), _is_template_path),
        (("sft", "template"), _is_template_path),
    ]
    for place, is_path in fields:
        table = table_at(raw, place[:-1])
        if table is not None:
            yield place, table, place[-1], is_path


def _begins(place: Place, option: Place) -> bool:
    """Return True if an override of `option` sets the field at `place`; an index may be written 0 or 00."""

    def plain(parts: Place) -> list[str]:
        return [str(int(part)) if part.isdecimal() else part for part in parts]

    return plain(place)[: len(option)] == plain(option)


def _is_model_path(value: str, start: Path) -> bool:
    """A directory here or there; one that is only there is not taken, and its error says so."""
    if value == "scratch":
        return False
    return value.startswith(("./", "../")) or any(os.path.isdir(each) for each in (start / value, value))


def _is_template_path(value: str, start: Path) -> bool:
    from rocstar.engine.chat.boundaries import bundled_templates  # only here: not every `--help` reads templates

    if value in ("", "model") or value in bundled_templates():
        return False
    is_file = any(os.path.isfile(each) for each in (start / value, value))
    return is_file or "/" in value or value.endswith(".jinja")
