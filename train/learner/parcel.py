"""The message of rank 0 to a rank: a header, and columns concatenated in one buffer.

    payload ─> pickle, protocol 5 ─┬─ header: everything but columns, with their sizes ── pickled ──> the rank
                                   └─ columns, as bytes ── one message of CPU memory ───────────────> the rank

A step's columns are gigabytes. They are copied once, into the message, and never pickled: an object returns
such arrays as numpy arrays from `__reduce__` (MicroBatch does).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64
"""Alignment of a column in bytes, for computing with it in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcelHeader:
    """The first message, which is small."""

    pickled: bytes
    sizes: list[int]
    """Bytes of each column."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the message that follows; 0 without one."""
        return sum(map(_padded, self.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A payload on its way. It refers to the payload's arrays, which must not change until it is sent.

    Invariant: `unpacked` of header and message is equal to the payload, every bit of every column.
    """

    header: ParcelHeader
    columns: Sequence[pickle.PickleBuffer]

    @staticmethod
    def of(payload: Any) -> Parcel:
        columns: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(payload, protocol=5, buffer_callback=columns.append)
        sizes = [column.raw().nbytes for column in columns]
        return Parcel(header=ParcelHeader(pickled=pickled, sizes=sizes), columns=columns)

    def message(self) -> Tensor:
        """All columns in one buffer of bytes, each where `unpacked` will look for it."""
        message = torch.empty(self.header.num_bytes, dtype=torch.uint8)
        room: memoryview = message.numpy().data
        for column, (start, end) in zip(self.columns, _places(self.header.sizes), strict=True):
            room[start:end] = column.raw()
        return message


def unpacked(header: ParcelHeader, message: Tensor) -> Any:
    """The payload; its columns lie in the message."""
    room: memoryview = message.numpy().data
    return pickle.loads(header.pickled, buffers=[room[a:b] for a, b in _places(header.sizes)])


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, start + size
        start += _padded(size)
