"""What is answered, field by field, for the description of the endpoint (openapi.py).

The answers themselves are made in said.py and endpoint.py, without these models: they are on the way of every
token. Tests hold real answers against the schemas that come of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReasonName = Literal["stop", "length", "tool_calls"]


class ServedBody(BaseModel):
    """An object that has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Problem(ServedBody):
    """What is wrong: the value, the reason and the fix."""

    message: str
    type: str
    param: str | None
    """The field of the request that is wrong."""
    code: str | None


class RefusalBody(ServedBody):
    """An answer with a status of 400 or more."""

    error: Problem


class CalledFunction(ServedBody):
    """A function, and its arguments as JSON."""

    name: str
    arguments: str


class CalledTool(ServedBody):
    """A call that the client shall make; `index` in chunks only."""

    index: int = 0
    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolUseEvent(ServedBody):
    """The agent calls one of its own tools."""

    type: Literal["tool_use"]
    index: int
    """The choice."""
    id: str
    name: str | None
    arguments: dict[str, Any] | None


class ToolResultEvent(ServedBody):
    """What the call of the same id gave."""

    type: Literal["tool_result"]
    index: int
    id: str
    name: str | None
    status: str
    is_error: bool
    content: str


ServerToolEvent = ToolUseEvent | ToolResultEvent


class Message(ServedBody):
    """What the policy says, thinks and calls."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str = ""
    tool_calls: list[CalledTool] = []
    server_tool_events: list[ServerToolEvent] = []


class ChatChoice(ServedBody):
    """One of `n` answers."""

    index: int
    message: Message
    logprobs: None
    finish_reason: FinishReasonName


class PromptDetails(ServedBody):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(ServedBody):
    """Tokens by who wrote them: the policy's are `completion_tokens`, its tools' `tool_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    tool_tokens: int
    turns: int


class ServingFacts(ServedBody):
    """How to have the answer again, and what became of it."""

    seed: int
    task_id: str
    isolation: str = ""
    rewards: list[float] = []


class ChatCompletion(ServedBody):
    """The answer of a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    rocstar: ServingFacts


class Delta(ServedBody):
    """What was added to a message."""

    role: Literal["assistant"] | None = None
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[CalledTool] = []


class ChatDelta(ServedBody):
    """What was added to a choice."""

    index: int
    delta: Delta
    logprobs: None
    finish_reason: FinishReasonName | None


class ChatCompletionChunk(ServedBody):
    """One event of a streamed answer; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatDelta]
    server_tool_event: ServerToolEvent | None = None
    usage: Usage | None = None
    rocstar: ServingFacts | None = None


class LogprobColumns(ServedBody):
    """Log-probs of log_softmax(logits / T), a token a place; null where there is none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class TextChoice(ServedBody):
    """One continuation of one prompt, or what was added to it."""

    index: int
    text: str
    logprobs: LogprobColumns | None
    finish_reason: FinishReasonName | None


class TextUsage(ServedBody):
    """Tokens of prompts and continuations."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Seeded(ServedBody):
    """How to have the answer again."""

    seed: int


class TextCompletion(ServedBody):
    """The continuations of every prompt, one prompt after the other."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: TextUsage
    rocstar: Seeded


class TextCompletionChunk(ServedBody):
    """One event of a streamed continuation; the last event is [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class Model(ServedBody):
    """A name to ask for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    """Tokens of a prompt and its answer together."""


class ModelList(ServedBody):
    """All names."""

    object: Literal["list"]
    data: list[Model]


class Tokens(ServedBody):
    """Ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int | None


class Text(ServedBody):
    """The text of ids."""

    prompt: str


class TokenizerInfo(ServedBody):
    """The tokenizer's special tokens, and the chat template."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str


class Feedback(ServedBody):
    """A verdict that was stored."""

    object: Literal["feedback"]
    id: str
    index: int
    thumb: Literal["up", "down"]


class Health(ServedBody):
    """The server takes requests."""

    status: Literal["ok"]
