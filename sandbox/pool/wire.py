"""Frames between the pool and the supervisor; csrc/sandbox/protocol.h is the other half and describes it.

The pool encodes here and decodes with `_native.ResultReader`.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rocstar.sandbox import files as program_files
from rocstar.sandbox.types import LIMIT_BOUNDS, MAX_TEXT_BYTES, ExecRequest, Limits, SandboxError, Status

RUN, CANCEL, OPEN, CELL, BRANCH, CLOSE, PING = 1, 2, 3, 4, 5, 6, 7
HELLO, FATAL, RESULT, FAILED, OPENED, GONE, ZYGOTE, PONG = 16, 17, 18, 19, 20, 21, 22, 23
OUTPUT, FILE = 24, 25
WANTS_OUTPUT, WANTS_DISPLAYS = 1, 2
STREAMS = {1: "stdout", 2: "stderr"}

STATUSES = tuple(Status)
"""Values in the order of csrc/sandbox/protocol.h."""

FAILURES = {
    1: "child_start",
    2: "cancelled",
    3: "session_lost",
    4: "full",
    5: "cannot_branch",
    6: "node_memory",
    7: "too_large",
    8: "node_scratch",
    9: "zygote_start",
}
GONE_REASONS = {1: "died", 2: "evicted", 3: "expired", 4: "closed"}
_HEADER = struct.Struct("=IB")
_RUN = struct.Struct("=IBQQQQQQQBBQQIIIIB")  # with the header
_CELL = struct.Struct("=QQQIIB")
_ID = struct.Struct("=Q")


def frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) + 1, kind) + payload


def encode_ids(kind: int, *ids: int) -> bytes:
    """Return a frame: CANCEL of a call, CLOSE of a session, BRANCH for a call of a session, PING with any
    number."""
    return frame(kind, struct.pack(f"={len(ids)}Q", *ids))


def encode_text(name: str, text: str, errors: str) -> bytes:
    encoded = text.encode("utf-8", errors)
    if len(encoded) > MAX_TEXT_BYTES:
        raise ValueError(f"{name} has {len(encoded)} bytes, more than {MAX_TEXT_BYTES}")
    return encoded


def encode_run(
    call_id: int,
    request: ExecRequest,
    flavour: int,
    lane: int = 0,
    weight: int = 1,
    *,
    follows: bool = False,
    kind: int = RUN,
) -> list[bytes]:
    """Return the pieces of a RUN frame, or of an OPEN frame, which has no texts. Lone surrogates in the code
    reach the child, which reports them as Python does; in stdin they become "?". follows: True if output is
    streamed."""
    code, limits = [encode_text("code", request.code, "surrogatepass")], request.limits
    if request.files or request.displays:
        code = program_files.pack(request.files, code[0], displays=request.displays)
        limits = with_files(limits, request.files, displays=request.displays)
    stdin = encode_text("stdin", request.stdin, "replace") if request.stdin else b""
    fetch = encode_fetch(request.fetch) if request.fetch else b""
    sizes = sum(map(len, code)), len(stdin), len(fetch)
    head = _RUN.pack(
        _RUN.size - 4 + sum(sizes),
        kind,
        call_id,
        round(limits.wall_s * 1e6),
        limits.cpu_s,
        limits.memory_bytes,
        limits.output_bytes,
        limits.file_bytes,
        limits.files,
        flavour,
        request.seed is not None,
        request.seed or 0,
        lane,
        weight,
        *sizes,
        follows * WANTS_OUTPUT | request.displays * WANTS_DISPLAYS,
    )
    return [head, *code, stdin, fetch]


def encode_fetch(names: Sequence[str]) -> bytes:
    """Encode each name once, because chunks of a file are joined by name. Names of displays are not
    fetched."""
    files = dict.fromkeys(name for name in names if not name.startswith(f"{program_files.DISPLAY_FOLDER}/"))
    return "".join(f"{name}\n" for name in files).encode()


def with_files(limits: Limits, files: Mapping[str, bytes], *, displays: bool = False) -> Limits:
    """Return limits with extra room for the files and displays of a call: the child holds the files twice
    while it writes them, and stores displays as files."""
    if displays:
        more = limits.files + program_files.MAX_DISPLAYS + 1
        limits = replace(limits, files=min(more, LIMIT_BOUNDS["files"][1]))
    if not files:
        return limits
    memory_bytes = limits.memory_bytes + 2 * sum(map(len, files.values()))
    return replace(
        limits,
        memory_bytes=min(memory_bytes, LIMIT_BOUNDS["memory_bytes"][1]),
        file_bytes=max(limits.file_bytes, *map(len, files.values())),
        files=min(limits.files + program_files.created(files), LIMIT_BOUNDS["files"][1]),
    )


def encode_cell(call_id: int, session: int, cell: ExecRequest, *, follows: bool = False) -> list[bytes]:
    text = encode_text("code", cell.code, "surrogatepass")
    code = program_files.pack(cell.files, text, displays=cell.displays)
    fetch = encode_fetch(cell.fetch) if cell.fetch else b""
    sizes, wants = (sum(map(len, code)), len(fetch)), follows * WANTS_OUTPUT | cell.displays * WANTS_DISPLAYS
    head = _CELL.pack(call_id, session, round(cell.limits.wall_s * 1e6), *sizes, wants)
    return [_HEADER.pack(len(head) + sum(sizes) + 1, CELL) + head, *code, fetch]


def decode_id(payload: bytes) -> int:
    number: int = _ID.unpack_from(payload)[0]
    return number


def decode_coded(payload: bytes) -> tuple[int, int, bytes]:
    """Return (id, code, rest) of FAILED, GONE and OUTPUT: the code is of FAILURES, GONE_REASONS, STREAMS."""
    return decode_id(payload), payload[_ID.size], payload[_ID.size + 1 :]


def decode_file(payload: bytes) -> tuple[int, str, bytes]:
    """Return (call id, file name, chunk of the file)."""
    call_id, length, rest = decode_coded(payload)
    return call_id, rest[:length].decode(), rest[length:]


def decode_zygote(payload: bytes) -> tuple[int, int]:
    """Return (flavour index, zygote pid)."""
    return payload[0], _ID.unpack_from(payload, 1)[0]


def failure(kind: str, text: str) -> SandboxError:
    if kind == "zygote_start":  # a flavour that the pool does not wait for
        text = f"{json.loads(text)['message']}; the next call for it tries again"
    return SandboxError(
        text, kind=kind, retryable=kind in ("child_start", "full", "node_memory", "node_scratch", "zygote_start")
    )
