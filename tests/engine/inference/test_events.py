"""Server-sent events: the same, however the bytes were cut; and how long may pass between them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.events import EventLines, read_events
from tests.fakes.scripted_policy import run_virtual

LINE = st.sampled_from([b"", b" ", b"{}", b"a: b", "é🙂".encode(), b'{"choices": [1, 2]}', b"data: x"])
PAYLOADS = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=4)
END = st.sampled_from([b"\n", b"\r\n", b"\r"])
EXTRA = st.sampled_from([b"", b": ping", b"event: said", b"id: 7", b"datum: no"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Bytes of events, with comments and other fields between the lines of data; and their payloads."""
    out, told = b"", []
    for lines in draw(PAYLOADS):
        for line in lines:
            extra = draw(EXTRA)
            out += (extra + draw(END) if extra else b"") + b"data:" + b" " + line + draw(END)
        out += draw(END) + (b": ping" + draw(END) + draw(END) if draw(st.booleans()) else b"")
        told.append(b"\n".join(lines))
    return out, told


@given(streams(), st.data())
def test_payloads_do_not_depend_on_the_cuts(stream: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    out, told = stream
    # A lone return, then the line feed of the next piece, is one end of a line: so it is in one piece.
    whole = EventLines().feed(out)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(out)), max_size=8)))
    lines = EventLines()
    pieces = [out[a:b] for a, b in zip([0, *cuts], [*cuts, len(out)], strict=True)]
    assert [one for piece in pieces for one in lines.feed(piece)] == whole
    lines = EventLines()
    assert [one for k in range(len(out)) for one in lines.feed(out[k : k + 1])] == whole
    if b"\r" not in out:
        assert whole == told


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_end_of_a_line_is_one(end: bytes) -> None:
    out = b": hello" + end + b"data: a" + end + b"data:b" + end + end + b"data" + end + end + b"data: c"
    assert EventLines().feed(out) == [b"a\nb", b""]


def test_an_event_that_never_ends_is_refused() -> None:
    lines = EventLines(max_bytes=20)
    for _ in range(10):
        assert lines.feed(b"data: 1234\n\n") == [b"1234"]
    lines.feed(b"data: 1234\n")
    with pytest.raises(ValueError, match="more than 20 bytes"):
        lines.feed(b"data: 1234\n")


class Body:
    """What a response reads: (seconds until it comes, bytes)."""

    def __init__(self, pieces: list[tuple[float, bytes]]) -> None:
        self._pieces = pieces

    async def readany(self) -> bytes:
        if not self._pieces:
            return b""
        wait_s, data = self._pieces[0]
        self._pieces[0] = (0.0, data)
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self._pieces[0] = (1e9, data)
            raise
        return self._pieces.pop(0)[1]


def read(pieces: list[tuple[float, bytes]], **options: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        response: Any = SimpleNamespace(content=Body(pieces), url="http://there")
        found: list[bytes] = []
        try:
            async for payload in read_events(response, gap_s=60.0, **options):
                found.append(payload)
        except InferenceError as error:
            found.append(error.kind.encode())
        return found

    return run_virtual(main())


EVENT, END_OF_ALL = b"data: x\n\n", b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([(900.0, EVENT), (59.0, EVENT), (1.0, END_OF_ALL)], [b"x", b"x"]),
        ([(1.0, EVENT), (61.0, EVENT)], [b"x", b"replica_hung"]),
        ([(1.0, EVENT), (50.0, b": ping\n\n"), (50.0, EVENT + END_OF_ALL)], [b"x", b"x"]),
        ([(1.0, EVENT)], [b"x", b"replica_lost"]),
        ([], [b"replica_lost"]),
        ([(1.0, END_OF_ALL + EVENT)], []),
    ],
)
def test_a_stream_may_pause_for_so_long(pieces: list[tuple[float, bytes]], found: list[bytes]) -> None:
    """The first event may take what its caller gives it; a comment is a sign of life."""
    assert read(pieces) == found


def test_who_is_excused_may_pause_longer() -> None:
    excuses = iter([True, True, False])
    pieces = [(1.0, EVENT), (1e9, EVENT)]
    assert read(pieces, excused=lambda: next(excuses)) == [b"x", b"replica_hung"]
    assert list(excuses) == []
