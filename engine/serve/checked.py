"""What a request means: its limits, messages and tools in the forms that the engine takes.

ServeRefusal names what cannot be kept. The schemas of these forms stand at the fields in asked.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rocstar.engine.serve.asked import AskedChat, AskedMessage, AskedTokens, Content
from rocstar.engine.serve.refusals import ServeRefusal


def max_tokens_of(asked: AskedChat) -> int | None:
    """The limit that was asked for, under whichever name. ServeRefusal for two limits."""
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ServeRefusal(
            f"max_tokens = {old} and max_completion_tokens = {new}: give one limit",
            param="max_completion_tokens",
            code="invalid_value",
        )
    return old if new is None else new


def check_tokens(asked: AskedTokens) -> None:
    """ServeRefusal unless there is one thing to encode."""
    if (asked.prompt is None) == (asked.messages is None):
        raise ServeRefusal("give prompt or messages, one of them", param="prompt")


def check_chat(asked: AskedChat) -> None:
    """ServeRefusal for what no face does."""
    if not asked.messages and asked.prefix_token_ids is None:
        raise ServeRefusal("messages is empty; send what is asked", param="messages", code="invalid_value")
    form = "text" if asked.response_format is None else asked.response_format.get("type")
    if form != "text":
        raise ServeRefusal(
            f"response_format.type = {json.dumps(form)[:80]} is not done here: the policy writes as it was "
            "trained to; leave it out or give text",
            param="response_format",
            code="unsupported_value",
        )
    if asked.logprobs or asked.top_logprobs:
        raise ServeRefusal(
            "logprobs are given by /v1/completions, and stand in the records; leave them out here",
            param="logprobs" if asked.logprobs else "top_logprobs",
            code="unsupported_value",
        )
    if asked.tool_choice not in (None, "auto", "none"):
        raise ServeRefusal(
            f"tool_choice = {json.dumps(asked.tool_choice)[:80]}: a policy is not forced to call; give auto "
            "or none",
            param="tool_choice",
            code="unsupported_value",
        )


def messages_of(asked: list[AskedMessage]) -> list[dict[str, Any]]:
    """Messages in the form that chat templates take. ServeRefusal names the one that cannot be kept."""
    return [_message(message, f"messages.{k}") for k, message in enumerate(asked)]


def _message(given: AskedMessage, where: str) -> dict[str, Any]:
    # The templates know `system`; OpenAI's newer name says the same.
    role = "system" if given.role == "developer" else given.role
    message: dict[str, Any] = {"role": role, "content": _text(given.content, f"{where}.content")}
    if given.tool_calls:
        if role != "assistant":
            raise ServeRefusal(
                f"{where}.tool_calls: only an assistant calls tools", param=f"{where}.tool_calls"
            )
        message["tool_calls"] = [
            _call(call, f"{where}.tool_calls.{k}") for k, call in enumerate(given.tool_calls)
        ]
    elif given.content is None and role != "assistant":
        raise ServeRefusal(f"{where}.content is missing; write its text", param=f"{where}.content")
    if given.reasoning_content:
        message["reasoning_content"] = given.reasoning_content
    if given.tool_call_id is not None:
        message["tool_call_id"] = given.tool_call_id
    if given.name is not None:
        message["name"] = given.name
    return message


def _text(content: Content, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for k, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = json.dumps(part.get("type"), default=str)[:80]
            raise ServeRefusal(
                f"{where}.{k} is a part of type {kind}; only text is read here", param=f"{where}.{k}"
            )
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ServeRefusal(
            f'{where} is not of the form {{"function": {{"name": text, "arguments": an object as JSON}}}}',
            param=where,
        )
    return {
        "type": "function",
        "id": str(call.get("id") or ""),
        "function": {"name": name, "arguments": arguments},
    }


def functions_of(asked: AskedChat) -> list[dict[str, Any]]:
    """The client's own tools, in the form that templates take; none where it wants no call."""
    tools = [_tool(tool, f"tools.{k}") for k, tool in enumerate(asked.tools or [])]
    return [] if asked.tool_choice == "none" else tools


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise ServeRefusal(f'{where} is not of the form {{"type": "function", "function": ...}}', param=where)
    name, parameters = function.get("name"), function.get("parameters", {"type": "object", "properties": {}})
    if not isinstance(name, str) or not name or not isinstance(parameters, Mapping):
        raise ServeRefusal(
            f"{where}.function needs a name and the JSON schema of its parameters", param=f"{where}.function"
        )
    described = str(function.get("description") or "")
    return {
        "type": "function",
        "function": {"name": name, "description": described, "parameters": dict(parameters)},
    }
