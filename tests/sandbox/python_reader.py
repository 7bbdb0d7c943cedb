"""The frame reader in Python, against which the native one is tested."""

import struct
from typing import Any

from rocstar.sandbox.pool import wire

FRAME_HEADER = struct.Struct("=IB")
RESULT_HEAD = struct.Struct("=QBBiIQQQIII")
STDOUT_TRUNCATED, STDERR_TRUNCATED, HAS_VALUE = 8, 16, 32


class PythonReader:
    """`_native.ResultReader` in Python: splits a byte stream into frames.

    `feed` returns per RESULT a tuple of (18, id, status index, exit code, signal, stdout, stderr, stdout cut,
    stderr cut, value, wall s, CPU s, peak bytes), per other frame (type, payload). It decodes long texts
    immediately."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        self._bytes += data
        frames: list[tuple[Any, ...]] = []
        start = 0
        with memoryview(self._bytes) as view:
            while len(view) - start >= FRAME_HEADER.size:
                length, kind = FRAME_HEADER.unpack_from(view, start)
                end = start + 4 + length
                if len(view) < end:
                    break
                with view[start + FRAME_HEADER.size : end] as payload:
                    frames.append(_result(payload) if kind == wire.RESULT else (kind, bytes(payload)))
                start = end
        del self._bytes[:start]
        return frames


def _result(payload: memoryview) -> tuple[Any, ...]:
    fields = RESULT_HEAD.unpack_from(payload)
    call_id, status, signaled, code, flags, wall_us, cpu_us, peak, out_len, err_len, value_len = fields
    out_end = RESULT_HEAD.size + out_len
    err_end = out_end + err_len
    return (
        wire.RESULT,
        call_id,
        status,
        None if signaled else code,
        code if signaled else None,
        str(payload[RESULT_HEAD.size : out_end], "utf-8"),
        str(payload[out_end:err_end], "utf-8"),
        bool(flags & STDOUT_TRUNCATED),
        bool(flags & STDERR_TRUNCATED),
        str(payload[err_end : err_end + value_len], "utf-8") if flags & HAS_VALUE else None,
        wall_us / 1e6,
        cpu_us / 1e6,
        peak,
    )
