"""The Python half of the frames, and the UTF-8 repair of the native half against Python's own."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox import _native, wire
from rocstar.sandbox.types import MAX_TEXT_BYTES, ExecRequest, Status


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=8), st.integers(1, 60))
def test_frames_come_out_whole_whatever_the_pieces(frames: list[tuple[int, bytes]], piece: int) -> None:
    stream = b"".join(wire.frame(kind, payload) for kind, payload in frames)
    buffer = wire.FrameBuffer()
    got = [frame for at in range(0, len(stream), piece) for frame in buffer.feed(stream[at : at + piece])]
    assert [(frame.type, frame.payload) for frame in got] == frames


@given(st.binary(max_size=200))
def test_repair_agrees_with_python(data: bytes) -> None:
    assert _native.repair_utf8(data) == data.decode("utf-8", "replace")


@given(
    st.lists(
        st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f", b"\xed", b"\xa0", b"a"]), max_size=12
    )
)
def test_repair_agrees_with_python_on_near_misses(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert _native.repair_utf8(data) == data.decode("utf-8", "replace")


def test_a_request_that_is_too_long_in_bytes_is_refused() -> None:
    request = ExecRequest(code="é" * (MAX_TEXT_BYTES // 2 + 1))
    with pytest.raises(ValueError, match=r"code is .* bytes long"):
        wire.encode_run(1, request)


def test_seed_zero_is_a_seed() -> None:
    head = struct.Struct("=QQQQQQBQII")
    flags = [
        head.unpack_from(wire.encode_run(1, ExecRequest(code="", seed=seed)), 5)[6:8] for seed in (None, 0, 5)
    ]
    assert flags == [(0, 0), (1, 0), (1, 5)]


@pytest.mark.parametrize(
    ("signaled", "code", "flags", "over_cpu", "status"),
    [
        (False, 0, 0, False, Status.OK),
        (False, 1, 0, False, Status.ERROR),
        (False, 86, 0, False, Status.MEMORY_LIMIT),
        (True, 11, 0, False, Status.SIGNALED),
        (True, 31, 0, False, Status.DENIED),
        (True, 9, wire.TIMED_OUT, False, Status.TIMEOUT),
        (True, 9, wire.OUTPUT_LIMIT, False, Status.OUTPUT_LIMIT),
        (False, 0, wire.OUTPUT_LIMIT, False, Status.OUTPUT_LIMIT),
        (False, 0, wire.TIMED_OUT, False, Status.OK),  # it ended by itself before the kill arrived
        (True, 24, 0, False, Status.TIMEOUT),
        (True, 9, 0, True, Status.TIMEOUT),
        (True, 9, 0, False, Status.SIGNALED),  # it killed itself
    ],
)
def test_status_follows_from_the_parents_knowledge(
    signaled: bool, code: int, flags: int, over_cpu: bool, status: Status
) -> None:
    assert wire.status_of(signaled, code, flags, over_cpu=over_cpu, memory_exit=86) is status
