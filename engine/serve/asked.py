"""What clients send, field by field, as OpenAI names it. What would be silently lost is refused by name.

The description of the endpoint (openapi.py) is generated from these models. What checked.py looks at,
because it can name the mistake better than a model would, stands at its field as `WithJsonSchema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from rocstar.engine.serve.refusals import ServeRefusal

AGENT, RAW = "rocstar-agent", "rocstar-raw"
MODELS = (AGENT, RAW)
"""The names under which a model is served: with its own tools, or without."""
MAX_CHOICES = 128
MAX_STOPS = 16
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
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


def _whole(value: Any) -> Any:
    """JSON has one kind of number: some clients write 16.0 for 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Limit = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES), BeforeValidator(_whole)]
Choice = Annotated[int, Field(ge=0, lt=MAX_CHOICES), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63), BeforeValidator(_whole)]
NumTops = Annotated[int, Field(ge=0, le=1), BeforeValidator(_whole)]
StopText = Annotated[str, Field(min_length=1)]
StopList = Annotated[list[StopText], Field(max_length=MAX_STOPS)]
Stops = Annotated[
    StopList | None, BeforeValidator(_listed, json_schema_input_type=StopText | StopList | None)
]


def _nullable(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, {"type": "null"}]})


def _described(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT = {"type": "string"}
_PART = _described("type", "text", type={"const": "text"}, text=_TEXT)
_ARGUMENTS = {"anyOf": [{"type": "object"}, {"type": "string", "description": "an object as JSON"}]}
_CALL = _described("function", function=_described("name", "arguments", name=_TEXT, arguments=_ARGUMENTS))
_FUNCTION = _described("name", name={"type": "string", "minLength": 1}, parameters={"type": "object"})
_TOOL = _described("type", "function", type={"const": "function"}, function=_FUNCTION)
_FORM = _described("type", type={"const": "text"})
_ID = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_PROMPT = {"type": "string", "minLength": 1}
_PROMPTS: dict[str, Any] = {
    "anyOf": [_PROMPT, _IDS, *({"type": "array", "items": one, "minItems": 1} for one in (_PROMPT, _IDS))]
}


def _with_neutral(schema: dict[str, Any]) -> None:
    """Name the fields of which one value is taken, and no other."""
    for name, values in NEUTRAL.items():
        schema["properties"][name] = {"enum": [*values, None], "description": "changes nothing"}


def _with_words_or_tokens(schema: dict[str, Any]) -> None:
    """Ask for messages where no tokens stand in for them."""
    _with_neutral(schema)
    schema["anyOf"] = [
        {"required": ["messages"], "properties": {"messages": {"minItems": 1}}},
        {"required": ["prefix_token_ids"], "properties": {"prefix_token_ids": {"type": "array"}}},
    ]


class AskedMessage(BaseModel):
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
    content: Annotated[Content, _nullable(anyOf=[_TEXT, {"type": "array", "items": _PART}])] = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[dict[str, Any]] | None, _nullable(type="array", items=_CALL)] = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class AskedTask(BaseModel):
    """What the question is as a task, for clients that keep `metadata` to themselves."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task_id: Annotated[str, Field(min_length=1)] | None = None
    answer: str | None = None


class Sampled(BaseModel):
    """What both kinds of generation take."""

    # Texts of clients are no keys: pydantic would keep 16,384 of them.
    model_config = ConfigDict(
        extra="allow", strict=True, json_schema_extra=_with_neutral, cache_strings="keys"
    )

    model: Annotated[str, Field(json_schema_extra={"enum": list(MODELS)})]
    n: NumChoices | None = None
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    max_tokens: Limit | None = None
    seed: Seed | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None
    rocstar: AskedTask | None = None

    @property
    def num_choices(self) -> int:
        """Answers that are wanted of each question."""
        return 1 if self.n is None else self.n

    @property
    def includes_usage(self) -> bool:
        """A stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def about(self) -> Mapping[str, str]:
        """What is told of the task, of `metadata` and of `rocstar`, which comes first."""
        told = {} if self.rocstar is None else self.rocstar.model_dump(exclude_none=True)
        return {**(self.metadata or {}), **told}

    def unknown(self) -> list[str]:
        """Names of the fields that nobody here reads."""
        return sorted(set(self.model_extra or {}) - KNOWN)


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class AskedChat(Sampled):
    """The body of /v1/chat/completions.

    With `prefix_token_ids` the conversation goes on by its tokens: these are what was said so far, and
    `messages` is what the user says next, or empty where it is the policy's turn.
    """

    model_config = ConfigDict(json_schema_extra=_with_words_or_tokens)

    messages: list[AskedMessage] = Field(default_factory=list)
    prefix_token_ids: Annotated[list[TokenId] | None, Field(min_length=1)] = None
    return_token_ids: bool = False
    max_completion_tokens: Limit | None = None
    tools: Annotated[list[dict[str, Any]] | None, _nullable(type="array", items=_TOOL)] = None
    tool_choice: Annotated[str | dict[str, Any] | None, _nullable(enum=["auto", "none"])] = None
    response_format: Annotated[dict[str, Any] | None, _nullable(**_FORM)] = None
    logprobs: Annotated[bool | None, _nullable(const=False)] = None
    top_logprobs: Annotated[Whole | None, _nullable(const=0)] = None


class AskedCompletion(Sampled):
    """The body of /v1/completions: a text or ids, or a list of either."""

    prompt: Annotated[str | list[Whole] | list[str] | list[list[Whole]], WithJsonSchema(_PROMPTS)]
    echo: bool | None = None
    logprobs: NumTops | None = None


class AskedTokens(BaseModel):
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
    messages: Annotated[list[AskedMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool = False


class AskedText(BaseModel):
    """The body of /detokenize."""

    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: list[TokenId]


class AskedFeedback(BaseModel):
    """The body of /v1/feedback."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(min_length=1, max_length=200)]
    index: Choice = 0
    thumb: Literal["up", "down"]
    comment: Annotated[str, Field(max_length=10_000)] = ""


def read(model: type[M], body: bytes) -> M:
    """The body as the model. ServeRefusal names the first field that is wrong."""
    try:
        asked = model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    for name, value in (asked.model_extra or {}).items():
        if name in NEUTRAL and value is not None and not _is_one_of(value, NEUTRAL[name]):
            raise ServeRefusal(
                f"{name} = {json.dumps(value)[:80]} is not done here: tokens are drawn from the plain "
                f"softmax; leave it out or give {json.dumps(NEUTRAL[name][0])}",
                param=name,
                code="unsupported_value",
            )
    return asked


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """As JSON compares: true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _refusal(error: ValidationError) -> ServeRefusal:
    problem = error.errors(include_url=False, include_context=False)[0]
    if problem["type"] == "json_invalid":
        return ServeRefusal(f"the body is not JSON: {problem['msg']}; send an object", code="invalid_json")
    # Of a union pydantic names its members too: they are no part of the field's name.
    where = [
        str(one)
        for one in problem["loc"]
        if isinstance(one, int) or (one.isidentifier() and one not in ("str", "int"))
    ]
    param = ".".join(where) or None
    given = json.dumps(problem["input"], default=str)[:80] if problem["type"] != "missing" else "missing"
    return ServeRefusal(
        f"{param or 'the body'} is {given}: {problem['msg']}", param=param, code="invalid_value"
    )
