"""OpenAI's /v1/chat/completions, with vLLM's fields of token ids: `return_token_ids`, `prompt_token_ids` at the
top level, `token_ids` of the choice. The stop token is in `token_ids` and in `logprobs`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rocstar.engine.gateway.dialects import events
from rocstar.engine.gateway.dialects.events import DONE, encode_event
from rocstar.engine.gateway.dialects.fields import Fields, join_assistants
from rocstar.engine.gateway.messages import FunctionCall, Message, Request, Role, SampledTurn
from rocstar.engine.inference.base import Generation

PING, error, failed = events.PING, events.error_object, events.failed
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

_REASONING = ("reasoning_content", "reasoning")


def read(given: Fields) -> Request:
    """Read a request. Raises RequestError."""
    messages = given.each("messages", read_message)
    if not messages:
        raise given.invalid("messages", "send at least one message")
    options = Fields(given.get("stream_options", dict, {}), "stream_options")
    return Request(
        model=given.require("model", str),
        messages=join_assistants(messages),
        functions=given.functions("function", "parameters"),
        max_tokens=given.limit("max_completion_tokens", "max_tokens"),
        temperature=given.temperature(),
        stops=given.texts("stop"),
        is_streamed=given.get("stream", bool, False),
        with_usage=options.get("include_usage", bool, False),
        with_logprobs=given.get("logprobs", bool, False),
        with_token_ids=given.get("return_token_ids", bool, False),
        ignored=given.ignored(),
    )


def read_message(entry: Fields) -> Message:
    """Read one message. Raises RequestError."""
    role = _ROLES.get(entry.get("role", str, ""))
    if role is None:
        raise entry.invalid("role", f"send one of {', '.join(_ROLES)}")
    values, calls = entry.values, []
    for call in entry.objects("tool_calls") if role == "assistant" and values.get("tool_calls") else ():
        made = Fields(call.get("function", dict, {}), call.path("function"))
        arguments = made.values.get("arguments")
        arguments = json.dumps(arguments) if isinstance(arguments, dict) else made.get("arguments", str, "{}")
        calls.append(FunctionCall(id=call.get("id", str, ""), name=made.require("name", str), arguments=arguments))
    return Message(
        role=role,
        text=entry.content("content", ("text", "refusal")),
        reasoning=next((entry.get(name, str, "") for name in _REASONING if values.get(name)), ""),
        calls=tuple(calls),
        call_id=entry.get("tool_call_id", str, "") if role == "tool" else "",
    )


def token_logprobs(generation: Generation) -> dict[str, Any]:
    """Return the log-probs in the order of the ids. Tokens are named by their ids."""
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
        ]
    }


def usage(sample: SampledTurn) -> dict[str, Any]:
    """Return the tokens of a sample."""
    num_prompt, num_sampled = len(sample.prompt_ids), len(sample.generation.ids)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
        "prompt_tokens_details": {"cached_tokens": sample.generation.cached_tokens},
    }


def write(sample: SampledTurn) -> dict[str, Any]:
    """Return the answer."""
    message = {"role": "assistant", "content": sample.message.text or (None if sample.message.calls else "")}
    choice = {"index": 0, "message": {**message, **_extras(sample)}, **_ids(sample), "finish_reason": sample.finish}
    return {**_head(sample, "chat.completion"), "choices": [choice], "usage": usage(sample), **_prompt_ids(sample)}


def stream(sample: SampledTurn) -> Iterator[bytes]:
    """Yield the answer as chunks: the role, the whole message with the ids, the end."""
    head = _head(sample, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None, **fields: Any) -> bytes:
        return encode_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **fields}]})

    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    yield encode_event({**head, "choices": [opening], **_prompt_ids(sample)})
    extras, ids = _extras(sample), _ids(sample)
    calls = [{"index": k, **call} for k, call in enumerate(extras.pop("tool_calls", ()))]
    for delta in (extras, {"content": sample.message.text}, {"tool_calls": calls}):
        if any(delta.values()):
            yield chunk(delta, **ids)
            ids = {}
    yield chunk({}, sample.finish, **ids)
    if sample.request.with_usage:
        yield encode_event({**head, "choices": [], "usage": usage(sample)})
    yield DONE


def _head(sample: SampledTurn, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{sample.id}", "object": kind, "created": sample.created, "model": sample.request.model}


def _extras(sample: SampledTurn) -> dict[str, Any]:
    """Return the fields of the message beside its content."""
    message = sample.message
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    reasoning = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return {**reasoning, "tool_calls": calls} if calls else dict(reasoning)


def _ids(sample: SampledTurn) -> dict[str, Any]:
    """Return the fields of the sampled ids, as asked for."""
    found: dict[str, Any] = {"logprobs": token_logprobs(sample.generation) if sample.request.with_logprobs else None}
    return {**found, "token_ids": list(sample.generation.ids)} if sample.request.with_token_ids else found


def _prompt_ids(sample: SampledTurn) -> dict[str, Any]:
    return {"prompt_token_ids": list(sample.prompt_ids)} if sample.request.with_token_ids else {}
