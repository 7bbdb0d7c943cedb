"""One trajectory as bytes: its token columns, each compressed by itself, and the rest as JSON.

    frame: <4s magic> <u32 bytes of the parts> <u32 crc32 of the parts> parts
    parts: each <u32 bytes> and so many: key (JSON), and in zstd: fields (JSON), ids, has_logprob, log-probs

ids are little-endian int32. Existing log-probs (a bit per token marks them) are stored as float32, or as
float64 if one of them is not a float32: every bit is kept. Their bytes are shuffled, one plane for each byte
(compression.py). JSON is ASCII, because a policy may write half of a surrogate pair.

A truncated or damaged frame has another length or another checksum.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import zstandard

from rocstar.engine.record.compression import (
    MAX_NUMBERS,
    MAX_PART_BYTES,
    compress,
    compress_shuffled,
    decompress,
    decompress_shuffled,
    pack_parts,
    unpack_parts,
)
from rocstar.engine.record.json_record import (
    decode_outcome,
    decode_rest,
    decode_task,
    decode_turn,
    encode_outcome,
    encode_rest,
    encode_task,
    encode_turn,
)
from rocstar.engine.types import BRANCH, FinishReason, Origin, Segment, Task, Trajectory, TrajectoryKey, VersionSpan

MAGIC = b"rTj2"
MAX_PARTS = 16
MAX_KEY_BYTES = 1 << 20
MAX_JSON_BYTES, MAX_JSON_ITEMS = 1 << 28, 1 << 23
"""Limits on the JSON of a frame, and on its brackets, commas and colons: each may become an object of 64
bytes."""
HEAD = struct.Struct("<4sII")
_THREAD = threading.local()
_NO_TRAJECTORY = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    *(struct.error, zstandard.ZstdError),
)
"""Exceptions of reading a damaged or hostile frame."""
_PLAIN = json.JSONEncoder(separators=(",", ":"))


class FrameError(ValueError):
    """Bytes that are no frame, or none of a trajectory."""


class Framed(NamedTuple):
    """The content of a frame: the trajectory, and the text of each of its segments (none on the wire)."""

    trajectory: Trajectory
    texts: Sequence[str]


def encode_frame(trajectory: Trajectory, texts: Sequence[str] = ()) -> bytes:
    """Return the trajectory as one frame; equal trajectories give equal bytes.

    Args:
        trajectory: the trajectory, with its task.
        texts: the text of each segment, for readers without a tokenizer.
    """
    t = trajectory
    key = [t.key.seed, t.key.step, t.key.task_id, t.key.sibling, *([t.key.branch] if t.key.branch else [])]
    fields = {
        "segments": [[s.start, s.end, s.origin.value] for s in t.segments],
        "texts": list(texts),
        "spans": [[s.start, s.end, s.version] for s in t.version_spans],
        "turns": [encode_turn(turn) for turn in t.turns],
        "finish_reason": t.finish_reason.value,
        "outcome": encode_outcome(t.outcome),
        "num": [len(t.ids), len(t.logprobs)],
        **encode_rest(t),
    }
    has_T = ~np.isnan(t.logprobs)
    values = t.logprobs[has_T]
    parts = [
        _json(key),
        compress(b'{"task":' + _task_json(t.task) + b"," + _json(fields)[1:]),
        compress(t.ids.astype("<i4", copy=False).tobytes()),
        compress(np.packbits(has_T).tobytes()),
        *compress_shuffled(values),
    ]
    body = pack_parts(parts)
    return HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def frame_key(frame: bytes) -> TrajectoryKey:
    """Whose frame it is, without the work of opening it. FrameError if it is not whole."""
    with _reading("key"):
        return _key_of(_parts(frame)[0])


def frame_json(frame: bytes) -> bytes:
    """Return a frame without its token columns, as JSON in ASCII, for a text search. Raise FrameError if the
    frame is damaged."""
    with _reading("text"):
        return decompress(_parts(frame)[1], MAX_JSON_BYTES)


def frame_size(head: bytes) -> int:
    """Bytes of the frame that begins with `head`, itself included. FrameError if none does."""
    if len(head) < HEAD.size:
        raise FrameError(f"{len(head)} bytes are no frame")
    magic, size, _ = HEAD.unpack_from(head)
    if magic != MAGIC or size > MAX_PART_BYTES:
        raise FrameError("no frame begins here")
    return HEAD.size + int(size)


def decode_frame(frame: bytes, task: Task | None = None) -> Framed:
    """Return the trajectory and texts of a frame.

    Args:
        frame: one frame.
        task: replaces the frame's task and must have its id; a task in memory may have a `meta` that is
            not plain JSON.

    Raises:
        FrameError: the frame is damaged, or of another task.
    """
    with _reading("trajectory"):
        key, fields, *columns = _parts(frame)
        return _framed(_key_of(key), _parse_json(fields), columns, task)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raise FrameError for any error of reading a frame in the block."""
    try:
        yield
    except FrameError:
        raise
    except _NO_TRAJECTORY as error:
        raise FrameError(f"no {what}: {type(error).__name__}: {error}") from None


def _parts(frame: bytes) -> list[memoryview]:
    """The parts of a frame that is whole."""
    if len(frame) != frame_size(frame):
        raise FrameError(f"{len(frame)} bytes of a frame of {frame_size(frame)}")
    body = memoryview(frame)[HEAD.size :]
    if zlib.crc32(body) != HEAD.unpack_from(frame)[2]:
        raise FrameError("the frame is damaged: its sum is another")
    return unpack_parts(body, MAX_PARTS)


def _key_of(part: memoryview) -> TrajectoryKey:
    if len(part) > MAX_KEY_BYTES:
        raise FrameError(f"a key of {len(part)} bytes")
    seed, step, task_id, sibling, *branches = json.loads(bytes(part))
    if not isinstance(task_id, str) or not all(type(one) is int for one in (seed, step, sibling)):
        raise FrameError("the key is not numbers and a task's id")
    branch = "".join(branches)
    if branch and not BRANCH.fullmatch(branch):
        raise FrameError(f"{branch!r:.40} names no branch")
    return TrajectoryKey(seed=seed, step=step, task_id=task_id, sibling=sibling, branch=branch)


def _parse_json(part: memoryview) -> dict[str, Any]:
    """All but the columns."""
    text = decompress(part, MAX_JSON_BYTES)
    items = sum(map(text.count, (b"[", b"{", b",", b":")))
    if items > MAX_JSON_ITEMS:
        raise FrameError(f"JSON of up to {items} items, at most {MAX_JSON_ITEMS} are read")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise FrameError("the JSON is no object")
    return fields


def _framed(key: TrajectoryKey, fields: Mapping[str, Any], parts: Sequence[memoryview], task: Task | None) -> Framed:
    if task is not None and task.id != key.task_id:
        raise FrameError(f"task {key.task_id!r}, asked was {task.id!r}")
    num_ids, num_logprobs = fields["num"]
    if not all(type(one) is int and 0 <= one <= MAX_NUMBERS for one in (num_ids, num_logprobs)):
        raise FrameError(f"{num_ids!r:.40} tokens and {num_logprobs!r:.40} log-probs, at most {MAX_NUMBERS}")
    ids = np.frombuffer(decompress(parts[0], 4 * num_ids), "<i4")
    bits = np.frombuffer(decompress(parts[1], (num_logprobs + 7) // 8), "u1")
    if len(ids) != num_ids or len(bits) != (num_logprobs + 7) // 8:
        raise FrameError(f"{len(ids)} tokens of {num_ids}; {8 * len(bits)} bits of {num_logprobs}")
    has_T = np.unpackbits(bits, count=num_logprobs).astype(bool)
    values = decompress_shuffled(parts[2:], int(has_T.sum()))
    logprobs = np.full(num_logprobs, np.nan, values.dtype)
    logprobs[has_T] = values
    trajectory = Trajectory(
        key=key,
        task=decode_task(fields["task"]) if task is None else task,
        ids=ids,
        logprobs=logprobs,
        segments=tuple(Segment(start=a, end=b, origin=Origin(origin)) for a, b, origin in fields["segments"]),
        version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in fields["spans"]),
        turns=tuple(decode_turn(turn) for turn in fields["turns"]),
        finish_reason=FinishReason(fields["finish_reason"]),
        outcome=decode_outcome(fields["outcome"]),
        **decode_rest(fields),
    )
    return Framed(trajectory=trajectory, texts=fields["texts"])


def _json(value: Any) -> bytes:
    return _PLAIN.encode(value).encode("ascii")


def _task_json(task: Task) -> bytes:
    """The task's part of a frame, made once for siblings that come one after the other in a thread."""
    if getattr(_THREAD, "task", None) is not task:
        _THREAD.task, _THREAD.task_json = task, _json(encode_task(task))
    made: bytes = _THREAD.task_json
    return made
