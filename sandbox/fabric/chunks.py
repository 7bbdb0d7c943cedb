"""Long texts and contents of a message as chunks beside its JSON. Pure functions.

    text, bytes --ChunkSplitter--> chunks of at most a MiB --> a hash in Redis --ChunkJoiner--> text, bytes

Parsing or writing 64 MiB of JSON holds the interpreter lock for 0.1 s. In a long message the JSON therefore
has only short values; a long value is replaced by the numbers of its first chunk and of the one after its
last. Splitting and joining run in a thread: each chunk is short, and joining releases the lock.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from rocstar.sandbox._native import decode_text

CHUNK_BYTES = 1 << 20
CHUNK_CHARS = CHUNK_BYTES // 4
"""A character has at most four bytes."""

LONG = 1 << 12
"""The characters or bytes from which a value of a long message becomes chunks."""

MAX_MESSAGE_BYTES = 256 << 20
"""The maximum of all chunks of a message together."""

ChunkRange = list[int]


@dataclass(eq=False)
class ChunkSplitter:
    """The chunks of one message, in order. Without `apart` no value becomes chunks."""

    _: KW_ONLY
    apart: bool = False
    chunks: list[bytes] = field(default_factory=list)

    def text(self, text: str) -> str | ChunkRange:
        """Return the JSON value of a text: itself, or the range of its chunks."""
        if not self.apart or len(text) < LONG:
            return text
        return self._add(
            text[start : start + CHUNK_CHARS].encode("utf-8", "surrogatepass")
            for start in range(0, len(text), CHUNK_CHARS)
        )

    def content(self, content: bytes) -> str | ChunkRange:
        """Return the JSON value of bytes: base64, or the range of its chunks."""
        if not self.apart or len(content) < LONG:
            return b64encode(content).decode()
        return self._add(content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES))

    def _add(self, chunks: Iterator[bytes]) -> ChunkRange:
        first = len(self.chunks)
        self.chunks.extend(chunks)
        return [first, len(self.chunks)]


@dataclass(eq=False)
class ChunkJoiner:
    """The inverse of `ChunkSplitter`. Methods raise TypeError or ValueError for values that it cannot
    produce."""

    chunks: Sequence[bytes]

    def text(self, given: Any) -> str:
        if isinstance(given, str):
            return given
        return decode_text(self._joined(given))

    def content(self, given: Any) -> bytes:
        if isinstance(given, str):
            return b64decode(given, validate=True)
        return self._joined(given)

    def _joined(self, chunk_range: Any) -> bytes:
        first, end = map(int, chunk_range)
        if not 0 <= first < end <= len(self.chunks):
            raise ValueError(f"there are no chunks {first} to {end}")
        return self.chunks[first] if end == first + 1 else b"".join(self.chunks[first:end])


def sizes_of(given: Any) -> list[int]:
    """Return the chunk sizes that a message states. Raise TypeError or ValueError for impossible ones."""
    if not isinstance(given, list) or not all(type(size) is int and 0 < size <= CHUNK_BYTES for size in given):
        raise ValueError(f"chunk sizes are not a list of 1 to {CHUNK_BYTES}")
    if sum(given) > MAX_MESSAGE_BYTES:
        raise ValueError(f"the chunks have {sum(given)} bytes, more than {MAX_MESSAGE_BYTES}")
    return given


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
