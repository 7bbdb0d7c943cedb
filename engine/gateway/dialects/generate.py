"""Tokens in, tokens out: vLLM's /inference/v1/generate at the root, as verifiers' training client asks for it
(renderers/client.py). The answer names each token by its id and has a log-prob for each."""

from collections.abc import Iterator
from typing import Any

from rocstar.engine.gateway.dialects import events
from rocstar.engine.gateway.dialects.chat import token_logprobs
from rocstar.engine.gateway.dialects.events import DONE, encode_event
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.messages import Request, SampledTurn

PING, error, failed = events.PING, events.error_object, events.failed


def read(given: Fields) -> Request:
    """Read a request. Raises RequestError."""
    sampling = Fields(given.get("sampling_params", dict, {}), "sampling_params")
    stop_ids = sampling.token_ids("stop_token_ids") if sampling.values.get("stop_token_ids") else ()
    sampling.names |= {"stop_token_ids", "logprobs", "prompt_logprobs", "skip_special_tokens", "detokenize"}
    return Request(
        model=given.get("model", str, ""),
        prompt_ids=given.token_ids("token_ids"),
        max_tokens=sampling.limit("max_tokens"),
        temperature=sampling.temperature(),
        stop_ids=stop_ids,
        stops=sampling.texts("stop"),
        is_streamed=given.get("stream", bool, False),
        ignored=(*given.ignored(), *sampling.ignored()),
    )


def write(sample: SampledTurn) -> dict[str, Any]:
    """Return the answer."""
    generation = sample.generation
    choice = {
        "index": 0,
        "token_ids": list(generation.ids),
        "logprobs": token_logprobs(generation),
        "finish_reason": sample.finish,
    }
    return {"request_id": sample.id, "prompt_token_ids": list(sample.prompt_ids), "choices": [choice]}


def stream(sample: SampledTurn) -> Iterator[bytes]:
    """Yield the answer as one chunk."""
    yield encode_event(write(sample))
    yield DONE
