"""The request and answer formats of /v1/completions endpoints.

    form          prompt  an answer has                             seen of
    SENT_IDS      ids     `token_ids`, with their log-probs         vLLM, SGLang
    SPELLED_IDS   ids     log-probs with id and text of a token     llama.cpp
    TEXT          text    text alone                                others

Every form asks for the model's whole distribution: servers have settings of their own, and vLLM those of the
model's generation_config.json, for whatever a request leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rocstar.engine.inference.base import InferenceError, StopReason
from rocstar.engine.inference.openai_stream import (
    ChoiceIds,
    Codec,
    Scored,
    SentIds,
    SpelledIds,
    StreamedChoice,
    WordIds,
)

STANDARD: Mapping[str, Any] = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""The settings of OpenAI's API that change nothing."""
NEUTRAL: Mapping[str, Any] = {
    **STANDARD,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}
"""Those of servers beyond it, too: -1 is every token to all of them, the last two are one thing's names."""
STREAMED: Mapping[str, Any] = {"stream": True}
STREAMED_WITH_USAGE: Mapping[str, Any] = {**STREAMED, "stream_options": {"include_usage": True}}
"""The last event has the number of tokens: for text, the only sign that the server truncated it."""
ENDS: Mapping[str, StopReason] = {"stop": StopReason.stop, "length": StopReason.length}
"""Any other reason (an abort, an error, a filter) is of the server, and no end of the policy's."""


class EndpointForm(StrEnum):
    """The formats that an endpoint accepts and returns."""

    SENT_IDS = "ids"
    SPELLED_IDS = "ids with their text"
    TEXT = "text"


def form_of(choice: Mapping[str, Any]) -> EndpointForm:
    """The form of an endpoint that answered a prompt of ids with this."""
    if isinstance(choice.get("token_ids"), list):
        return EndpointForm.SENT_IDS
    content = (choice.get("logprobs") or {}).get("content")
    first = content[0] if isinstance(content, list) and content else None
    is_spelled = isinstance(first, dict) and {"id", "bytes", "logprob"} <= first.keys()
    return EndpointForm.SPELLED_IDS if is_spelled else EndpointForm.TEXT


def asked(
    form: EndpointForm,
    ids: Sequence[int],
    stop_ids: frozenset[int],
    codec: Codec | None,
    neutral: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a request that depend on its form."""
    if form is EndpointForm.SENT_IDS:
        return {
            **neutral,
            "prompt": list(ids),
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(stop_ids),
            "skip_special_tokens": False,
        }
    assert codec is not None, "a form with text needs a codec"
    texts = {"stop": [codec.decode([token]) for token in sorted(stop_ids)]} if stop_ids else {}
    if form is EndpointForm.SPELLED_IDS:
        return {**neutral, **texts, "prompt": list(ids), "logprobs": 1}
    return {**neutral, **texts, "prompt": codec.decode(ids)}


def ids_of(form: EndpointForm, codec: Codec | None, *, with_logprobs: bool) -> ChoiceIds:
    """Return the converter from one answer to ids."""
    if form is EndpointForm.SENT_IDS:
        return SentIds(with_logprobs=with_logprobs)
    assert codec is not None, "a form with text needs a codec"
    if form is EndpointForm.SPELLED_IDS:
        return SpelledIds(codec, with_logprobs=with_logprobs)
    return WordIds(codec)


def read(
    form: EndpointForm, choice: StreamedChoice, most: int, stop_ids: frozenset[int]
) -> tuple[Scored, StopReason]:
    """The tokens of an answer that has ended, the stop token with them; of more than `most` the first ones,
    as `length`. One that ended as `stop` with another token ended at the model's own end of text.

    ValueError for one that does not add up; InferenceError(too_long) for one that the server cut.
    """
    if choice.finish is None or choice.finish not in ENDS:
        raise ValueError(f"it ended as {choice.finish!r}")
    finish, scored = ENDS[choice.finish], choice.scored()
    written = len(scored) if form is EndpointForm.SENT_IDS else choice.counted
    if finish is StopReason.length and written is not None and written < most:
        detail = f"the server ended at {written} of {most} tokens: its context or its memory for it is full"
        raise InferenceError("too_long", detail, retryable=False)
    ends_in_stop = bool(scored) and scored[-1][0] in stop_ids
    if form is EndpointForm.SENT_IDS:
        if not scored or (ends_in_stop and finish is StopReason.length) or len(scored) > most:
            raise ValueError(f"finish {choice.finish!r} with {len(scored)} of {most} ids")
        return scored, finish
    # A stop text is left out, and a turn ends with the first of the tokens it may mean.
    is_whole = form is EndpointForm.SPELLED_IDS and len(scored) == choice.counted
    if finish is StopReason.stop and not ends_in_stop and not is_whole:
        scored = [*scored, (min(stop_ids), math.nan)]
    # A text encoded again may have more tokens than were sampled: a truncated one has not ended.
    return (scored, finish) if len(scored) <= most else (scored[:most], StopReason.length)
