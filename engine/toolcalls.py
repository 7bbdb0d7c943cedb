"""Parse the tool calls of one turn, Hermes style: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

A call that cannot be decoded is a ToolCall with `malformed` set: it is fed back and counted, never
executed. An opening tag without a closing one is such a call too (the original ends the trajectory).
"""

from __future__ import annotations

import json

from rocstar.engine.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


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
        value = json.loads(body)
    except json.JSONDecodeError as error:
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
    return ToolCall(name=name, arguments=arguments)


def _malformed(reason: str) -> ToolCall:
    return ToolCall(name=None, arguments=None, malformed=reason)
