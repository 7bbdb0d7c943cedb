"""Frames as Python writes and C++ reads them, and UTF-8 repair against Python's own."""

import itertools
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox import _native
from rocstar.sandbox.pool import wire
from rocstar.sandbox.types import MAX_TEXT_BYTES, ExecRequest, Limits, Status

RESULT_HEAD = struct.Struct("=QBBiIQQQIII")
STDOUT_TRUNCATED, STDERR_TRUNCATED, HAS_VALUE = 8, 16, 32

texts = st.text(max_size=30).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
u64 = st.integers(0, (1 << 64) - 1)


@st.composite
def results(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...]]:
    """A RESULT frame and what a reader must make of it."""
    call_id, peak = draw(u64), draw(u64)
    wall_us, cpu_us = draw(st.integers(0, 10**12)), draw(st.integers(0, 10**12))
    status, signaled, code = draw(st.integers(0, 6)), draw(st.booleans()), draw(st.integers(-(1 << 31), 255))
    flags = draw(st.integers(0, 63))
    out, err, value = draw(texts), draw(texts), draw(texts)
    has_value = bool(flags & HAS_VALUE)
    encoded = [text.encode() for text in (out, err, value)]
    lengths = [len(text) for text in encoded]
    head = RESULT_HEAD.pack(call_id, status, signaled, code, flags, wall_us, cpu_us, peak, *lengths)
    expected = (
        *(wire.RESULT, call_id, status, None if signaled else code, code if signaled else None, out, err),
        *(bool(flags & STDOUT_TRUNCATED), bool(flags & STDERR_TRUNCATED)),
        *(value if has_value else None, wall_us / 1e6, cpu_us / 1e6, peak),
    )
    return wire.frame(wire.RESULT, head + b"".join(encoded)), expected


@st.composite
def others(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...]]:
    kind = draw(st.integers(0, 255).filter(lambda kind: kind != wire.RESULT))
    payload = draw(st.binary(max_size=40))
    return wire.frame(kind, payload), (kind, payload)


@given(st.lists(results() | others(), max_size=6), st.integers(1, 60))
def test_frames_come_out_whole_whatever_the_pieces(frames: list[tuple[bytes, tuple[Any, ...]]], piece: int) -> None:
    stream = b"".join(data for data, _ in frames)
    reader = _native.ResultReader()
    got = [frame for at in range(0, len(stream), piece) for frame in reader.feed(stream[at : at + piece])]
    assert got == [expected for _, expected in frames]


@given(st.lists(results(), max_size=3), st.binary(max_size=4), st.integers(0, 200), st.integers(1, 50))
def test_damage_changes_no_frame_before_it(
    frames: list[tuple[bytes, tuple[Any, ...]]], damage: bytes, at: int, piece: int
) -> None:
    """The reader refuses it or reads something else, and never crashes."""
    stream = bytearray(b"".join(data for data, _ in frames))
    stream[at : at + len(damage)] = damage
    ends = itertools.accumulate(len(data) for data, _ in frames)
    whole = [expected for (_, expected), end in zip(frames, ends, strict=True) if end <= at]
    reader, got = _native.ResultReader(), []
    with suppress(RuntimeError, ValueError):
        for start in range(0, len(stream), piece):
            got += reader.feed(bytes(stream[start : start + piece]))
    assert got[: len(whole)] == whole[: len(got)]


@pytest.mark.parametrize("mark", ["x", "\u00e9", "\u6f22", "\U0001f600"])
@pytest.mark.parametrize("piece", [1 << 16, 1 << 30])
def test_long_texts_are_made_later(mark: str, piece: int) -> None:
    """What comes before and after in the same pieces is as it always is."""
    out, value = "a" + mark * _native.LONG_TEXT_BYTES, mark * 9
    lengths = len(out.encode()), 0, len(value.encode())
    head = RESULT_HEAD.pack(5, 0, 0, 0, HAS_VALUE, 0, 0, 0, *lengths)
    frames = [wire.frame(wire.PONG, b"before"), wire.frame(wire.RESULT, head + (out + value).encode())]
    stream = b"".join([*frames, wire.frame(wire.PONG, b"after"), frames[0]])
    reader = _native.ResultReader()
    got = [frame for at in range(0, len(stream), piece) for frame in reader.feed(stream[at : at + piece])]
    assert [frame[1] for frame in got] == [b"before", 5, b"after", b"before"]
    text = got[1][5]
    assert isinstance(text, _native.LongText) and len(text) == len(out.encode())
    assert reader.feed(stream) and text.read() == out and got[1][6] == "" and got[1][9] == value


def test_a_long_text_that_is_no_utf8_is_an_error() -> None:
    out = b"x" * _native.LONG_TEXT_BYTES + b"\xff"
    head = RESULT_HEAD.pack(5, 0, 0, 0, 0, 0, 0, 0, len(out), 0, 0)
    (frame,) = _native.ResultReader().feed(wire.frame(wire.RESULT, head + out))
    with pytest.raises(UnicodeDecodeError):
        frame[5].read()


def test_a_text_is_decoded_only_from_bytes_that_lie_together() -> None:
    """Others would be read from wherever their first one lies."""
    for odd in (memoryview(b"abcd")[::-1], memoryview(b"abcd")[::2]):
        with pytest.raises(TypeError, match="one after the other"):
            _native.decode_text(odd)


@given(st.binary(max_size=12) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_are_decoded_or_refused_as_by_python(data: bytes) -> None:
    """Halves of surrogate pairs are text, too."""
    try:
        wanted: object = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            _native.decode_text(data)
    else:
        assert _native.decode_text(data) == _native.decode_text(memoryview(data)) == wanted


@pytest.mark.parametrize(
    "payload", [b"", b"short", RESULT_HEAD.pack(*[0] * 8, 5, 0, 0), RESULT_HEAD.pack(*[0] * 11) + b"x"]
)
def test_a_result_that_lies_about_its_lengths_is_refused(payload: bytes) -> None:
    with pytest.raises(RuntimeError, match="frame"):
        _native.ResultReader().feed(wire.frame(wire.RESULT, payload))


PARTS_OF_CHARACTERS = [*(bytes([part]) for part in b"\xe2\x82\xac\xf0\x9f\xed\xa0\xf4\x90"), b"a"]


@given(st.binary(max_size=200) | st.lists(st.sampled_from(PARTS_OF_CHARACTERS), max_size=12).map(b"".join))
def test_repair_agrees_with_python(data: bytes) -> None:
    repaired = _native.repair_utf8(data)
    assert repaired == data.decode("utf-8", "replace")
    assert _native.repair_utf8(repaired.encode()) == repaired


def test_a_request_that_is_too_long_in_bytes_is_refused() -> None:
    request = ExecRequest(code="é" * (MAX_TEXT_BYTES // 2 + 1))
    with pytest.raises(ValueError, match=r"code has .* bytes, more than"):
        wire.encode_run(1, request, 0)
    with pytest.raises(ValueError, match=r"code has .* bytes, more than"):
        wire.encode_cell(1, 2, request)


RUN_HEAD = struct.Struct("=QQQQQQQBBQQIIIIB")


def test_a_program_is_encoded_field_by_field() -> None:
    limits = Limits(wall_s=1.5, cpu_s=2, memory_bytes=3 << 20, output_bytes=4, file_bytes=5, files=6)
    request = ExecRequest(code="é\ud800", stdin="in\ud800", limits=limits, seed=7)
    payload = b"".join(wire.encode_run(9, request, 1, 8, 2))[5:]
    assert RUN_HEAD.unpack_from(payload) == (9, 1_500_000, 2, 3 << 20, 4, 5, 6, 1, 1, 7, 8, 2, 5, 3, 0, 0)
    assert payload[RUN_HEAD.size :] == "é\ud800".encode("utf-8", "surrogatepass") + b"in?"


def test_seed_zero_is_a_seed() -> None:
    flags = [
        RUN_HEAD.unpack_from(wire.encode_run(1, ExecRequest(code="", seed=seed), 0)[0], 5)[8:10]
        for seed in (None, 0, 5)
    ]
    assert flags == [(0, 0), (1, 0), (1, 5)]


def test_what_the_supervisor_says_of_calls_and_sessions() -> None:
    assert wire.decode_coded(struct.pack("=QB", 6, 2)) == (6, 2, b"")
    assert wire.decode_coded(struct.pack("=QB", 5, 3) + b"why") == (5, 3, b"why")
    assert wire.decode_file(struct.pack("=QB", 7, 1) + b"f\xff") == (7, "f", b"\xff")
    assert wire.decode_zygote(struct.pack("=BQ", 1, 77)) == (1, 77)
    failures = {kind: wire.failure(kind, '{"message": "text"}') for kind in wire.FAILURES.values()}
    assert {kind for kind, failure in failures.items() if failure.retryable} == {
        "child_start",
        "full",
        "node_memory",
        "node_scratch",
        "zygote_start",
    }
    assert str(failures["zygote_start"]).startswith("text; ")


def test_statuses_are_in_the_order_of_the_header() -> None:
    assert tuple(Status) == wire.STATUSES and len(wire.STATUSES) == 7
