"""Long texts and contents of a message, which travel beside its JSON. Pure functions.

    text, bytes --Cut--> pieces of at most a MiB --> a hash in Redis --> pieces --Joined--> text, bytes

JSON of 64 MiB is read and written by one call, which takes a tenth of a second of the interpreter's lock. Of
a long message only what is short stays in the JSON: in the place of the rest stand the numbers of its first
piece and of the one behind its last. To cut and to join is work for a thread: each piece is short, and what
is done with all of them together lets go of the lock.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from rocstar.sandbox._native import decode_text

PIECE_BYTES = 1 << 20
PIECE_CHARS = PIECE_BYTES // 4
"""No character of a text takes more bytes than four."""

LONG = 1 << 12
"""From so many characters or bytes on they are taken out of a long message."""

MAX_MESSAGE_BYTES = 256 << 20
"""Of all pieces of a message."""

Place = list[int]


class Cut:
    """The pieces of one message, in order. Of a message that is not `apart` there are none."""

    def __init__(self, *, apart: bool = False) -> None:
        self._apart = apart
        self.pieces: list[bytes] = []

    def text(self, text: str) -> str | Place:
        """What stands for it in the JSON."""
        if not self._apart or len(text) < LONG:
            return text
        return self._place(
            text[start : start + PIECE_CHARS].encode("utf-8", "surrogatepass")
            for start in range(0, len(text), PIECE_CHARS)
        )

    def content(self, content: bytes) -> str | Place:
        """The same, of bytes."""
        if not self._apart or len(content) < LONG:
            return b64encode(content).decode()
        return self._place(
            content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)
        )

    def _place(self, pieces: Iterator[bytes]) -> Place:
        first = len(self.pieces)
        self.pieces.extend(pieces)
        return [first, len(self.pieces)]


class Joined:
    """The inverse. Raises TypeError or ValueError for what `Cut` does not give."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def text(self, given: Any) -> str:
        if isinstance(given, str):
            return given
        return decode_text(self._joined(given))

    def content(self, given: Any) -> bytes:
        if isinstance(given, str):
            return b64decode(given, validate=True)
        return self._joined(given)

    def _joined(self, place: Any) -> bytes:
        first, end = map(int, place)
        if not 0 <= first < end <= len(self._pieces):
            raise ValueError(f"there are no pieces {first} to {end}")
        return self._pieces[first] if end == first + 1 else b"".join(self._pieces[first:end])


def sizes_of(given: Any) -> list[int]:
    """The sizes of a message's pieces, as it says itself. Raises TypeError or ValueError."""
    if not isinstance(given, list) or not all(
        type(size) is int and 0 < size <= PIECE_BYTES for size in given
    ):
        raise ValueError("sizes of pieces that no message has")
    if sum(given) > MAX_MESSAGE_BYTES:
        raise ValueError(f"pieces of {sum(given)} bytes")
    return given


def grouped(sizes: Sequence[int]) -> Iterator[range]:
    """The numbers of pieces that go together in one command."""
    first = total = 0
    for number, size in enumerate(sizes):
        if number > first and total + size > PIECE_BYTES:
            yield range(first, number)
            first, total = number, 0
        total += size
    if first < len(sizes):
        yield range(first, len(sizes))
