"""Truncation, UTF-8 repair and framing of results in Python: what the C++ is measured against.

    raw output of a child -> head + marker + tail -> valid UTF-8 -> frame | stream | wire.PythonReader

Written as one would who had no C++: slices, `bytes.decode`, `struct` and nothing per byte. The marker is
that of csrc/sandbox/capture.cpp, so that both sides' answers can be compared.
"""

from __future__ import annotations

from rocstar.sandbox.pool import wire


def cut_head(data: bytes) -> bytes:
    """Without a code point that the end of `data` cuts in two."""
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue
        length = 1 if lead < 0x80 else 2 if 0xC2 <= lead < 0xE0 else 3 if lead < 0xF0 else 4
        if length > back and 0xC2 <= lead <= 0xF4 and _may_go_on(data[-back:]):
            return data[:-back]
        return data
    return data


def _may_go_on(part: bytes) -> bool:
    """Whether more bytes could complete this code point: decoding then fails for want of data only."""
    try:
        part.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def skip_partial(data: bytes) -> bytes:
    """Without the rest of a code point that the start of `data` cuts in two."""
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]


def truncate(raw: bytes, cap: int) -> tuple[bytes, bool]:
    """Valid UTF-8 of at most `cap` bytes of `raw`: all of it, or head, a line that counts the rest, tail."""
    if len(raw) <= cap:
        return raw.decode("utf-8", "replace").encode(), False
    if cap == 0:
        return b"", True
    tail_bytes = cap // 2
    head = cut_head(raw[: cap - tail_bytes])
    tail = skip_partial(raw[len(raw) - tail_bytes :])
    missing = len(raw) - len(head) - len(tail)
    text = head.decode("utf-8", "replace")
    text += f"\n... [{missing} bytes cut] ...\n" + tail.decode("utf-8", "replace")
    return text.encode(), True


def frame_result(call_id: int, raw_out: bytes, raw_err: bytes, cap: int) -> bytes:
    """The RESULT frame of a program that exited with 0."""
    out, out_cut = truncate(raw_out, cap)
    err, err_cut = truncate(raw_err, cap)
    flags = wire.STDOUT_TRUNCATED * out_cut | wire.STDERR_TRUNCATED * err_cut
    head = wire.RESULT_HEAD.pack(call_id, 0, 0, 0, flags, 1500, 900, 1 << 20, len(out), len(err), 0)
    return wire.frame(wire.RESULT, head + out + err)


def repair_by_hand(data: bytes) -> str:
    """`data.decode("utf-8", "replace")` without the interpreter's C: what Python itself would need."""
    parts: list[str] = []
    at, size = 0, len(data)
    while at < size:
        lead = data[at]
        if lead < 0x80:
            parts.append(chr(lead))
            at += 1
            continue
        length = _LENGTHS[lead]
        point, have = lead & (0x7F >> length), 1
        low, high = _SECOND.get(lead, (0x80, 0xBF))
        while have < length and at + have < size and low <= data[at + have] <= high:
            point = point << 6 | data[at + have] & 0x3F
            have += 1
            low, high = 0x80, 0xBF
        parts.append(chr(point) if length and have == length else "\ufffd")
        at += have
    return "".join(parts)


_LENGTHS = [0] * 0xC2 + [2] * 30 + [3] * 16 + [4] * 5 + [0] * 11
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
"""Bytes of a code point by its first, and the bounds of the second where they are narrower."""
