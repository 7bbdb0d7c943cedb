"""Send each rank its command: a header, and columns concatenated in one buffer.

    command ─> pickle, protocol 5 ─┬─ header: everything but columns, with their sizes ── pickled ──> the rank
                                   └─ columns, as bytes ── one message of CPU memory ───────────────> the rank

A step's columns are gigabytes. They are copied once, into the message, and never pickled: an object returns
such arrays as numpy arrays from `__reduce__` (MicroBatch does).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ALIGNED = 64
"""Alignment of a column in bytes, for computing with it in place."""
IN_FLIGHT = 4
"""Messages that are copied and not yet received: so many ranks' columns exist twice at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterHeader:
    """The first message, which is small."""

    pickled: bytes
    sizes: list[int]
    """Bytes of each column."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the message that follows; 0 without one."""
        return sum(map(_padded, self.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterMessage:
    """A command to one rank. It refers to the command's arrays, which must not change until it is sent.

    Invariant: `unpack_message` of header and message is equal to the command, every bit of every column.
    """

    header: ScatterHeader
    columns: Sequence[pickle.PickleBuffer]

    @staticmethod
    def of(command: Any) -> ScatterMessage:
        columns: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(command, protocol=5, buffer_callback=columns.append)
        sizes = [column.raw().nbytes for column in columns]
        return ScatterMessage(header=ScatterHeader(pickled=pickled, sizes=sizes), columns=columns)

    def buffer(self) -> Tensor:
        """Return all columns in one buffer of bytes, each where `unpack_message` reads it."""
        buffer = torch.empty(self.header.num_bytes, dtype=torch.uint8)
        room: memoryview = buffer.numpy().data
        for column, (start, end) in zip(self.columns, _places(self.header.sizes), strict=True):
            room[start:end] = column.raw()
        return buffer


def unpack_message(header: ScatterHeader, message: Tensor) -> Any:
    """Return the command; its columns are views of the message."""
    room: memoryview = message.numpy().data
    return pickle.loads(header.pickled, buffers=[room[a:b] for a, b in _places(header.sizes)])


def scatter(commands: Sequence[Any]) -> None:
    """Send every rank its command, in the order of ranks; a collective of rank 0, which keeps the first."""
    messages = [ScatterMessage.of(command) for command in commands[1:]]
    headers: list[Any] = [None, *(message.header for message in messages)]
    dist.scatter_object_list([None], headers, src=0)
    sending: deque[tuple[Any, Tensor]] = deque()
    for rank, message in enumerate(messages, 1):
        if message.header.num_bytes:
            buffer = message.buffer()
            sending.append((dist.isend(buffer, dst=rank), buffer))
        if len(sending) == IN_FLIGHT:
            sending.popleft()[0].wait()
    for work, _ in sending:
        work.wait()


def receive() -> Any:
    """Return the command of `scatter` for this rank, which is not rank 0."""
    headers: list[Any] = [None]
    dist.scatter_object_list(headers, None, src=0)
    header: ScatterHeader = headers[0]
    message = torch.empty(header.num_bytes, dtype=torch.uint8)
    if header.num_bytes:
        dist.recv(message, src=0)
    return unpack_message(header, message)


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, start + size
        start += _padded(size)
