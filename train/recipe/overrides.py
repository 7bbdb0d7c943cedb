"""`--a.b=c`: one value of a recipe, set on the command line.

`--eval.1.set=NAME` behind the last of a recipe's sets adds one, and where there is at most one set,
`--eval.data.limit=2` is that of `--eval.0.data.limit=2`.
"""

from __future__ import annotations

import tomllib
from typing import Any

from rocstar.train.recipe.describe import find_fields
from rocstar.train.recipe.errors import ConfigError


def apply_override(raw: dict[str, Any], option: str) -> str:
    """`--a.b=c` sets raw['a']['b'] to c, read as a TOML value, or as a string where that fails.

    A number, a date, `nan` or `true` for a field of type text is the text that was typed.

    Returns the option with the number of the set that it means.
    """
    body = option.removeprefix("--")
    key, sign, text = body.partition("=")
    if not sign or not key or not option.startswith("--"):
        raise ConfigError(f"option {option!r} is not of the form --section.field=value")
    node: Any = raw
    *parents, last = _of_a_set(raw, key.split("."), option)
    value = _read_value(text, ".".join((*parents, last)))
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, part, option)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise ConfigError(f"option {option!r}: {part!r} lies below a value, not a section")
    if isinstance(node, list):
        node[_index(node, last, option)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"option {option!r}: {'.'.join(parents)!r} is a value, not a section")
    return f"--{'.'.join((*parents, last))}={text}"


def _of_a_set(raw: dict[str, Any], parts: list[str], option: str) -> list[str]:
    """The place of a field of [[eval]], with the number of its set, which is there from now on."""
    if parts[0] != "eval" or len(parts) == 1:
        return parts
    sets = raw.setdefault("eval", [])
    if not isinstance(sets, list):
        return parts
    if not parts[1].isdecimal():
        if len(sets) > 1:
            raise ConfigError(
                f"option {option!r}: the recipe has {len(sets)} sets; say which, --eval.0."
                f"{'.'.join(parts[1:])}"
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
        raise ConfigError(
            f"option {option!r}: {part!r} is not one of the {len(node)} entries 0..{len(node) - 1}"
        )
    return int(part)
