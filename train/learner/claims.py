"""What the header of a model file claims, compared with what it can be, before anything is built from it.

A model folder may be a stranger's: a configuration of 10^9 layers would be built layer by layer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError

MAX_LAYERS, MAX_EXPERTS = 4096, 8192
UNUSABLE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, NotImplementedError, OSError),
    *(RecursionError, RuntimeError, TypeError, ValueError, struct.error),
)
"""What transformers and torch raise for a model folder or a GGUF file that is damaged or hostile."""
_GGUF_HEAD = struct.Struct("<4sIQQ")
_LEAST_TENSOR_BYTES, _LEAST_KEY_BYTES = 24, 13


def check_folder(folder: Path) -> None:
    """ConfigError for a config.json whose numbers no model has. A folder may have none."""
    path = folder / "config.json"
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{str(path)!r} is no JSON object")
    _check(config, path)


def _check(config: Mapping[str, Any], path: Path) -> None:
    for name, value in config.items():
        if isinstance(value, dict):
            _check(value, path)
            continue
        most = MAX_LAYERS if name.endswith("layers") else MAX_EXPERTS if "experts" in name else None
        if most is not None and isinstance(value, int | float) and not 0 <= value <= most:
            raise ConfigError(f"{str(path)!r}: {name} = {value!r:.40}; a model has 0 to {most}")


def check_gguf(path: Path) -> None:
    """ConfigError for a GGUF file whose header claims more than the file can hold."""
    try:
        with path.open("rb") as file:
            head = file.read(_GGUF_HEAD.size)
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if len(head) < _GGUF_HEAD.size or not head.startswith(b"GGUF"):
        raise ConfigError(f"{str(path)!r} is no GGUF file: it does not begin with a header of one")
    _, _, tensors, keys = _GGUF_HEAD.unpack(head)
    if tensors * _LEAST_TENSOR_BYTES + keys * _LEAST_KEY_BYTES > size - len(head):
        raise ConfigError(
            f"{str(path)!r}: its header claims {tensors} tensors and {keys} keys, more than {size} bytes hold"
        )


def first_line(error: BaseException) -> str:
    """What an error says first, or its name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
