"""Parse the tool calls of one turn, Hermes style: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

A call is the JSON behind its tag, whatever its strings contain: a tag within them is text. A tag that is not
closed and not followed by an object is a mention, no call. A call that cannot be decoded is a ToolCall with
`malformed` set: it is fed back and counted, never executed; so is one whose closing tag is missing (the
original ends the trajectory). What JSON leaves open is not guessed: a key written twice or a number JSON
cannot write makes a call malformed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rocstar.engine.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_DEPTH = 32
"""Deepest nesting of arguments: what is parsed here must be written to a record elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A call and the characters [start, end) that it takes, if `closed` its closing tag included."""

    start: int
    end: int
    closed: bool
    call: ToolCall


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Every call in the order written."""
    return tuple(written.call for written in _find(text))


def tool_call_spans(text: str) -> tuple[tuple[int, int], ...]:
    """Characters [start, end) of every call in the order written; one that was not closed reaches to the next
    one, or to the end of the text."""
    found = list(_find(text))
    edges = [*(written.start for written in found), len(text)]
    return tuple(
        (written.start, written.end if written.closed else following)
        for written, following in zip(found, edges[1:], strict=True)
    )


def without_tool_calls(text: str) -> str:
    """The text with every closed call cut out: what the policy said rather than did."""
    kept, end = [], 0
    for written in _find(text):
        if written.closed:
            kept.append(text[end : written.start])
            end = written.end
    return "".join([*kept, text[end:]])


def _find(text: str) -> Iterator[_Written]:
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        written = _call_at(text, start)
        if written is not None:
            yield written
        at = written.end if written is not None else start + len(OPEN)


def _call_at(text: str, start: int) -> _Written | None:
    """The call whose opening tag is at `start`; None for a mention."""
    inside = start + len(OPEN)
    decoded, end = _decode(text[inside:])
    next_tag, close = text.find(OPEN, inside + end), text.find(CLOSE, inside + end)
    closed = close >= 0 and (next_tag < 0 or close < next_tag)
    if not closed:
        if not text[inside:].lstrip().startswith("{"):
            return None
        after = inside + end
        return _Written(start=start, end=after, closed=False, call=_malformed(f"missing {CLOSE}"))
    if not isinstance(decoded, str) and text[inside + end : close].strip():
        decoded = f"Extra data behind the call: {text[inside + end : close].strip()[:20]!r}"
    call = _malformed(decoded) if isinstance(decoded, str) else _call_of(decoded.value)
    return _Written(start=start, end=close + len(CLOSE), closed=True, call=call)


@dataclass(frozen=True, slots=True)
class _Decoded:
    value: Any


def _decode(body: str) -> tuple[_Decoded | str, int]:
    """The JSON value at the start of a body and where it ends, or why there is none."""
    begins = len(body) - len(body.lstrip())
    try:
        value, end = _JSON.raw_decode(body, begins)
    except ValueError as error:  # not JSON, or an integer of more digits than Python converts
        return str(error), 0
    except RecursionError:
        return "nested too deeply", 0
    return _Decoded(value), end


def _call_of(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        return _malformed("the call is not a JSON object")
    for key in ("name", "arguments"):
        if key not in value:
            return _malformed(f"'{key}' is missing")
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str):
        return _malformed("'name' is not a string")
    if not isinstance(arguments, dict):
        return _malformed("'arguments' is not an object")
    if _is_deep(arguments):
        return _malformed("nested too deeply")
    return ToolCall(name=name, arguments=arguments)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is written twice in one object")
    return made


def _number(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _not_a_number(digits)


def _not_a_number(digits: str) -> float:
    raise ValueError(f"{digits[:20]} is not a number of JSON")


def _is_deep(arguments: dict[str, Any]) -> bool:
    level: list[Any] = [arguments]
    for _ in range(MAX_DEPTH):
        inner = [v for x in level for v in (x.values() if isinstance(x, dict) else x)]
        level = [v for v in inner if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def _malformed(reason: str) -> ToolCall:
    return ToolCall(name=None, arguments=None, malformed=reason)


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_not_a_number)
