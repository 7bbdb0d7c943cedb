"""The request bodies, field by field, with OpenAI's names. A field that would be ignored silently is refused.

openapi.py generates the description of the endpoint from these models. A field whose check in
request_builder.py gives a better message than a model has its schema as `WithJsonSchema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from rocstar.engine.gateway.dialects import fields
from rocstar.sandbox.http.errors import RequestError

AGENT, RAW = "rocstar-agent", "rocstar-raw"
MODELS = (AGENT, RAW)
"""The names under which a model is served: with its own tools, or without."""

MAX_CHOICES = 128
MAX_STOPS = 16

_READ = ("n", "top_logprobs")
"""Fields of the table that requests have with other values, too."""
NEUTRAL = {**{name: values for name, values in fields.NEUTRAL.items() if name not in _READ}, "suffix": ("",)}
"""Fields that would change the sampling, with their neutral values; other values are rejected."""

KNOWN = frozenset({
    "user", "store", "parallel_tool_calls", "service_tier", "stream_options", "reasoning_effort", "verbosity",
    "prompt_cache_key", "safety_identifier", "skip_special_tokens", "stop_token_ids", "ignore_eos",
    "add_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "chat_template_kwargs",
    *NEUTRAL,
})  # fmt: skip
"""Known fields without an effect here; the operator gets no note about them."""

Content = str | list[dict[str, Any]] | None
M = TypeVar("M", bound=BaseModel)


def _to_int(value: Any) -> Any:
    """JSON has one kind of number: some clients write 16.0 for 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_to_int)]
Limit = Annotated[int, Field(ge=1), BeforeValidator(_to_int)]
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES), BeforeValidator(_to_int)]
Choice = Annotated[int, Field(ge=0, lt=MAX_CHOICES), BeforeValidator(_to_int)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63), BeforeValidator(_to_int)]
NumTops = Annotated[
    int | None,
    Field(ge=0, le=1),
    BeforeValidator(lambda value: (1 if value else None) if isinstance(value, bool) else _to_int(value)),
]
"""Gateways send chat's `true` to completions, too."""
StopText = Annotated[str, Field(min_length=1)]
StopList = Annotated[list[StopText], Field(max_length=MAX_STOPS)]

Stops = Annotated[
    StopList | None,
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=StopText | StopList | None
    ),
]


def _nullable_schema(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, {"type": "null"}]})


def _object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT = {"type": "string"}
_PART = _object_schema("type", "text", type={"const": "text"}, text=_TEXT)
_ARGUMENTS = {"anyOf": [{"type": "object"}, {"type": "string", "description": "an object as JSON"}]}

_CALL = _object_schema("function", function=_object_schema("name", "arguments", name=_TEXT, arguments=_ARGUMENTS))

_FUNCTION = _object_schema("name", name={"type": "string", "minLength": 1}, parameters={"type": "object"})
_TOOL = _object_schema("type", "function", type={"const": "function"}, function=_FUNCTION)
_FORM = _object_schema("type", type={"const": "text"})
_ID = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_PROMPT = {"type": "string", "minLength": 1}

_PROMPTS: dict[str, Any] = {
    "anyOf": [_PROMPT, _IDS, *({"type": "array", "items": one, "minItems": 1} for one in (_PROMPT, _IDS))]
}


def _add_neutral_fields(schema: dict[str, Any]) -> None:
    """Name the fields of which one value is taken, and no other."""
    for name, values in NEUTRAL.items():
        schema["properties"][name] = {"enum": [*values, None], "description": "changes nothing"}


def _require_messages_or_tokens(schema: dict[str, Any]) -> None:
    """Require messages, or token ids to continue from."""
    _add_neutral_fields(schema)
    schema["anyOf"] = [
        {"required": ["messages"], "properties": {"messages": {"minItems": 1}}},
        {"required": ["prefix_token_ids"], "properties": {"prefix_token_ids": {"type": "array"}}},
    ]


class RequestMessage(BaseModel):
    """A chat message as clients write it. Only an assistant's may have no text, or calls."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={
            "if": {"properties": {"role": {"const": "assistant"}}, "required": ["role"]},
            "else": {
                "required": ["content"],
                "properties": {"content": {"not": {"type": "null"}}, "tool_calls": {"maxItems": 0}},
            },
        },
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Content, _nullable_schema(anyOf=[_TEXT, {"type": "array", "items": _PART}])] = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[dict[str, Any]] | None, _nullable_schema(type="array", items=_CALL)] = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(BaseModel):
    """The options of a stream."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class RequestTask(BaseModel):
    """The task of the question, for clients that do not send `metadata`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task_id: Annotated[str, Field(min_length=1)] | None = None
    answer: str | None = None


class GenerationRequest(BaseModel):
    """The fields of both kinds of generation."""

    # Texts of clients are no keys: pydantic would keep 16,384 of them.
    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=_add_neutral_fields, cache_strings="keys")

    model: Annotated[str, Field(json_schema_extra={"enum": list(MODELS)})]
    n: NumChoices | None = None
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    max_tokens: Limit | None = None
    seed: Seed | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    metadata: dict[str, str] | None = None
    rocstar: RequestTask | None = None

    @property
    def num_choices(self) -> int:
        """Answers that are wanted of each question."""
        return 1 if self.n is None else self.n

    @property
    def task_fields(self) -> Mapping[str, str]:
        """The task's fields of `metadata` and `rocstar`; the latter has priority."""
        payload = {} if self.rocstar is None else self.rocstar.model_dump(exclude_none=True)
        return {**(self.metadata or {}), **payload}


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions.

    With `prefix_token_ids` the conversation continues from these tokens, and `messages` has only the next
        user messages; it is empty if the policy continues.
    """

    model_config = ConfigDict(json_schema_extra=_require_messages_or_tokens)

    messages: list[RequestMessage] = Field(default_factory=list)
    prefix_token_ids: Annotated[list[TokenId] | None, Field(min_length=1)] = None
    max_completion_tokens: Limit | None = None
    tools: Annotated[list[dict[str, Any]] | None, _nullable_schema(type="array", items=_TOOL)] = None
    tool_choice: str | dict[str, Any] | None = None
    """`none` hides the client's tools. A policy cannot be forced to call: other values are as `auto`."""
    response_format: Annotated[dict[str, Any] | None, _nullable_schema(**_FORM)] = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None
    """Read for clients that send it; the list of likely tokens stays empty."""


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions: a text or ids, or a list of either."""

    prompt: Annotated[str | list[Whole] | list[str] | list[list[Whole]], WithJsonSchema(_PROMPTS)]
    echo: bool | None = None
    logprobs: NumTops = None


class TokenizeRequest(BaseModel):
    """The body of /tokenize: a text, or messages as a prompt shows them."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        },
    )

    prompt: str | None = None
    messages: Annotated[list[RequestMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool = False


class DetokenizeRequest(BaseModel):
    """The body of /detokenize."""

    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: list[TokenId]


class FeedbackRequest(BaseModel):
    """The body of /v1/feedback."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(min_length=1, max_length=200)]
    index: Choice = 0
    thumb: Literal["up", "down"]
    comment: Annotated[str, Field(max_length=10_000)] = ""


def unsupported(field: str, message: str) -> RequestError:
    """Return the error for a valid value that no served model supports."""
    return RequestError(message, field=field, kind="unsupported_value")


def parse_request(model: type[M], body: bytes) -> M:
    """Parse a body. Raises RequestError for the first invalid field."""
    try:
        request = model.model_validate_json(body)
    except ValidationError as error:
        raise _validation_error(error) from None
    for name, value in (request.model_extra or {}).items():
        if name not in NEUTRAL or value is None:
            continue
        neutral = NEUTRAL[name]  # as in JSON, true is not 1
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            raise unsupported(
                name,
                f"{name} = {json.dumps(value)[:80]} is not supported: tokens are sampled from the plain "
                f"softmax; leave it out or pass {json.dumps(neutral[0])}",
            )
    return request


def _validation_error(error: ValidationError) -> RequestError:
    problem = error.errors(include_url=False, include_context=False)[0]
    if problem["type"] == "json_invalid":
        return RequestError(f"the body is not JSON: {problem['msg']}; send an object", kind="invalid_json")
    # In the location of a union pydantic includes the member types, which are not part of the field's name.
    where = [
        str(one)
        for one in problem["loc"]
        if isinstance(one, int) or (one.isidentifier() and one not in ("str", "int"))
    ]
    param = ".".join(where) or None
    given = json.dumps(problem["input"], default=str)[:80] if problem["type"] != "missing" else "missing"
    return RequestError(f"{param or 'the body'} is {given}: {problem['msg']}", field=param or "", kind="invalid_value")
