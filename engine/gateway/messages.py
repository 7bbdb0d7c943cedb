"""The canonical form of a conversation. A dialect reads a request into it and writes an answer from it.

    OpenAI chat, Responses, Anthropic messages, ... --> Request (messages, functions, limits)
    SampledTurn (message, ids, log-probs, finish) ---------> the dialect's body or stream

Two messages with the same `key` are one message: harnesses re-serialise the arguments of calls, drop or rename
the ids of calls, drop reasoning and change whitespace at the ends of texts when they send the history again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from rocstar.engine.inference.base import Generation

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls"]


def _number(digits: str) -> int | float:
    """Return the number, a whole one as an integer: JavaScript writes 1.0 as 1."""
    value = float(digits)
    return int(value) if value.is_integer() else value


_ARGUMENTS = json.JSONDecoder(parse_float=_number, object_pairs_hook=lambda pairs: sorted(dict(pairs).items()))
"""Decodes an object as a list of tuples, which no JSON array is."""


def num_equal(before: Sequence[Any], items: Sequence[Any]) -> int:
    """Return how many items at the beginning of two sequences are equal."""
    most = min(len(before), len(items))
    if before[:most] == items[:most]:
        return most
    return next(k for k in range(most) if before[k] != items[k])


class FunctionCall(Struct, frozen=True, kw_only=True):
    """A call of a function by the policy.

    Attributes:
        id: pairs the call with its result within one conversation.
        name: of the function.
        arguments: JSON text as it was written; an object if the call is well-formed.
    """

    id: str
    name: str
    arguments: str

    @property
    def key(self) -> str:
        """The name and the arguments with sorted keys and 1.0 as 1; unparsable arguments byte by byte."""
        try:
            arguments = repr(_ARGUMENTS.decode(self.arguments))
        except (ValueError, RecursionError):
            arguments = self.arguments
        return f"{self.name}({arguments})"


class Message(Struct, frozen=True, kw_only=True):
    """A message of a conversation. Content of a list of text parts is their concatenation.

    Attributes:
        reasoning: the thinking of an assistant; "" if it has none or the harness dropped it.
        calls: of an assistant.
        call_id: of a tool result, the id of the call it answers; "" if the dialect has none.
        is_error: of a tool result, whether the harness marked it as an error.
        name: of the author, for templates that show it.
    """

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[FunctionCall, ...] = ()
    call_id: str = ""
    is_error: bool = False
    name: str = ""

    @property
    def key(self) -> str:
        """The canonical form, without reasoning, ids of calls, and whitespace at the ends."""
        return repr((self.role, self.text.strip(), [call.key for call in self.calls]))


class Request(Struct, frozen=True, kw_only=True):
    """One request for one sample, in the canonical form.

    Attributes:
        model: the name that the client asked for; the answer repeats it.
        messages: the history, oldest first. Empty if `prompt_ids` is given.
        functions: the tools that the client offers, as chat templates show them:
            {"type": "function", "function": {"name", "description", "parameters"}}.
        prompt_ids: exact ids to continue (`/inference/v1/generate`, `/v1/completions` with ids), else None.
        prompt_text: the same as text, which the session tokenises (`/v1/completions`), else None.
        max_tokens: the limit of this sample; None for the session's.
        temperature: None for the session's. A training session refuses another one.
        stops: stop sequences.
        stop_ids: token ids that end the sample beside the template's.
        is_streamed: the client reads a stream.
        with_usage: end the stream with the number of tokens.
        with_logprobs, with_token_ids: show them in the answer.
        ignored: names of fields that were read and have no effect, for the counter per field.
    """

    model: str
    messages: tuple[Message, ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    prompt_text: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    is_streamed: bool = False
    with_usage: bool = False
    with_logprobs: bool = False
    with_token_ids: bool = False
    ignored: tuple[str, ...] = ()


class SampledTurn(Struct, frozen=True, kw_only=True):
    """One sample, in the canonical form.

    Attributes:
        id: unique over all sessions, without a dialect's prefix.
        request: the request of this sample.
        message: the assistant's message: text, reasoning and calls as the client gets them.
        finish: why it ended, in OpenAI's words.
        stopped_by: the stop sequence of the request that ended it; "" if none did.
        prompt_ids: the ids that the sample continued.
        generation: the sampled ids with the stop token included, a log-prob of the sampled distribution each.
        created: seconds since 1970.
    """

    id: str
    request: Request
    message: Message
    finish: Finish
    stopped_by: str = ""
    prompt_ids: tuple[int, ...]
    generation: Generation
    created: int = 0
