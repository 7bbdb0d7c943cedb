"""One trajectory as bytes: its token columns, each compressed by itself, and all else as JSON.

    frame: <4s magic> <u32 bytes of the parts> <u32 crc32 of the parts> parts
    parts: each <u32 bytes> and so many: key (JSON), and in zstd: told (JSON), ids, has_logprob, log-probs

ids are little-endian int32. Of the log-probs those that there are (a bit per token says which) are stored as
float32, or as float64 where one of them is no float32: every bit is kept. Their bytes are put apart, a part
for each (packing.py). JSON is ASCII, because a policy may write half of a surrogate pair.

A frame is whole or it is not there: a torn one has another length or another sum.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from rocstar.engine.record.packing import MAX_PART_BYTES, packed, packed_apart, together, unpacked
from rocstar.engine.record.plain import (
    decode_outcome,
    decode_task,
    decode_turn,
    encode_outcome,
    encode_task,
    encode_turn,
)
from rocstar.engine.record.times import decode_times, encode_times
from rocstar.engine.types import (
    FinishReason,
    Origin,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
    VersionSpan,
)

MAGIC = b"rTj2"
HEAD = struct.Struct("<4sII")
_SIZE = struct.Struct("<I")
_THREAD = threading.local()
_PLAIN = json.JSONEncoder(separators=(",", ":"))


class FrameError(ValueError):
    """Bytes that are no frame, or none of a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """What a frame holds: the trajectory, and the text of each of its segments (none on the wire)."""

    trajectory: Trajectory
    texts: Sequence[str]


def encode_frame(trajectory: Trajectory, texts: Sequence[str] = ()) -> bytes:
    """The trajectory as one frame; the same one gives the same bytes.

    Args:
        trajectory: what is stored, its task too.
        texts: of each segment, for readers who have no tokenizer.
    """
    t = trajectory
    key = [t.key.seed, t.key.step, t.key.task_id, t.key.sibling]
    told = {
        "segments": [[s.start, s.end, s.origin.value] for s in t.segments],
        "texts": list(texts),
        "spans": [[s.start, s.end, s.version] for s in t.version_spans],
        "turns": [encode_turn(turn) for turn in t.turns],
        "finish_reason": t.finish_reason.value,
        "outcome": encode_outcome(t.outcome),
        "num": [len(t.ids), len(t.logprobs)],
        **({} if t.times is None else {"times": encode_times(t.times)}),
    }
    has_T = ~np.isnan(t.logprobs)
    values = t.logprobs[has_T]
    parts = [
        _json(key),
        packed(b'{"task":' + _task_json(t.task) + b"," + _json(told)[1:]),
        packed(t.ids.astype("<i4", copy=False).tobytes()),
        packed(np.packbits(has_T).tobytes()),
        *packed_apart(values),
    ]
    body = b"".join(_SIZE.pack(len(part)) + part for part in parts)
    return HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def frame_key(frame: bytes) -> TrajectoryKey:
    """Whose frame it is, without the work of opening it. FrameError if it is not whole."""
    try:
        seed, step, task_id, sibling = json.loads(bytes(_parts(frame)[0]))
    except (ValueError, TypeError, struct.error) as error:
        raise FrameError(f"no key: {error}") from None
    return TrajectoryKey(seed=seed, step=step, task_id=task_id, sibling=sibling)


def frame_told(frame: bytes) -> bytes:
    """All of a frame but its token columns, as JSON in ASCII: what a search looks through. FrameError if the
    frame is not whole."""
    try:
        return unpacked(_parts(frame)[1])
    except (IndexError, struct.error, zstandard.ZstdError) as error:
        raise FrameError(f"nothing told: {error}") from None


def frame_size(head: bytes) -> int:
    """Bytes of the frame that begins with `head`, itself included. FrameError if none does."""
    if len(head) < HEAD.size:
        raise FrameError(f"{len(head)} bytes are no frame")
    magic, size, _ = HEAD.unpack_from(head)
    if magic != MAGIC or size > MAX_PART_BYTES:
        raise FrameError("no frame begins here")
    return HEAD.size + int(size)


def decode_frame(frame: bytes, task: Task | None = None) -> Framed:
    """What `encode_frame` was given.

    Args:
        frame: one frame.
        task: taken for the frame's own, which it must have the id of; the one in memory may have a `meta`
            that is not plain.

    Raises:
        FrameError: it is not whole, or another task's.
    """
    try:
        _, told, *columns = _parts(frame)
        return _framed(frame_key(frame), json.loads(unpacked(told)), columns, task)
    except FrameError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, struct.error, zstandard.ZstdError) as error:
        raise FrameError(f"no trajectory: {type(error).__name__}: {error}") from None


def _parts(frame: bytes) -> list[memoryview]:
    """The parts of a frame that is whole."""
    if len(frame) != frame_size(frame):
        raise FrameError(f"{len(frame)} bytes of a frame of {frame_size(frame)}")
    body = memoryview(frame)[HEAD.size :]
    if zlib.crc32(body) != HEAD.unpack_from(frame)[2]:
        raise FrameError("the frame is damaged: its sum is another")
    parts, at = [], 0
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        parts.append(body[at : at + size])
        at += size
    return parts


def _framed(
    key: TrajectoryKey, told: Mapping[str, Any], parts: Sequence[memoryview], task: Task | None
) -> Framed:
    if task is not None and task.id != key.task_id:
        raise FrameError(f"task {key.task_id!r}, asked was {task.id!r}")
    num_ids, num_logprobs = told["num"]
    ids = np.frombuffer(unpacked(parts[0]), "<i4")
    has_T = np.unpackbits(np.frombuffer(unpacked(parts[1]), "u1"), count=num_logprobs).astype(bool)
    values = together(parts[2:], int(has_T.sum()))
    if len(ids) != num_ids:
        raise FrameError(f"{len(ids)} tokens, told were {num_ids}")
    logprobs = np.full(num_logprobs, np.nan, values.dtype)
    logprobs[has_T] = values
    trajectory = Trajectory(
        key=key,
        task=decode_task(told["task"]) if task is None else task,
        ids=ids,
        logprobs=logprobs,
        segments=tuple(Segment(start=a, end=b, origin=Origin(origin)) for a, b, origin in told["segments"]),
        version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in told["spans"]),
        turns=tuple(decode_turn(turn) for turn in told["turns"]),
        finish_reason=FinishReason(told["finish_reason"]),
        outcome=decode_outcome(told["outcome"]),
        times=decode_times(told.get("times")),
    )
    return Framed(trajectory=trajectory, texts=told["texts"])


def _json(value: Any) -> bytes:
    return _PLAIN.encode(value).encode("ascii")


def _task_json(task: Task) -> bytes:
    """The task's part of a frame, made once for siblings that come one after the other in a thread."""
    if getattr(_THREAD, "task", None) is not task:
        _THREAD.task, _THREAD.task_json = task, _json(encode_task(task))
    made: bytes = _THREAD.task_json
    return made
