"""The other columns of a row, as a task's `meta`: JSON values, bounded.

- as it is: null, true, finite numbers, text, lists and objects of these; a tuple is a list
- as text: dates and times (ISO 8601), bytes (base64), and as `str` writes them durations, decimals, UUIDs,
  nan and the infinities, and the keys of objects
- refused by name: everything else (an image, say), and what is too large or too deep
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from rocstar.train.recipe.errors import ConfigError

MAX_META_BYTES = 256 << 10
"""The largest meta of a task, as JSON: every trajectory's record has it, and every order to another node."""

MAX_DEPTH = 32

MARKS_OF_REASONING_GYM = frozenset({"family", "entry"})
"""The scorer takes a task whose `meta` has both for one of reasoning-gym's."""

_AS_STR = (datetime.timedelta, decimal.Decimal, uuid.UUID)


def meta_of(row: Mapping[str, Any], *, without: frozenset[str], where: str) -> dict[str, Any]:
    """The columns of a row that are not in `without`. ConfigError for one that cannot be kept."""
    meta = {}
    for name, value in row.items():
        if name in without:
            continue
        try:
            meta[str(name)] = _as_json(value, MAX_DEPTH)
        except TypeError as error:
            raise ConfigError(
                f"{where}: column {name!r} holds {error}, which JSON has not; write the data without the "
                "column, or turn it into text"
            ) from None
    if meta.keys() >= MARKS_OF_REASONING_GYM:
        raise ConfigError(
            f"{where} has columns 'family' and 'entry', by which a task of reasoning-gym is known; rename one"
        )
    sizes = {name: len(json.dumps(value)) for name, value in meta.items()}
    if sum(sizes.values()) > MAX_META_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"{where}: the columns besides question and answer take {sum(sizes.values()):,} bytes as JSON, "
            f"{largest!r} alone {sizes[largest]:,}; at most {MAX_META_BYTES:,} go with a task: write the "
            "data without it"
        )
    return meta


def _as_json(value: Any, depth: int) -> Any:
    """TypeError says what JSON has not."""
    if not depth:
        raise TypeError(f"values more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item, depth - 1) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, _AS_STR):
        return str(value)
    raise TypeError(f"a {type(value).__name__}")
