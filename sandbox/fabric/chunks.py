"""The values of a message: texts and contents as MessagePack, the long ones as chunks beside it. Pure functions.

    text, bytes --ChunkSplitter--> chunks of at most a MiB --> a hash in Redis --ChunkJoiner--> text, bytes

Parsing or writing a message of 64 MiB holds the interpreter lock. A long message therefore has only short
values; a long value is replaced by the numbers of its first chunk and of the one after its last. Splitting and
joining run in a thread: each chunk is short, and joining releases the lock. MessagePack's texts are UTF-8; a
text with a lone surrogate is an extension.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from typing import Any

from msgspec.msgpack import Ext

from rocstar.sandbox._native import decode_text

CHUNK_BYTES = 1 << 20
CHUNK_CHARS = CHUNK_BYTES // 4
"""A character has at most four bytes."""

LONG = 1 << 12
"""The characters or bytes from which a value of a long message becomes chunks."""

MAX_MESSAGE_BYTES = 256 << 20
"""The maximum of all chunks of a message together."""

ODD_TEXT, LONG_TEXT, LONG_CONTENT = 1, 2, 3
"""The extensions: a text that is no UTF-8, and the chunks of a text or a content."""

_RANGE = struct.Struct("<II")


@dataclass(eq=False)
class ChunkSplitter:
    """The chunks of one message, in order. Without `apart` no value becomes chunks."""

    _: KW_ONLY
    apart: bool = False
    chunks: list[bytes] = field(default_factory=list)

    def pack(self, value: Any) -> Any:
        """Return what MessagePack has for a value. Fields of a dataclass that have their default are left
        out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.content(value)
        if isinstance(value, Mapping):
            return {self.pack(name): self.pack(one) for name, one in value.items()}
        if isinstance(value, Sequence):
            return [self.pack(one) for one in value]
        if is_dataclass(value):
            values = [(one.name, getattr(value, one.name), one.default) for one in fields(value)]
            return {name: self.pack(given) for name, given, default in values if given != default}
        return value

    def text(self, text: str) -> str | Ext:
        if self.apart and len(text) >= LONG:
            pieces = (text[start : start + CHUNK_CHARS] for start in range(0, len(text), CHUNK_CHARS))
            return self._add(LONG_TEXT, (piece.encode("utf-8", "surrogatepass") for piece in pieces))
        try:
            text.encode()
        except UnicodeEncodeError:
            return Ext(ODD_TEXT, text.encode("utf-8", "surrogatepass"))
        return text

    def content(self, content: bytes) -> bytes | Ext:
        if not self.apart or len(content) < LONG:
            return content
        starts = range(0, len(content), CHUNK_BYTES)
        return self._add(LONG_CONTENT, (content[start : start + CHUNK_BYTES] for start in starts))

    def _add(self, kind: int, chunks: Iterator[bytes]) -> Ext:
        first = len(self.chunks)
        self.chunks.extend(chunks)
        return Ext(kind, _RANGE.pack(first, len(self.chunks)))


@dataclass(eq=False)
class ChunkJoiner:
    """The inverse of `ChunkSplitter`."""

    chunks: Sequence[bytes]

    def unpack(self, kind: int, data: memoryview) -> str | bytes:
        """Return the value of an extension. Raise ValueError or struct.error for one that the splitter cannot
        produce."""
        if kind == ODD_TEXT:
            return decode_text(data)
        first, end = _RANGE.unpack(data)
        if kind not in (LONG_TEXT, LONG_CONTENT) or not first < end <= len(self.chunks):
            raise ValueError(f"there are no chunks {first} to {end}")
        joined = self.chunks[first] if end == first + 1 else b"".join(self.chunks[first:end])
        return decode_text(joined) if kind == LONG_TEXT else joined


def grouped(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the chunk numbers of each command."""
    first = total = 0
    for number, size in enumerate(sizes):
        if number > first and total + size > CHUNK_BYTES:
            yield range(first, number)
            first, total = number, 0
        total += size
    if first < len(sizes):
        yield range(first, len(sizes))
