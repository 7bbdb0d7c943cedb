"""Answers as JSON, however long.

    few characters   to_json, at once
    more             a thread: field by field, and each text of some size a piece at a time

The encoder keeps the interpreter's lock for as long as a call of it takes, a tenth of a second for an answer
of 64 MiB; between the pieces others have their turns.
"""

import asyncio
import sys
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from msgspec import UNSET, Struct

from rocstar.sandbox.service.http import to_json
from rocstar.sandbox.types import ExecResult

LONG_CHARS = 1 << 18
PIECE_CHARS = 1 << 16
WIDE_CHARS = 1 << 12
"""From so many on it is looked at how wide they are."""


async def written(value: Any, num_chars: int) -> bytes:
    """JSON of an answer, whose texts have about so many characters."""
    if num_chars < LONG_CHARS:
        return to_json(value)
    return await asyncio.to_thread(in_pieces, value)


def chars_of(result: ExecResult) -> int:
    """Those of its texts, as many bytes as they take here: four of each if one is beyond the first plane."""
    value = result.value
    size = len(result.stdout) + len(result.stderr) + (0 if value is None else len(value))
    if size < WIDE_CHARS:
        return size
    return sum(map(_bytes_of, (result.stdout, result.stderr, value or "")))


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else sys.getsizeof(text)


def size_of(result: ExecResult) -> int:
    """Of its texts, files and displays."""
    if result.files or result.displays:
        return chars_of(result) + bytes_of(result)
    return chars_of(result)


def bytes_of(result: ExecResult) -> int:
    """Those of its files and displays."""
    return sum(map(len, result.files.values())) + sum(len(one.data) for one in result.displays)


def in_pieces(value: Any) -> bytes:
    """The same as `to_json`, by many calls that are short each."""
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if type(value) is str and len(value) >= PIECE_CHARS:
        yield b'"'
        for start in range(0, len(value), PIECE_CHARS):
            yield to_json(value[start : start + PIECE_CHARS])[1:-1]
        yield b'"'
    elif type(value) is bytes and len(value) >= PIECE_CHARS:
        yield b'"'
        step = PIECE_CHARS // 3 * 3  # so that base64 is padded at its end alone
        for start in range(0, len(value), step):
            yield b2a_base64(value[start : start + step], newline=False)
        yield b'"'
    elif isinstance(value, list | tuple):
        yield from _joined(b"[", map(_pieces, value), b"]")
    elif (items := _items(value)) is not None:
        yield from _joined(b"{", (_named(name, item) for name, item in items if item is not UNSET), b"}")
    else:
        yield to_json(value)


def _items(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Of what is an object in JSON."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, Struct) and not value.__struct_config__.omit_defaults:
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return ((item.name, getattr(value, item.name)) for item in fields(value))
    return None


def _named(name: str, value: Any) -> Iterator[bytes]:
    yield to_json(name) + b":"
    yield from _pieces(value)


def _joined(begin: bytes, parts: Iterable[Iterator[bytes]], end: bytes) -> Iterator[bytes]:
    yield begin
    for place, part in enumerate(parts):
        if place:
            yield b","
        yield from part
    yield end
