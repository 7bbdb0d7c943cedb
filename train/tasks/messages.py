"""Chat messages of a row in the form of chat templates. Unsupported content is refused by name.

    {"role", "content": text}         given as text, or as a list of text parts, which are joined
    {"role": "assistant", "content", "tool_calls": [{"type", "id"?, "function": {"name", "arguments"}}]}
                                      arguments: an object; JSON text is decoded here, once

Fields that are null are left out: Parquet gives every message the fields of all.
"""

import json
from collections.abc import Mapping
from typing import Any

from rocstar.engine.chat.callforms import decoded_arguments
from rocstar.train.recipe.errors import ConfigError

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def read_messages(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the messages of one row; `where` begins the message of a ConfigError."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} is no list of messages ({short_repr(value)})")
    return [_read_message(item, f"{where}: message {number}") for number, item in enumerate(value, 1)]


def _read_message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise ConfigError(f"{where} is no object with a 'role' ({short_repr(value)}); write role and content")
    given = {key: item for key, item in value.items() if item is not None}
    role = given["role"]
    if role not in ROLES:
        raise ConfigError(f"{where} has role {role!r}; it must be one of {', '.join(ROLES)}")
    where = f"{where} ({role})"
    for key in given:
        if key not in _FIELDS:
            raise ConfigError(
                f"{where} has a field {key!r} ({short_repr(given[key])}), which would be lost: a message may "
                f"have {', '.join(_FIELDS)}; remove it"
            )
    message = {"role": role, "content": ""}
    calls = _read_calls(given.get("tool_calls"), where) if given.get("tool_calls") else []
    if calls and role != "assistant":
        raise ConfigError(f"{where} has tool_calls; only an assistant calls tools")
    if "content" in given or not (calls or "reasoning_content" in given):
        message["content"] = _read_content(given.get("content"), where)
    for key in ("reasoning_content", "tool_call_id", "name"):
        if key in given:
            if not isinstance(given[key], str):
                raise ConfigError(f"{where}: {key} is {short_repr(given[key])}; it must be text")
            message[key] = given[key]
    return {**message, "tool_calls": calls} if calls else message


def _read_content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise ConfigError(f"{where} has no content; write its text (only an assistant that calls may be silent)")
    if not isinstance(value, list):
        raise ConfigError(f"{where}: content is {short_repr(value)}; it must be text, or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else None
            what = f"a part of type {kind!r}" if isinstance(kind, str) else short_repr(part)
            raise ConfigError(f'{where}: content has {what}; only text is trained on: {{"type": "text", "text": ...}}')
        texts.append(part["text"])
    return "".join(texts)


def _read_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: tool_calls is {short_repr(value)}; it must be a list")
    calls = []
    for call in value:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = decoded_arguments(function.get("arguments")) if isinstance(function, Mapping) else None
        try:
            is_json = isinstance(arguments, dict) and bool(json.dumps(arguments, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            is_json = False
        if not isinstance(name, str) or not is_json:
            raise ConfigError(
                f"{where}: the tool call {short_repr(call)} is not of the form "
                '{"function": {"name": text, "arguments": an object, or its JSON as text}}'
            )
        read = {"type": "function", "function": {"name": name, "arguments": arguments}}
        if isinstance(call.get("id"), str):
            read["id"] = call["id"]
        calls.append(read)
    return calls


def short_repr(value: Any) -> str:
    """Return a short form of a value for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
