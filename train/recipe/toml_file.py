"""A TOML file as editors leave it: UTF-8, with or without a byte order mark."""

from __future__ import annotations

import codecs
import tomllib
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError


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
            f"{what} is no UTF-8: line {line} has the byte 0x{byte:02x}; save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}; mend it there") from None
