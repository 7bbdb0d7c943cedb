"""Answers to the page as bytes."""

from __future__ import annotations

from typing import Any

import msgspec


def encoded(answer: Any) -> bytes:
    """The answer as JSON; half a surrogate pair, which no UTF-8 can carry, becomes its escape."""
    return msgspec.json.encode(_plain(answer))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return value if value and isinstance(value[0], int | float) else [_plain(inner) for inner in value]
    return value
