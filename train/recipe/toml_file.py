"""TOML files: read as editors leave them, UTF-8 with or without a byte order mark; a recipe written."""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.train.recipe.errors import ConfigError

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
