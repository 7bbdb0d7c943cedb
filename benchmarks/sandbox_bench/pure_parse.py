"""Truncation, UTF-8 repair and framing of results in Python: what the C++ is measured against.

    raw output of a child -> head + marker + tail -> valid UTF-8 -> frame | stream | wire.PythonReader

Written as one would who had no C++: slices, `bytes.decode`, `struct` and nothing per byte. The marker, and
what of head and tail is left where their repair is too long, are as in csrc/sandbox/capture.cpp, so that both
sides' answers can be compared.
"""

from __future__ import annotations

import codecs

from rocstar.sandbox.pool import wire

REPLACEMENT_BYTES = len("\ufffd".encode())

_bad: list[tuple[int, int]] = []
"""Of the bytes that are being decoded: the codec tells of bad parts by a handler alone."""


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


def bad_parts(data: bytes) -> list[tuple[int, int]]:
    """Where those begin and end that a repair replaces."""
    _bad.clear()
    data.decode("utf-8", "noted")
    return list(_bad)


def _note(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    _bad.append((error.start, error.end))
    return "", error.end


codecs.register_error("noted", _note)


def fitting_prefix(data: bytes, most: int) -> bytes:
    """The longest part from the start whose repair is at most `most` bytes long."""
    at = size = 0
    for begin, end in [*bad_parts(data), (len(data), len(data))]:
        if size + begin - at > most:
            cut = at + most - size
            while data[cut] & 0xC0 == 0x80:
                cut -= 1
            return data[:cut]
        size += begin - at + REPLACEMENT_BYTES
        if size > most:
            return data[:begin]
        at = end
    return data


def fitting_suffix(data: bytes, most: int) -> bytes:
    """The longest part to the end whose repair is at most `most` bytes long."""
    at, size = len(data), 0
    for begin, end in reversed([(0, 0), *bad_parts(data)]):
        if size + at - end > most:
            cut = at - (most - size)
            while cut < at and data[cut] & 0xC0 == 0x80:
                cut += 1
            return data[cut:]
        size += at - end + REPLACEMENT_BYTES
        if size > most:
            return data[end:]
        at = begin
    return data


def truncate(raw: bytes, cap: int) -> tuple[bytes, bool]:
    """Valid UTF-8 of `raw`, of at most `cap` bytes: all of it, or head, a line that counts the rest, tail."""
    head_cap, tail_cap = cap - cap // 2, cap // 2
    if len(raw) <= cap:
        whole = raw.decode("utf-8", "replace").encode()
        if len(whole) <= cap:
            return whole, False
        head = fitting_prefix(raw, head_cap)
        tail = fitting_suffix(raw[len(head) :], tail_cap)
    elif cap == 0:
        return b"", True
    else:
        head = fitting_prefix(cut_head(raw[:head_cap]), head_cap)
        tail = fitting_suffix(skip_partial(raw[len(raw) - tail_cap :]), tail_cap)
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
