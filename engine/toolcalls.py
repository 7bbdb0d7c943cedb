"""Parse the tool calls of one turn, Hermes style: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

A call that cannot be decoded is a ToolCall with `malformed` set: it is fed back and counted, never
executed. An opening tag without a closing one is such a call too (the original ends the trajectory). What
JSON leaves open is not guessed: a key written twice or a number JSON cannot write makes a call malformed.
"""

from __future__ import annotations

import json
import math
from typing import Any

from rocstar.engine.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_DEPTH = 32
"""Deepest nesting of arguments: what is parsed here must be written to a record elsewhere."""


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Every call in the order written. Text without an opening tag has none."""
    calls = []
    _, *rest = text.split(OPEN)
    for part in rest:
        body, closed, _ = part.partition(CLOSE)
        calls.append(_parse_call(body) if closed else _malformed(f"missing {CLOSE}"))
    return tuple(calls)


def _parse_call(body: str) -> ToolCall:
    try:
        value = _JSON.decode(body)
    except ValueError as error:  # not JSON, or an integer of more digits than Python converts
        return _malformed(str(error))
    except RecursionError:
        return _malformed("nested too deeply")
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
