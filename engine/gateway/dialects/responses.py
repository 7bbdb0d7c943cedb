"""OpenAI's /v1/responses. No answer is stored: each request has the whole history in `input`.

Items of one turn (reasoning, message, function calls) become one message. Tools of other kinds than `function`
are not shown to the policy.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from rocstar.engine.gateway.dialects import events
from rocstar.engine.gateway.dialects.events import named_event
from rocstar.engine.gateway.dialects.fields import Fields, join_assistants
from rocstar.engine.gateway.messages import FunctionCall, Message, Request, Role, SampledTurn
from rocstar.sandbox.http.errors import RequestError

PING = events.PING
error = events.error_object
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = ("input_text", "output_text", "text", "refusal")
_STORED = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that name something stored by the server."""


class _Parts(NamedTuple):
    """Names in the events of an item with one text: its field, its place, and the beginnings of two event types."""

    field: str
    place: str
    part: str
    text: str


_PARTS = {
    "reasoning": _Parts("summary", "summary_index", "reasoning_summary_part", "reasoning_summary_text"),
    "message": _Parts("content", "content_index", "content_part", "output_text"),
}


def read(given: Fields) -> Request:
    """Read a request. Raises RequestError."""
    for name in _STORED:
        if given.values.get(name):
            raise given.invalid(name, "no answer is stored here; send the whole history in input")
    messages = [] if not (text := given.get("instructions", str, "")) else [Message(role="system", text=text)]
    if not given.values.get("input"):
        raise given.invalid("input", "send a text or a list of items")
    is_text = isinstance(given.values["input"], str)
    messages += [Message(role="user", text=given.get("input", str, ""))] if is_text else given.each("input", _message)
    return Request(
        model=given.require("model", str),
        messages=join_assistants(messages),
        functions=given.functions("function", "parameters"),
        max_tokens=given.limit("max_output_tokens"),
        temperature=given.temperature(),
        is_streamed=given.get("stream", bool, False),
        ignored=given.ignored(),
    )


def _message(item: Fields) -> Message:
    match item.get("type", str, "message"):
        case "message":
            if (role := _ROLES.get(item.get("role", str, ""))) is None:
                raise item.invalid("role", f"send one of {', '.join(_ROLES)}")
            return Message(role=role, text=item.content("content", _TEXTS))
        case "reasoning":
            text = item.content("content", ("reasoning_text", "text"))
            return Message(role="assistant", reasoning=text or item.content("summary", ("summary_text",)))
        case "function_call":
            name, arguments = item.require("name", str), item.get("arguments", str, "")
            call = FunctionCall(id=item.require("call_id", str), name=name, arguments=arguments)
            return Message(role="assistant", calls=(call,))
        case "function_call_output":
            return Message(role="tool", text=item.content("output", _TEXTS), call_id=item.require("call_id", str))
    raise item.invalid("type", "send message, reasoning, function_call or function_call_output")


def write(sample: SampledTurn) -> dict[str, Any]:
    """Return the answer."""
    num_prompt, num_sampled = len(sample.prompt_ids), len(sample.generation.ids)
    status = "incomplete" if sample.finish == "length" else "completed"
    return {
        "id": f"resp_{sample.id}",
        "object": "response",
        "created_at": sample.created,
        "model": sample.request.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "output": list(_items(sample, status)),
        "parallel_tool_calls": True,
        "temperature": sample.request.temperature,
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in sample.request.functions],
        "top_p": 1.0,
        "usage": {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": sample.generation.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": num_sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_sampled,
        },
    }


def _items(sample: SampledTurn, status: str) -> Iterator[dict[str, Any]]:
    message, name = sample.message, sample.id
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        # Clients that keep no answers on the server send reasoning back only with encrypted content.
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": summary, "encrypted_content": "rocstar"}
    if message.text or not message.calls:
        part = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{name}", "status": status, "role": "assistant", "content": [part]}
    for k, call in enumerate(message.calls):
        item = {"type": "function_call", "id": f"fc_{name}_{k}", "call_id": call.id, "name": call.name}
        yield {**item, "arguments": call.arguments, "status": status}


def stream(sample: SampledTurn) -> Iterator[bytes]:
    """Yield the answer as events: each text has one delta."""
    whole, numbers = write(sample), count()

    def event(kind: str, **fields: Any) -> bytes:
        return named_event({"type": f"response.{kind}", "sequence_number": next(numbers), **fields})

    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for k, item in enumerate(whole["output"]):
        place, parts = {"item_id": item["id"], "output_index": k}, _PARTS.get(item["type"])
        if parts is None:
            yield event("output_item.added", output_index=k, item={**item, "arguments": "", "status": "in_progress"})
            yield event("function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"])
        else:
            (part,), place = item[parts.field], {**place, parts.place: 0}
            yield event("output_item.added", output_index=k, item={**item, parts.field: [], "status": "in_progress"})
            yield event(f"{parts.part}.added", **place, part={**part, "text": ""})
            yield event(f"{parts.text}.delta", **place, delta=part["text"], logprobs=[])
            yield event(f"{parts.text}.done", **place, text=part["text"], logprobs=[])
            yield event(f"{parts.part}.done", **place, part=part)
        yield event("output_item.done", output_index=k, item=item)
    yield event(whole["status"], response=whole)


def failed(problem: RequestError) -> bytes:
    """Return the last event of a stream that failed."""
    return named_event({**error(problem)["error"], **error(problem), "type": "error", "sequence_number": 0})
