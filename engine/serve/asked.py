"""What clients send, field by field, as OpenAI names it. What would be silently lost is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rocstar.engine.serve.refusals import ServeRefusal

MAX_CHOICES = 128
MAX_STOPS = 16
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (-1, 0),
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
}
"""Fields that would change what is sampled, with the values that change nothing: any other is refused."""
KNOWN = frozenset({
    "user", "store", "parallel_tool_calls", "service_tier", "stream_options", "reasoning_effort", "verbosity",
    "prompt_cache_key", "safety_identifier", "skip_special_tokens", "stop_token_ids", "ignore_eos",
    "spaces_between_special_tokens", "include_stop_str_in_output", "chat_template_kwargs",
    *NEUTRAL,
})  # fmt: skip
"""Fields that need no mention: they have no part in what is generated here."""

Content = str | list[dict[str, Any]] | None
M = TypeVar("M", bound=BaseModel)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopList = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)]
Stops = Annotated[StopList | None, BeforeValidator(_listed)]


class AskedMessage(BaseModel):
    """A chat message as clients write it."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class Sampled(BaseModel):
    """What both kinds of generation take."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None

    @property
    def includes_usage(self) -> bool:
        """A stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def unknown(self) -> list[str]:
        """Names of the fields that nobody here reads."""
        return sorted(set(self.model_extra or {}) - KNOWN)


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class AskedChat(Sampled):
    """The body of /v1/chat/completions.

    With `prefix_token_ids` the conversation goes on by its tokens: these are what was said so far, and
    `messages` is what the user says next, or empty where it is the policy's turn.
    """

    messages: list[AskedMessage] = Field(default_factory=list)
    prefix_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    return_token_ids: bool = False
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class AskedCompletion(Sampled):
    """The body of /v1/completions: a text or ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None


class AskedTokens(BaseModel):
    """The body of /tokenize: a text, or messages as a prompt shows them."""

    model_config = ConfigDict(extra="ignore")

    prompt: str | None = None
    messages: list[AskedMessage] | None = None
    add_special_tokens: bool = False


class AskedFeedback(BaseModel):
    """The body of /v1/feedback."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=200)]
    index: Annotated[int, Field(ge=0, lt=MAX_CHOICES)] = 0
    thumb: Literal["up", "down"]
    comment: Annotated[str, Field(max_length=10_000)] = ""


def read(model: type[M], body: bytes) -> M:
    """The body as the model. ServeRefusal names the first field that is wrong."""
    try:
        asked = model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    for name, value in (asked.model_extra or {}).items():
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            raise ServeRefusal(
                f"{name} = {json.dumps(value)[:80]} is not done here: tokens are drawn from the plain "
                f"softmax; leave it out or give {json.dumps(NEUTRAL[name][0])}",
                param=name,
                code="unsupported_value",
            )
    return asked


def _refusal(error: ValidationError) -> ServeRefusal:
    problem = error.errors(include_url=False, include_context=False)[0]
    if problem["type"] == "json_invalid":
        return ServeRefusal(f"the body is not JSON: {problem['msg']}; send an object", code="invalid_json")
    # Of a union pydantic names its members too: they are no part of the field's name.
    where = [str(one) for one in problem["loc"] if isinstance(one, int) or str(one).isidentifier()]
    param = ".".join(where) or None
    given = json.dumps(problem["input"], default=str)[:80] if problem["type"] != "missing" else "missing"
    return ServeRefusal(
        f"{param or 'the body'} is {given}: {problem['msg']}", param=param, code="invalid_value"
    )


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


def check_chat(asked: AskedChat) -> None:
    """ServeRefusal for what no face does."""
    if not asked.messages and asked.prefix_token_ids is None:
        raise ServeRefusal("messages is empty; send what is asked", param="messages", code="invalid_value")
    form = (asked.response_format or {"type": "text"}).get("type")
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
    choice = asked.tool_choice
    if choice not in (None, "auto", "none"):
        raise ServeRefusal(
            f"tool_choice = {json.dumps(choice)[:80]}: a policy is not forced to call; give auto or none",
            param="tool_choice",
            code="unsupported_value",
        )
    tools = [_tool(tool, f"tools.{k}") for k, tool in enumerate(asked.tools or [])]
    return [] if choice == "none" else tools


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
