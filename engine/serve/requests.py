"""The request bodies, with OpenAI's names. A field that would be ignored silently is refused.

schemas.json describes them; a test compares the described fields with those that are read.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rocstar.engine.gateway.dialects import chat, completions
from rocstar.engine.gateway.dialects.fields import NEUTRAL, Fields
from rocstar.engine.gateway.messages import Message, Request
from rocstar.sandbox.http.errors import RequestError

AGENT, RAW = "rocstar-agent", "rocstar-raw"
MODELS = (AGENT, RAW)
"""The names under which a model is served: with its own tools, or without."""

MAX_CHOICES = 128
MAX_FIELDS = 128
"""The maximum number of unknown fields of a request, and of entries of its `metadata`."""
MAX_ID_CHARS, MAX_COMMENT_CHARS = 200, 10_000

KNOWN = frozenset({
    "user", "store", "parallel_tool_calls", "service_tier", "stream_options", "reasoning_effort", "verbosity",
    "prompt_cache_key", "safety_identifier", "skip_special_tokens", "stop_token_ids", "ignore_eos",
    "add_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "chat_template_kwargs",
})  # fmt: skip
"""Known fields without an effect here; the operator gets no note about them."""


class GenerationRequest(Request, frozen=True, kw_only=True):
    """The body of /v1/chat/completions or /v1/completions.

    Attributes:
        num_choices: answers that are wanted of each question.
        seed: of the noise; None for a new one.
        task_fields: the task's fields of `metadata` and `rocstar`; the latter has priority.
        prefix_ids: the tokens that a conversation continues from. `messages` then has only the next user message;
            it is empty if the policy continues.
        prompts: of a completion: texts, or lists of ids.
        echo: return the prompt of a completion, too.
    """

    num_choices: int = 1
    seed: int | None = None
    task_fields: Mapping[str, str] = {}
    prefix_ids: tuple[int, ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    echo: bool = False


class Feedback(Struct, frozen=True, kw_only=True):
    """The body of /v1/feedback."""

    id: str
    index: int
    thumb: str
    comment: str


def unsupported(field: str, message: str) -> RequestError:
    """Return the error for a valid value that no served model supports."""
    return RequestError(message, field=field, kind="unsupported_value")


def read_chat(given: Fields) -> GenerationRequest:
    """Read the body of /v1/chat/completions. Raises RequestError."""
    prefix = None if given.values.get("prefix_token_ids") is None else given.token_ids("prefix_token_ids")
    messages = tuple(given.each("messages", _message))
    if not messages and prefix is None:
        raise given.invalid("messages", "send at least one message")
    model, tools = given.require("model", str), given.objects("tools")
    for tool in tools:
        if tool.values.get("type") != "function":
            raise RequestError(f'{tool.where} is not of the form {{"type": "function", ...}}', field=tool.where)
    if tools and model == AGENT:
        raise unsupported(
            "tools", f"tools: {AGENT} runs its own tools; ask for {RAW} to have calls of your own passed to you"
        )
    if not isinstance(given.values.get("tool_choice"), str | dict | None):
        raise given.invalid("tool_choice", "send a text or an object")
    given.names.add("tool_choice")  # no policy can be forced to call: but for `none` all are as `auto`
    form = given.get("response_format", dict, {"type": "text"}).get("type")
    if form != "text":
        raise given.invalid("response_format", "the policy writes as it was trained to; leave it out or pass text")
    given.get("top_logprobs", int, 0)
    old, new = given.get("max_tokens", int, 0), given.get("max_completion_tokens", int, 0)
    if old and new and old != new:
        raise given.invalid("max_completion_tokens", f"max_tokens is {old}; give one limit")
    return _generation(
        given,
        messages=messages,
        functions=given.functions("function", "parameters"),
        prefix_ids=prefix,
        max_tokens=given.limit("max_completion_tokens", "max_tokens"),
        with_logprobs=given.get("logprobs", bool, False),
    )


def _message(entry: Fields) -> Message:
    message = chat.read_message(entry)
    if message.role != "assistant":
        if entry.values.get("tool_calls"):
            raise entry.invalid("tool_calls", "only an assistant calls tools")
        if entry.values.get("content") is None:
            raise entry.invalid("content", "write its text")
    name = entry.get("name", str, "")
    return replace(message, name=name) if name else message


def read_completion(given: Fields) -> GenerationRequest:
    """Read the body of /v1/completions: a text or ids, or a list of either. Raises RequestError."""
    value = given.values.get("prompt")
    items = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    if len({type(item) for item in items}) != 1:
        raise given.invalid("prompt", "send texts alone, or lists of ids alone")
    ones = [Fields({"prompt": item}) for item in items]
    with_logprobs = completions.read_logprobs(given)
    if given.values.get("logprobs") not in (None, 0, 1):
        raise given.invalid("logprobs", "send 0 or 1")
    given.names.add("prompt")
    return _generation(
        given,
        prompts=tuple(
            one.require("prompt", str) if isinstance(one.values["prompt"], str) else one.token_ids("prompt")
            for one in ones
        ),
        max_tokens=given.limit("max_tokens"),
        with_logprobs=with_logprobs,
        echo=given.get("echo", bool, False),
    )


def _generation(given: Fields, **fields: Any) -> GenerationRequest:
    """Read the fields of both kinds of generation."""
    options = Fields(given.get("stream_options", dict, {}), "stream_options")
    return GenerationRequest(
        model=given.require("model", str),
        temperature=given.temperature(),
        stops=given.texts("stop"),
        is_streamed=given.get("stream", bool, False),
        with_usage=options.get("include_usage", bool, False),
        with_token_ids=given.get("return_token_ids", bool, False),
        num_choices=given.whole("n", 1, 1, MAX_CHOICES),
        seed=None if given.values.get("seed") is None else given.whole("seed", 0, -(1 << 63), (1 << 63) - 1),
        task_fields=_task_fields(given),
        ignored=_ignored(given),
        **fields,
    )


def _ignored(given: Fields) -> tuple[str, ...]:
    """Return the names of the fields that were not read. All of them are to be known when it is called."""
    ignored = given.ignored(NEUTRAL)
    if (num := len(given.values.keys() - given.names)) > MAX_FIELDS:
        raise _too_many("the body", num)
    return ignored


def _too_many(what: str, num: int) -> RequestError:
    message = f"{what} has {num} fields beside the known ones, at most {MAX_FIELDS} are read: leave the others out"
    return RequestError(message, kind="invalid_value")


def _task_fields(given: Fields) -> dict[str, str]:
    metadata, task = given.get("metadata", dict, {}), Fields(given.get("rocstar", dict, {}), "rocstar")
    if len(metadata) > MAX_FIELDS:
        raise _too_many("metadata", len(metadata))
    if not all(isinstance(value, str) for value in metadata.values()):
        raise given.invalid("metadata", "send texts")
    if unknown := task.values.keys() - {"task_id", "answer"}:
        raise task.invalid(min(unknown), "send task_id and answer alone")
    if task.values.get("task_id") == "":
        raise task.invalid("task_id", "send the id of a task")
    found = {name: task.get(name, str, "") for name in task.values if task.values[name] is not None}
    return {**metadata, **found}


def read_tokenize(given: Fields) -> Request:
    """Read the body of /tokenize: a text, or messages as a prompt shows them. Raises RequestError."""
    given.get("add_special_tokens", bool, False)
    messages = tuple(given.each("messages", _message))
    text = None if given.values.get("prompt") is None else given.get("prompt", str, "")
    if (text is None) != bool(messages) or (text is not None and given.values.get("messages") is not None):
        raise given.invalid("prompt", "send prompt or messages, one of them")
    return Request(model="", messages=messages, prompt_text=text)


def read_detokenize(given: Fields) -> Request:
    """Read the body of /detokenize. Raises RequestError."""
    is_empty = given.values.get("tokens") == []
    return Request(model="", prompt_ids=() if is_empty else given.token_ids("tokens"))


def read_feedback(given: Fields) -> Feedback:
    """Read the body of /v1/feedback. Raises RequestError."""
    name, thumb, comment = given.require("id", str), given.require("thumb", str), given.get("comment", str, "")
    for field, value, most in (("id", name, MAX_ID_CHARS), ("comment", comment, MAX_COMMENT_CHARS)):
        if len(value) > most:
            raise given.invalid(field, f"send at most {most} characters")
    if thumb not in ("up", "down"):
        raise given.invalid("thumb", "send up or down")
    index = given.whole("index", 0, 0, MAX_CHOICES - 1)
    if unknown := given.values.keys() - given.names:
        raise given.invalid(min(unknown), "send id, index, thumb and comment alone")
    return Feedback(id=name, index=index, thumb=thumb, comment=comment)
