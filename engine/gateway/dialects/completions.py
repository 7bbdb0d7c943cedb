"""OpenAI's /v1/completions of one prompt, a text or ids. A text is tokenised as it is, without a template."""

from collections.abc import Iterator
from typing import Any

from rocstar.engine.gateway.dialects import events
from rocstar.engine.gateway.dialects.chat import usage
from rocstar.engine.gateway.dialects.events import DONE, encode_event
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.messages import Request, SampledTurn

PING, error, failed = events.PING, events.error_object, events.failed
DEFAULT_TOKENS = 16
"""OpenAI's default limit."""


def read(given: Fields) -> Request:
    """Read a request. Raises RequestError."""
    prompt = given.values.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        given = Fields({**given.values, "prompt": prompt[0]})  # a list of one prompt
    is_text = isinstance(given.values.get("prompt"), str)
    options = Fields(given.get("stream_options", dict, {}), "stream_options")
    return Request(
        model=given.require("model", str),
        prompt_text=given.require("prompt", str) if is_text else None,
        prompt_ids=None if is_text else given.token_ids("prompt"),
        max_tokens=given.limit("max_tokens") or DEFAULT_TOKENS,
        temperature=given.temperature(),
        stops=given.texts("stop"),
        is_streamed=given.get("stream", bool, False),
        with_usage=options.get("include_usage", bool, False),
        with_logprobs=read_logprobs(given),
        with_token_ids=given.get("return_token_ids", bool, False),
        ignored=given.ignored(),
    )


def read_logprobs(given: Fields) -> bool:
    """Return whether log-probs are wanted. Gateways send chat's field to completions, too."""
    if isinstance(given.values.get("logprobs"), bool):
        return given.get("logprobs", bool, False)
    return given.get("logprobs", int, -1) >= 0


def write(sample: SampledTurn) -> dict[str, Any]:
    """Return the answer."""
    ids, logprobs, request = sample.generation.ids, sample.generation.logprobs, sample.request
    columns = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": list(logprobs)}
    choice = {
        "index": 0,
        "text": sample.message.text,
        "logprobs": columns if request.with_logprobs else None,
        "finish_reason": sample.finish,
    }
    if request.with_token_ids:
        choice |= {"token_ids": list(ids), "prompt_token_ids": list(sample.prompt_ids)}
    head = {"id": f"cmpl-{sample.id}", "object": "text_completion", "created": sample.created, "model": request.model}
    return {**head, "choices": [choice], "usage": usage(sample)}


def stream(sample: SampledTurn) -> Iterator[bytes]:
    """Yield the answer as one chunk."""
    whole = write(sample)
    counted = whole.pop("usage")
    yield encode_event(whole)
    if sample.request.with_usage:
        yield encode_event({**whole, "choices": [], "usage": counted})
    yield DONE
