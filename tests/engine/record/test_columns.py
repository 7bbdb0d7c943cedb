"""A frame gives its trajectory back to the last bit, or says that it is none."""

import contextlib
import dataclasses
import json
import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given

from rocstar.engine.record.columns import (
    HEAD,
    MAGIC,
    MAX_JSON_ITEMS,
    FrameError,
    decode_frame,
    encode_frame,
    frame_json,
    frame_key,
    frame_size,
)
from rocstar.engine.record.compression import compress
from rocstar.engine.record.json_record import decode_turn, encode_turn
from rocstar.engine.types import Task, Trajectory, Turn, TurnForm
from tests.fakes.trajectories import plain_trajectory

from ..record_cases import fitting_trajectories


@given(made=fitting_trajectories())
def test_a_frame_gives_the_trajectory_back(made: Trajectory) -> None:
    frame = encode_frame(made, ["a", "\udc00"])
    framed = decode_frame(frame)
    assert framed.trajectory == made and list(framed.texts) == ["a", "\udc00"]
    assert framed.trajectory.times == made.times
    assert (frame_key(frame), frame_size(frame)) == (made.key, len(frame))
    assert encode_frame(made, ["a", "\udc00"]) == frame


def test_every_bit_of_a_logprob_is_kept_in_as_few_bytes_as_that_takes() -> None:
    third = struct.unpack("<f", struct.pack("<f", -1 / 3))[0]
    single = plain_trajectory(logprobs=[third] * 50 + [-0.0, -math.inf])
    double = plain_trajectory(logprobs=[third] * 50 + [-0.0, -1 / 3])
    for made in (single, double):
        told = decode_frame(encode_frame(made)).trajectory.logprobs.tolist()
        assert [struct.pack("<d", p) for p in told[1:]] == [struct.pack("<d", p) for p in made.logprobs.tolist()[1:]]
    assert len(encode_frame(single)) < len(encode_frame(double))


def test_a_token_without_a_logprob_has_none() -> None:
    made = plain_trajectory(logprobs=[-0.5, math.nan])
    told = decode_frame(encode_frame(made)).trajectory.logprobs
    assert np.isnan(told).tolist() == [True, False, True] and told[1] == -0.5


def test_the_task_in_memory_is_taken_for_the_stored_one() -> None:
    made = plain_trajectory(logprobs=[-0.5])
    odd = dataclasses.replace(made.task, meta={"no JSON": object()})
    assert decode_frame(encode_frame(made), odd).trajectory.task is odd
    other = Task(id="other", source="s", question="q", answer="1")
    with pytest.raises(FrameError, match="other"):
        decode_frame(encode_frame(made), other)


def test_what_is_not_whole_is_no_frame() -> None:
    frame = encode_frame(plain_trajectory(logprobs=[-0.5, -0.25]))
    for broken in (b"", frame[:-1], frame + b"x", b"xxxx" + frame[4:], frame[:8]):
        with pytest.raises(FrameError):
            decode_frame(broken)
    for at in (12, len(frame) // 2, len(frame) - 1):
        changed = bytearray(frame)
        changed[at] ^= 1
        with pytest.raises(FrameError):
            decode_frame(bytes(changed))


KEY = json.dumps([0, 0, "t", 0]).encode()
TASK = {"id": "t", "source": "s", "question": "q", "answer": "a"}


def frame_of(*parts: bytes) -> bytes:
    body = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def told(**fields: object) -> bytes:
    empty = {name: [] for name in ("segments", "texts", "spans", "turns")}
    row = {"task": TASK, **empty, "finish_reason": "answered", "outcome": {"reward": 1.0, "method": "m"}}
    return compress(json.dumps({**row, "num": [0, 0], **fields}).encode())


def zeros(size: int) -> bytes:
    """What unpacks to so many zeros, as its header says."""
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


COLUMNS = [compress(b"")] * 4


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(KEY, told(num=[0, 1 << 40]), *COLUMNS),
        frame_of(KEY, told(num=[0, 1 << 31]), *COLUMNS),
        frame_of(KEY, told(num=[1 << 24, 0]), *COLUMNS),
        frame_of(KEY, told(num=[0, -1]), *COLUMNS),
        frame_of(KEY, told(num=[0, "9"]), *COLUMNS),
        frame_of(KEY, told(num=[0, True]), *COLUMNS),
        frame_of(KEY, told(num=[1 << 20, 0]), zeros(1 << 30), *COLUMNS[1:]),
        frame_of(KEY, told(num=[0, 8]), compress(b""), compress(b"\xff"), *[zeros(1 << 20)] * 2),
        frame_of(KEY, told(num=[0, 8]), compress(b""), compress(b"\xff"), *[compress(b"")] * 2),
        frame_of(KEY, compress(b'{"task":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), *COLUMNS),
        frame_of(KEY, compress(b'{"task":[' + b"{}," * MAX_JSON_ITEMS + b"0]}"), *COLUMNS),
        frame_of(KEY, compress(b"[]"), *COLUMNS),
        frame_of(KEY, zeros(1 << 29), *COLUMNS),
        frame_of(KEY, zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"), *COLUMNS),
        frame_of(b"[" * 100_000, told(), *COLUMNS),
        frame_of(b"7", told(), *COLUMNS),
        frame_of(b'[0, 0, "t", 1e999]', told(), *COLUMNS),
        frame_of(),
        frame_of(KEY, told(), *[b""] * 1000),
        frame_of(KEY, told(task={**TASK, "meta": {"~": "dict", "of": 5}}), *COLUMNS),
        frame_of(KEY, told(task=[]), *COLUMNS),
        frame_of(KEY, told(turns={"a": 1}), *COLUMNS),
        frame_of(KEY, told(outcome={"failed": []}), *COLUMNS),
        frame_of(KEY, told(times=[1]), *COLUMNS),
        HEAD.pack(MAGIC, 4, zlib.crc32(b"\xff\xff\xff\x7f")) + b"\xff\xff\xff\x7f",
    ],
)  # fmt: skip
def test_a_frame_of_a_stranger_is_refused_before_memory_is_taken(frame: bytes) -> None:
    """Whatever its headers claim: the error of a frame, and no allocation of a claimed size."""
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            decode_frame(frame)
        for read in (frame_key, frame_json):
            with contextlib.suppress(FrameError):
                read(frame)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_turn_keeps_how_it_was_read() -> None:
    """The default is not written, so that records of it are as they were."""
    turn = Turn(start=0, end=1, text="a", stopped=True)
    assert "form" not in encode_turn(turn) and decode_turn(encode_turn(turn)) == turn
    xml = dataclasses.replace(turn, form=TurnForm(calls="xml", skips_thoughts=False, opens_thought=True))
    assert decode_turn(json.loads(json.dumps(encode_turn(xml)))) == xml
    with pytest.raises(ValueError, match="call form 'yaml' is none of hermes, xml,"):
        decode_turn({**encode_turn(turn), "form": {"calls": "yaml"}})
