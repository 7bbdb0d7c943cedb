"""The response bodies, field by field, for openapi.py.

response_stream.py and endpoint.py build the responses without these models, because they run for every token.
Tests compare real responses with the schemas of these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rocstar.engine.rollout.rollout import POLICY_TIMEOUT, TRAJECTORY_TIMEOUT
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import UNAUTHORIZED

FinishReasonName = Literal["stop", "length", "tool_calls"]


class ResponseBody(BaseModel):
    """An object that has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Problem(ResponseBody):
    """An error: the value, the reason and the fix."""

    message: str
    type: str
    param: str | None
    """The invalid field of the request."""
    code: str | None


class ErrorBody(ResponseBody):
    """An answer with a status of 400 or more."""

    error: Problem


class CalledFunction(ResponseBody):
    """A function, and its arguments as JSON."""

    name: str
    arguments: str


class CalledTool(ResponseBody):
    """A call for the client to make; `index` in chunks only."""

    index: int = 0
    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolUseEvent(ResponseBody):
    """The agent calls one of its own tools."""

    type: Literal["tool_use"]
    index: int
    """The choice."""
    id: str
    name: str | None
    arguments: dict[str, Any] | None


class ToolResultEvent(ResponseBody):
    """The result of the call with the same id."""

    type: Literal["tool_result"]
    index: int
    id: str
    name: str | None
    status: str
    is_error: bool
    content: str


ServerToolEvent = ToolUseEvent | ToolResultEvent


class Message(ResponseBody):
    """The content, thinking and calls of the policy."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str = ""
    tool_calls: list[CalledTool] = []
    server_tool_events: list[ServerToolEvent] = []


class ChatChoice(ResponseBody):
    """A choice of a response."""

    index: int
    message: Message
    logprobs: None
    finish_reason: FinishReasonName


class PromptDetails(ResponseBody):
    """Details of the prompt tokens."""

    cached_tokens: int


class Usage(ResponseBody):
    """Tokens by who wrote them: the policy's are `completion_tokens`, its tools' `tool_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    tool_tokens: int
    turns: int


class ServingFacts(ResponseBody):
    """The seed and task to reproduce the response, and its rewards."""

    seed: int
    task_id: str
    isolation: str = ""
    rewards: list[float] = []


class ChatCompletion(ResponseBody):
    """The answer of a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    rocstar: ServingFacts


class Delta(ResponseBody):
    """The new text and calls of a message."""

    role: Literal["assistant"] | None = None
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[CalledTool] = []


class ChatDelta(ResponseBody):
    """The new part of a choice."""

    index: int
    delta: Delta
    logprobs: None
    finish_reason: FinishReasonName | None


class ChatCompletionChunk(ResponseBody):
    """An event of a stream; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatDelta]
    server_tool_event: ServerToolEvent | None = None
    usage: Usage | None = None
    rocstar: ServingFacts | None = None


class LogprobColumns(ResponseBody):
    """Log-probs of log_softmax(logits / T), a token a place; null where there is none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class TextChoice(ResponseBody):
    """A completion of a prompt, or its next part."""

    index: int
    text: str
    logprobs: LogprobColumns | None
    finish_reason: FinishReasonName | None


class TextUsage(ResponseBody):
    """Tokens of prompts and continuations."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Seeded(ResponseBody):
    """The seed to reproduce the response."""

    seed: int


class TextCompletion(ResponseBody):
    """The continuations of every prompt, one prompt after the other."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: TextUsage
    rocstar: Seeded


class TextCompletionChunk(ResponseBody):
    """An event of a streamed completion; the last event is [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class Model(ResponseBody):
    """A name to ask for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    """Tokens of a prompt and its answer together."""


class ModelList(ResponseBody):
    """The served models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(ResponseBody):
    """Ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int | None


class Text(ResponseBody):
    """The text of ids."""

    prompt: str


class TokenizerInfo(ResponseBody):
    """The tokenizer's special tokens, and the chat template."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str


class Feedback(ResponseBody):
    """A verdict that was stored."""

    object: Literal["feedback"]
    id: str
    index: int
    thumb: Literal["up", "down"]


class Health(ResponseBody):
    """The server takes requests."""

    status: Literal["ok"]


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
_CODES = {UNAUTHORIZED: "invalid_api_key", "": None}
"""OpenAI's codes, for kinds that have another name there."""


def error_object(error: RequestError) -> dict[str, Any]:
    """Return the error in OpenAI's format."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = _CODES.get(error.kind, error.kind)
    return {"error": {"message": str(error), "type": kind, "param": error.field or None, "code": code}}


def conversation_error(kind: str, detail: str, *, retryable: bool) -> RequestError:
    """Return the error for a conversation that failed outside the policy."""
    if kind == "too_long":
        return RequestError(
            f"the conversation is too long for the engine: {detail}; send fewer messages or lower max_tokens",
            field="messages",
            kind="context_length_exceeded",
        )
    if kind == "bad_token":
        return RequestError(f"the model does not know an id: {detail}", field="prompt", kind=kind)
    if kind in ("deadline", TRAJECTORY_TIMEOUT, POLICY_TIMEOUT):
        return RequestError(
            f"the conversation exceeded its time limit: {detail}", status=504, kind="deadline"
        )
    if kind == "queue_timeout":
        return RequestError(f"no engine slot was free in time: {detail}", status=503, kind=kind)
    return RequestError(f"{kind}: {detail}", status=503 if retryable else 500, kind=kind)
