"""Anthropic's /v1/messages and /v1/messages/count_tokens.

Blocks of one message become messages: each tool result is one, and adjacent texts are one. `cache_control`,
signatures, redacted thinking and the tools of Anthropic's servers are dropped.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rocstar.engine.gateway.dialects.events import named_event
from rocstar.engine.gateway.dialects.fields import Fields, join_assistants
from rocstar.engine.gateway.messages import FunctionCall, Message, Request, Role, SampledTurn
from rocstar.sandbox.http.errors import RequestError

PING = named_event({"type": "ping"})
SIGNATURE = "rocstar"
"""The signature of each thinking block: clients send it back and cannot check it."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def read(given: Fields) -> Request:
    """Read a request of either route. Raises RequestError."""
    messages = [] if not (system := given.content("system", ("text",))) else [Message(role="system", text=system)]
    for made in given.each("messages", lambda entry: join_assistants(_messages(entry))):
        messages += made
    if not given.values.get("messages"):
        raise given.invalid("messages", "send at least one message")
    return Request(
        model=given.require("model", str),
        messages=join_assistants(messages),
        functions=given.functions("custom", "input_schema"),
        max_tokens=given.limit("max_tokens"),
        temperature=given.temperature(),
        stops=given.texts("stop_sequences"),
        is_streamed=given.get("stream", bool, False),
        ignored=given.ignored(),
    )


def _messages(entry: Fields) -> Iterator[Message]:
    """Yield the messages of one entry."""
    role = _ROLES.get(entry.get("role", str, ""))
    if role is None:
        raise entry.invalid("role", "send user or assistant")
    if isinstance(entry.values.get("content"), str):
        yield Message(role=role, text=entry.get("content", str, ""))
        return
    texts: list[str] = []
    for block in entry.objects("content"):
        match role, block.require("type", str):
            case "assistant", "thinking":
                yield Message(role="assistant", reasoning=block.get("thinking", str, ""))
            case "assistant", "redacted_thinking":
                pass
            case "assistant", "tool_use":
                arguments = json.dumps(block.get("input", dict, {}), ensure_ascii=False)
                call = FunctionCall(id=block.require("id", str), name=block.require("name", str), arguments=arguments)
                yield Message(role="assistant", calls=(call,))
            case "assistant", _:
                yield Message(role="assistant", text=block.part_text(("text",)))
            case _, "tool_result":
                if texts:
                    yield Message(role=role, text="".join(texts))
                    texts = []
                call_id, is_error = block.require("tool_use_id", str), block.get("is_error", bool, False)
                text = block.content("content", ("text",))
                yield Message(role="tool", text=text, call_id=call_id, is_error=is_error)
            case _:
                texts.append(block.part_text(("text",)))
    if texts or not entry.values.get("content"):
        yield Message(role=role, text="".join(texts))


def write(sample: SampledTurn) -> dict[str, Any]:
    """Return the answer."""
    message = sample.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE})
    if message.text or not message.calls:
        blocks.append({"type": "text", "text": message.text})
    for call in message.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return {
        "id": f"msg_{sample.id}",
        "type": "message",
        "role": "assistant",
        "model": sample.request.model,
        "content": blocks,
        "stop_reason": "stop_sequence" if sample.stopped_by else _STOP_REASONS[sample.finish],
        "stop_sequence": sample.stopped_by or None,
        "usage": {"input_tokens": len(sample.prompt_ids), "output_tokens": len(sample.generation.ids)},
    }


def stream(sample: SampledTurn) -> Iterator[bytes]:
    """Yield the answer as events: each block has one delta."""
    whole = write(sample)
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield named_event({"type": "message_start", "message": start})
    for k, block in enumerate(whole["content"]):
        empty, deltas = _pieces(block)
        yield named_event({"type": "content_block_start", "index": k, "content_block": empty})
        for delta in deltas:
            yield named_event({"type": "content_block_delta", "index": k, "delta": delta})
        yield named_event({"type": "content_block_stop", "index": k})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield named_event({"type": "message_delta", "delta": delta, "usage": usage})
    yield named_event({"type": "message_stop"})


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block without its content, and the deltas of the content."""
    match block["type"]:
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    arguments = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]


def error(problem: RequestError) -> dict[str, Any]:
    """Return the error object."""
    kind = _ERRORS.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(problem)}}


def failed(problem: RequestError) -> bytes:
    """Return the last event of a stream that failed."""
    return named_event(error(problem))
