"""Frames between the pool and a zygote; csrc/protocol.h is the other half and describes the layout."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.types import MAX_TEXT_BYTES, ExecRequest, ExecResult, Status

RUN, CANCEL, HELLO, FATAL, RESULT, FAILED = 1, 2, 16, 17, 18, 19

TIMED_OUT, OUTPUT_LIMIT, STDOUT_TRUNCATED, STDERR_TRUNCATED, HAS_VALUE = 1, 2, 8, 16, 32

SIGKILL, SIGXCPU, SIGSYS = 9, 24, 31

_HEADER = struct.Struct("=IB")
_RUN = struct.Struct("=QQQQQQBQII")
_ID = struct.Struct("=Q")
_RESULT = struct.Struct("=QBiIQQQIII")


@dataclass(frozen=True, slots=True)
class Frame:
    type: int
    payload: bytes


class FrameBuffer:
    """Cuts a byte stream into frames, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        start = 0
        while len(self._bytes) - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._bytes, start)
            end = start + 4 + length
            if len(self._bytes) < end:
                break
            yield Frame(kind, bytes(self._bytes[start + _HEADER.size : end]))
            start = end
        del self._bytes[:start]


def frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) + 1, kind) + payload


def encode_json(kind: int, value: dict[str, Any]) -> bytes:
    return frame(kind, json.dumps(value).encode())


def encode_cancel(call_id: int) -> bytes:
    return frame(CANCEL, _ID.pack(call_id))


def encode_run(call_id: int, request: ExecRequest) -> bytes:
    """Lone surrogates in the code reach the child, which reports them as Python does; in stdin become "?"."""
    code = request.code.encode("utf-8", "surrogatepass")
    stdin = request.stdin.encode("utf-8", "replace")
    for name, text in (("code", code), ("stdin", stdin)):
        if len(text) > MAX_TEXT_BYTES:
            raise ValueError(f"{name} is {len(text)} bytes long; at most {MAX_TEXT_BYTES} are sent")
    limits = request.limits
    head = _RUN.pack(
        call_id,
        round(limits.wall_s * 1e6),
        limits.cpu_s,
        limits.memory_bytes,
        limits.output_bytes,
        limits.file_bytes,
        request.seed is not None,
        request.seed or 0,
        len(code),
        len(stdin),
    )
    return frame(RUN, head + code + stdin)


def decode_failed(payload: bytes) -> tuple[int, str]:
    return _ID.unpack_from(payload)[0], payload[_ID.size :].decode("utf-8", "replace")


def decode_id(payload: bytes) -> int:
    call_id: int = _ID.unpack_from(payload)[0]
    return call_id


def decode_result(payload: bytes, *, request: ExecRequest, isolation: str, memory_exit: int) -> ExecResult:
    _, signaled, code, flags, wall_us, cpu_us, peak, out_len, err_len, value_len = _RESULT.unpack_from(
        payload
    )
    out_end = _RESULT.size + out_len
    err_end = out_end + err_len
    cpu_s = cpu_us / 1e6
    return ExecResult(
        status=status_of(
            signaled, code, flags, over_cpu=cpu_s >= request.limits.cpu_s, memory_exit=memory_exit
        ),
        exit_code=None if signaled else code,
        signal=code if signaled else None,
        stdout=payload[_RESULT.size : out_end].decode(),
        stderr=payload[out_end:err_end].decode(),
        stdout_truncated=bool(flags & STDOUT_TRUNCATED),
        stderr_truncated=bool(flags & STDERR_TRUNCATED),
        value=payload[err_end : err_end + value_len].decode() if flags & HAS_VALUE else None,
        wall_s=wall_us / 1e6,
        cpu_s=cpu_s,
        peak_memory_bytes=peak,
        isolation=isolation,
    )


def status_of(signaled: bool, code: int, flags: int, *, over_cpu: bool, memory_exit: int) -> Status:
    """From how the child ended and from what its parent did to it; nothing that the child wrote counts."""
    if flags & OUTPUT_LIMIT:
        return Status.OUTPUT_LIMIT
    if not signaled:
        return Status.OK if code == 0 else Status.MEMORY_LIMIT if code == memory_exit else Status.ERROR
    # SIGKILL a second after SIGXCPU is how the kernel ends a program that ignores the first.
    if flags & TIMED_OUT or code == SIGXCPU or (code == SIGKILL and over_cpu):
        return Status.TIMEOUT
    return Status.DENIED if code == SIGSYS else Status.SIGNALED
