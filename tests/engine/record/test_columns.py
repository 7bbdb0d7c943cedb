"""A frame gives its trajectory back to the last bit, or says that it is none."""

import dataclasses
import math
import struct

import numpy as np
import pytest
from hypothesis import given

from rocstar.engine.record.columns import FrameError, decode_frame, encode_frame, frame_key, frame_size
from rocstar.engine.types import Task, Trajectory

from ..record_cases import fitting_trajectories, plain_trajectory


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
        assert [struct.pack("<d", p) for p in told[1:]] == [
            struct.pack("<d", p) for p in made.logprobs.tolist()[1:]
        ]
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
