"""A conversation in OpenAI's words: one object at the end, or chunks as it goes on.

What OpenAI has no word for stands in fields that its clients ignore: `server_tool_event` in a chunk,
`server_tool_events` in a message, `rocstar` beside the choices, `tool_tokens` and `turns` in `usage`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rocstar.engine.serve.conversation import ServedConversation
from rocstar.engine.serve.parts import Kind, Part, Said, ToolAnswer, ToolUse, texts_of
from rocstar.engine.serve.token_columns import TokenColumns
from rocstar.engine.types import Scored

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HALF = re.compile("[\ud800-\udfff]")
_encoder = msgspec.json.Encoder()


def as_json(value: Any) -> bytes:
    """The value as JSON. Half of a surrogate pair, which a policy may write, becomes U+FFFD: many parsers
    refuse its escape, this server's too, and clients send answers back."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return _HALF.sub("\ufffd", text).encode()


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + as_json(value) + b"\n\n"


GAP = "\x00"
"""Stands for a text in an event that is encoded once for many texts; nothing else of one holds it."""


class Around(NamedTuple):
    """An event of which only one text changes."""

    before: bytes
    behind: bytes

    @classmethod
    def of(cls, whole: bytes) -> Around:
        """whole: the event with GAP for the text."""
        before, gap, behind = whole.partition(as_json(GAP))
        assert gap, "the event has no gap"
        return cls(before, behind)

    def put(self, text: str) -> bytes:
        """The event with this text."""
        return self.before + as_json(text) + self.behind


def facts(conversation: ServedConversation, isolation: str) -> dict[str, Any]:
    """The field `rocstar` of an answer: how to have it again, and what became of it."""
    order = conversation.order
    told: dict[str, Any] = {"seed": order.seed, "task_id": order.task.id}
    if isolation:
        told["isolation"] = isolation
    rewards = [t.outcome.reward for t in conversation.trajectories if isinstance(t.outcome, Scored)]
    if order.is_judged and len(rewards) == len(conversation.trajectories) and rewards:
        told["rewards"] = rewards
    return told


class ChatWords:
    """The answers of /v1/chat/completions to one request."""

    def __init__(
        self,
        conversation: ServedConversation,
        model: str,
        isolation: str,
        *,
        with_token_ids: bool = False,
    ) -> None:
        """with_token_ids: each choice tells its tokens at its end, so that a client can go on from them."""
        self._conversation, self._isolation = conversation, isolation
        self._with_token_ids = with_token_ids
        self._client_calls = conversation.order.face == "raw"
        self._id, self._model, self._created = chat_id(conversation.order.id), model, int(time.time())
        self._calls: dict[int, int] = {}
        """Calls told of each choice, for their numbers."""
        self._around: dict[tuple[int, Kind], Around] = {}
        """What surrounds the text of a chunk, by choice and kind."""

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The answer as one object."""
        conversation = self._conversation
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(parts, k) for k in range(len(conversation.choices))],
            "usage": conversation.usage(),
            "rocstar": facts(conversation, self._isolation),
            **self._prompt_ids(),
        }

    def _prompt_ids(self) -> dict[str, Any]:
        """What the policy read first, where it was asked for."""
        return {"prompt_token_ids": self._conversation.order.prompt_ids} if self._with_token_ids else {}

    def _token_ids(self, k: int) -> dict[str, Any]:
        """All that came behind it, what tools wrote included, where it was asked for."""
        if not self._with_token_ids:
            return {}
        trajectory = self._conversation.trajectories[k]
        return {"token_ids": trajectory.ids[trajectory.prompt_length :].tolist()}

    def _choice(self, parts: Sequence[Part], k: int) -> dict[str, Any]:
        texts = texts_of(parts, k)
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"]}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        told = [part for part in parts if part.choice == k and not isinstance(part, Said)]
        if self._client_calls:
            calls = [_call(part) for part in told if isinstance(part, ToolUse)]
            message |= {"tool_calls": calls} if calls else {}
        elif told:
            message["server_tool_events"] = [part.event() for part in told]
        finish = self._conversation.finish(k)
        told_choice = {"index": k, "message": message, "logprobs": None, "finish_reason": finish}
        return told_choice | self._token_ids(k)

    def first(self) -> bytes:
        """The chunk that opens every choice."""
        delta = {"role": "assistant", "content": ""}
        choices = [_delta(k, delta) for k in range(len(self._conversation.choices))]
        told = facts(self._conversation, self._isolation)
        return event({**self._head("chat.completion.chunk"), "choices": choices, "rocstar": told})

    def chunks(self, parts: Iterable[Part]) -> bytes:
        """A chunk per part."""
        return b"".join(self._said(part) if isinstance(part, Said) else self._chunk(part) for part in parts)

    def _said(self, part: Said) -> bytes:
        """Of a token's chunk all but its text is the same every time."""
        around = self._around.get((part.choice, part.kind))
        if around is None:
            delta = _delta(part.choice, {part.kind: GAP})
            whole = event({**self._head("chat.completion.chunk"), "choices": [delta]})
            around = self._around[part.choice, part.kind] = Around.of(whole)
        return around.put(part.text)

    def _chunk(self, part: ToolUse | ToolAnswer) -> bytes:
        head = self._head("chat.completion.chunk")
        if not self._client_calls:
            choices = [_delta(part.choice, {})]
            return event({**head, "choices": choices, "server_tool_event": part.event()})
        assert isinstance(part, ToolUse)
        number = self._calls[part.choice] = self._calls.get(part.choice, -1) + 1
        calls = [{"index": number, **_call(part)}]
        return event({**head, "choices": [_delta(part.choice, {"tool_calls": calls})]})

    def last(self, *, with_usage: bool) -> bytes:
        """The chunks that end every choice, and the stream."""
        conversation, head = self._conversation, self._head("chat.completion.chunk")
        told = facts(conversation, self._isolation)
        ends = [
            event(
                {
                    **head,
                    "choices": [_delta(k, {}, conversation.finish(k)) | self._token_ids(k)],
                    "rocstar": told,
                    **self._prompt_ids(),
                }
            )
            for k in range(len(conversation.choices))
        ]
        if with_usage:
            ends.append(event({**head, "choices": [], "usage": conversation.usage()}))
        return b"".join([*ends, DONE])

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _delta(choice: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}


def _call(part: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(dict(part.arguments or {}), ensure_ascii=False)
    try:
        arguments.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no JSON parser takes back as a character
        arguments = json.dumps(dict(part.arguments or {}))
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


def chat_id(name: str) -> str:
    """A conversation's id on the wire."""
    return f"chatcmpl-{name}"


def plain_id(wire: str) -> str:
    """The conversation that an id of the wire names."""
    return wire.removeprefix("chatcmpl-").removeprefix("cmpl-")


class CompletionWords:
    """The answers of /v1/completions to one request, which may have several prompts."""

    def __init__(
        self, conversations: Sequence[ServedConversation], model: str, *, echo: bool, with_logprobs: bool
    ):
        self._conversations, self._echo, self._with_logprobs = conversations, echo, with_logprobs
        self._head = {
            "id": f"cmpl-{conversations[0].order.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._around = Around.of(event({**self._head, "choices": [_text(0, GAP)]}))

    def whole(self, parts: Sequence[Sequence[Part]]) -> dict[str, Any]:
        """The choices of every prompt, one prompt after the other; `parts` are those of each."""
        choices: list[dict[str, Any]] = []
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        for conversation, told in zip(self._conversations, parts, strict=True):
            for k in range(len(conversation.choices)):
                text = self._echoed(conversation) + texts_of(told, k)["content"]
                choices.append(
                    _text(len(choices), text, conversation.finish(k), self._logprobs(conversation, k))
                )
            counted = conversation.usage()
            usage = {name: value + counted[name] for name, value in usage.items()}
        seed = self._conversations[0].order.seed
        return {**self._head, "choices": choices, "usage": usage, "rocstar": {"seed": seed}}

    def first(self) -> bytes:
        """The chunk that repeats the prompt, where that was asked for."""
        text = self._echoed(self._conversations[0])
        return event({**self._head, "choices": [_text(0, text)]}) if text else b""

    def chunks(self, parts: Iterable[Part]) -> bytes:
        """A chunk per part."""
        return b"".join(self._around.put(part.text) for part in parts if isinstance(part, Said))

    def last(self, *, with_usage: bool) -> bytes:
        """The chunks that end the stream."""
        conversation = self._conversations[0]
        choice = _text(0, "", conversation.finish(0), self._logprobs(conversation, 0))
        ends = [event({**self._head, "choices": [choice]})]
        if with_usage:
            ends.append(event({**self._head, "choices": [], "usage": conversation.usage()}))
        return b"".join([*ends, DONE])

    def _echoed(self, conversation: ServedConversation) -> str:
        return conversation.choices[0].chat.decode(conversation.order.prompt_ids) if self._echo else ""

    def _logprobs(self, conversation: ServedConversation, choice: int) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        columns = TokenColumns(conversation.choices[choice].chat.decode)
        if self._echo and (scores := conversation.choices[0].scores) is not None:
            columns.add_prompt(conversation.order.prompt_ids, scores)
        columns.add_written(conversation.trajectories[choice])
        return columns.told()


def _text(
    choice: int, text: str, finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}
