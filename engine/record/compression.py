"""Columns of numbers as few bytes: compressed by zstd, numbers of several bytes with these put apart.

The lowest bytes of all numbers are a part of their own, then the second ones, and so on: signs and exponents
compress well, mantissas hardly, and mixed neither would.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

LEVEL = 3
MAX_PART_BYTES = 1 << 31
MAX_NUMBERS = 1 << 24
"""The limit of one column in bytes. A header of an untrusted file is checked against it before allocation."""
_THREAD = threading.local()


_SIZE = struct.Struct("<I")


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Return the parts one after the other, each behind its number of bytes."""
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def unpack_parts(body: memoryview, most: int) -> list[memoryview]:
    """Return the parts of `pack_parts`. ValueError or struct.error for other bytes, or more than `most`."""
    parts: list[memoryview] = []
    at = 0
    while at < len(body):
        if len(parts) == most:
            raise ValueError(f"more than {most} parts")
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if at + size > len(body):
            raise ValueError(f"a part of {size} bytes ends beyond the last byte")
        parts.append(body[at : at + size])
        at += size
    return parts


def compress(data: bytes) -> bytes:
    found: bytes = _of_thread()[0].compress(data)
    return found


def decompress(data: bytes | memoryview, most_bytes: int) -> bytes:
    """Return the decompressed bytes, at most `limit`.

    Raises:
        zstandard.ZstdError: the data is not from `compress`.
        ValueError: its header claims more bytes, or none.
    """
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= most_bytes:
        raise ValueError(f"a part claims {size} bytes, at most {most_bytes} are read")
    plain: bytes = _of_thread()[1].decompress(data, max_output_size=size)
    return plain


def compress_shuffled(values: npt.NDArray[Any]) -> list[bytes]:
    """Each byte of the floats as a column of its own, lowest first."""
    width = values.dtype.itemsize
    bytes_NW = values.astype(f"<f{width}", copy=False).view("u1").reshape(-1, width)
    return [compress(column.tobytes()) for column in np.ascontiguousarray(bytes_NW.T)]


def decompress_shuffled(parts: Sequence[bytes | memoryview], number: int) -> npt.NDArray[Any]:
    """Return the floats of byte planes: one plane for each byte of a float.

    Raises:
        ValueError: no float has that number of bytes, or a plane has another length.
    """
    width = len(parts)
    if width not in (2, 4, 8):
        raise ValueError(f"numbers of {width} bytes")
    if not 0 <= number <= MAX_NUMBERS:
        raise ValueError(f"a column claims {number} numbers, at most {MAX_NUMBERS} are read")
    sizes = {zstandard.frame_content_size(part) for part in parts}
    if sizes != {number}:
        raise ValueError(f"columns of {sorted(sizes)} bytes for {number} numbers")
    bytes_NW = np.empty((number, width), "u1")
    for k, part in enumerate(parts):
        bytes_NW[:, k] = np.frombuffer(decompress(part, number), "u1")
    return bytes_NW.view(f"<f{width}").reshape(-1)


def _of_thread() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    """A compressor belongs to one thread, and making one costs more than a small column."""
    if not hasattr(_THREAD, "zstd"):
        _THREAD.zstd = zstandard.ZstdCompressor(level=LEVEL), zstandard.ZstdDecompressor()
    made: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _THREAD.zstd
    return made
