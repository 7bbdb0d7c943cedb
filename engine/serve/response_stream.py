"""OpenAI's response objects and stream chunks of a conversation.

Fields that OpenAI does not define are ignored by its clients: `server_tool_event` in a chunk,
`server_tool_events` in a message, `rocstar` beside the choices, `tool_tokens` and `turns` in `usage`.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any

from rocstar.engine.gateway.dialects.events import DONE, encode_event, encode_json
from rocstar.engine.gateway.stream_parts import Kind, Part, TextPart, ToolCallPart, ToolResultPart, join_texts
from rocstar.engine.inference.base import PromptScores
from rocstar.engine.serve.conversation import ServedConversation
from rocstar.engine.types import Origin, Scored, Trajectory

Decode = Callable[[Sequence[int]], str]
TokenRow = tuple[str, float | None, dict[str, float | None] | None]
"""The text of a token, its log-prob or None, and the log-probs of the likeliest tokens there by text."""


def prompt_rows(ids: Sequence[int], scores: PromptScores, decode: Decode) -> Iterator[TokenRow]:
    """Yield the tokens of a prompt, with the most likely token at each position if it is another one."""
    yield decode(ids[:1]), None, None
    for token, logprob, best, best_logprob in zip(
        ids[1:], scores.logprobs, scores.best_ids, scores.best_logprobs, strict=True
    ):
        text, other = decode([token]), decode([best])
        if best != token and other == text:  # parts of a character decode to the same text
            other = f"token_id:{best}"
        tops = {} if best == token else {other: _finite_or_none(best_logprob)}
        yield text, _finite_or_none(logprob), {**tops, text: _finite_or_none(logprob)}


def policy_rows(trajectory: Trajectory, decode: Decode) -> Iterator[TokenRow]:
    """Yield the tokens of the policy."""
    for segment in trajectory.segments:
        if segment.origin is Origin.policy:
            for at in range(segment.start, segment.end):
                text, logprob = decode([int(trajectory.ids[at])]), float(trajectory.logprobs[at])
                yield text, _finite_or_none(logprob), {text: _finite_or_none(logprob)}


def _finite_or_none(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None


GAP = "\x00"
"""Stands for the text in an event that is encoded once for many texts; nothing else in the event has it."""
_ENCODED_GAP = encode_json(GAP)


def _fill(event: bytes, text: str) -> bytes:
    """Return an event that has GAP in place of its text, with this text."""
    return event.replace(_ENCODED_GAP, encode_json(text))


def response_metadata(conversation: ServedConversation, isolation: str) -> dict[str, Any]:
    """Return the field `rocstar` of a response: seed, task and rewards."""
    order = conversation.order
    payload: dict[str, Any] = {"seed": order.seed, "task_id": order.task.id}
    if isolation:
        payload["isolation"] = isolation
    rewards = [t.outcome.reward for t in conversation.trajectories if isinstance(t.outcome, Scored)]
    if order.is_judged and len(rewards) == len(conversation.trajectories) and rewards:
        payload["rewards"] = rewards
    return payload


class ChatResponse:
    """The answers of /v1/chat/completions to one request."""

    def __init__(
        self,
        conversation: ServedConversation,
        model: str,
        isolation: str,
        *,
        with_token_ids: bool = False,
        with_logprobs: bool = False,
    ) -> None:
        """with_token_ids: each choice has its token ids, so that a client can continue from them; in a stream each
        chunk has the new ones, as vLLM's have. with_logprobs: and a log-prob for each; None for tokens of tool
        results."""
        self._conversation, self._isolation = conversation, isolation
        self._with_token_ids, self._with_logprobs = with_token_ids, with_logprobs
        self._client_calls = conversation.order.served_model == "raw"
        self._id, self._model, self._created = f"chatcmpl-{conversation.order.id}", model, int(time.time())
        self._calls: dict[int, int] = {}
        """The number of calls sent per choice."""
        self._num_sent: Counter[int] = Counter()
        """The number of tokens sent per choice."""
        self._text_events: dict[tuple[int, Kind], bytes] = {}
        """The encoded text chunk with GAP, by choice and kind."""

    def whole(self, parts_of_each: Sequence[Sequence[Part]]) -> dict[str, Any]:
        """The answer as one object, from the parts of the one conversation."""
        (parts,), conversation = parts_of_each, self._conversation
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(parts, k) for k in range(len(conversation.choices))],
            "usage": conversation.usage(),
            "rocstar": response_metadata(conversation, self._isolation),
            **self._prompt_ids(),
        }

    def _prompt_ids(self) -> dict[str, Any]:
        """Return the field of the prompt's ids, if requested."""
        return {"prompt_token_ids": self._conversation.order.prompt_ids} if self._with_token_ids else {}

    def _token_fields(self, k: int, ids: Sequence[int], logprobs: Iterable[float | None]) -> dict[str, Any]:
        """Return the fields of the ids, as requested."""
        found: dict[str, Any] = {"token_ids": ids} if self._with_token_ids else {}
        if self._with_logprobs:
            decode = self._conversation.choices[k].chat.decode
            names = [f"token_id:{token}" if self._with_token_ids else decode([token]) for token in ids]
            pairs = zip(names, logprobs, strict=True)
            found["logprobs"] = {"content": [{"token": name, "logprob": p, "top_logprobs": []} for name, p in pairs]}
        return found

    def _rest(self, k: int) -> dict[str, Any]:
        """Return the fields of the ids after the prompt that were not sent, including tool results."""
        if not (self._with_token_ids or self._with_logprobs):
            return {}
        trajectory = self._conversation.trajectories[k]
        begin = trajectory.prompt_length + self._num_sent[k]
        logprobs = map(_finite_or_none, trajectory.logprobs[begin:].tolist())
        return self._token_fields(k, trajectory.ids[begin:].tolist(), logprobs)

    def _new(self, k: int) -> dict[str, Any]:
        """Return the fields of the ids that the policy wrote since the last call; {} if there are none, or none was
        requested. The log-prob of each is known if log-probs were requested."""
        if not (self._with_token_ids or self._with_logprobs):
            return {}
        choice, begin = self._conversation.choices[k], self._num_sent[k]
        ids, logprobs = choice.written_ids[begin:], choice.written_logprobs[begin:]
        if self._with_logprobs:
            logprobs = [*takewhile(lambda p: p is None or math.isfinite(p), logprobs)]
            ids = ids[: len(logprobs)]
        self._num_sent[k] += len(ids)
        return self._token_fields(k, ids, logprobs) if ids else {}

    def _choice(self, parts: Sequence[Part], k: int) -> dict[str, Any]:
        texts = join_texts(parts, k)
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"]}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        tool_parts = [part for part in parts if part.choice == k and not isinstance(part, TextPart)]
        if self._client_calls:
            calls = [_call_object(part) for part in tool_parts if isinstance(part, ToolCallPart)]
            message |= {"tool_calls": calls} if calls else {}
        elif tool_parts:
            message["server_tool_events"] = tool_parts
        finish = self._conversation.finish(k)
        choice = {"index": k, "message": message, "logprobs": None, "finish_reason": finish}
        return choice | self._rest(k)

    def first(self) -> bytes:
        """The chunk that opens every choice."""
        delta = {"role": "assistant", "content": ""}
        choices = [_delta_choice(k, delta) for k in range(len(self._conversation.choices))]
        metadata = response_metadata(self._conversation, self._isolation)
        head = self._head("chat.completion.chunk")
        return encode_event({**head, "choices": choices, "rocstar": metadata, **self._prompt_ids()})

    def chunks(self, parts: Iterable[Part]) -> bytes:
        """A chunk per part. Without fields of tokens, only the text of a text chunk differs between tokens."""
        events: list[bytes] = []
        for part in parts:
            fields = self._new(part.choice)
            if not isinstance(part, TextPart):
                events.append(self._tool_chunk(part, fields))
                continue
            if fields:
                delta = _delta_choice(part.choice, {part.kind: part.text}) | fields
                events.append(encode_event({**self._head("chat.completion.chunk"), "choices": [delta]}))
                continue
            event = self._text_events.get((part.choice, part.kind))
            if event is None:
                delta = _delta_choice(part.choice, {part.kind: GAP})
                event = encode_event({**self._head("chat.completion.chunk"), "choices": [delta]})
                self._text_events[part.choice, part.kind] = event
            events.append(_fill(event, part.text))
        return b"".join(events)

    def _tool_chunk(self, part: ToolCallPart | ToolResultPart, fields: Mapping[str, Any]) -> bytes:
        head = self._head("chat.completion.chunk")
        if not self._client_calls:
            choices = [{**_delta_choice(part.choice, {}), **fields}]
            return encode_event({**head, "choices": choices, "server_tool_event": part})
        assert isinstance(part, ToolCallPart)
        number = self._calls[part.choice] = self._calls.get(part.choice, -1) + 1
        calls = [{"index": number, **_call_object(part)}]
        return encode_event({**head, "choices": [{**_delta_choice(part.choice, {"tool_calls": calls}), **fields}]})

    def last(self, *, with_usage: bool) -> bytes:
        """The chunks that end every choice, and the stream."""
        conversation, head = self._conversation, self._head("chat.completion.chunk")
        metadata = response_metadata(conversation, self._isolation)
        ends = [
            encode_event(
                {
                    **head,
                    "choices": [_delta_choice(k, {}, conversation.finish(k)) | self._rest(k)],
                    "rocstar": metadata,
                }
            )
            for k in range(len(conversation.choices))
        ]
        if with_usage:
            ends.append(encode_event({**head, "choices": [], "usage": conversation.usage()}))
        return b"".join([*ends, DONE])

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _delta_choice(choice: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}


def _call_object(part: ToolCallPart) -> dict[str, Any]:
    arguments = json.dumps(dict(part.arguments or {}), ensure_ascii=False)
    try:
        arguments.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no JSON parser takes back as a character
        arguments = json.dumps(dict(part.arguments or {}))
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


class CompletionResponse:
    """The answers of /v1/completions to one request, which may have several prompts."""

    def __init__(
        self,
        conversations: Sequence[ServedConversation],
        model: str,
        *,
        echo: bool,
        with_logprobs: bool,
        with_token_ids: bool,
    ) -> None:
        """with_token_ids: each choice has the ids of its prompt and its own; in a stream each chunk has the new ones.
        Log-probs come at the end."""
        self._conversations, self._echo, self._with_logprobs = conversations, echo, with_logprobs
        self._with_token_ids, self._num_sent = with_token_ids, 0
        self._head = {
            "id": f"cmpl-{conversations[0].order.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._text_event = encode_event({**self._head, "choices": [_text_choice(0, GAP)]})

    def whole(self, parts_of_each: Sequence[Sequence[Part]]) -> dict[str, Any]:
        """The choices of every prompt, one prompt after the other, from the parts of each conversation."""
        choices: list[dict[str, Any]] = []
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        for conversation, choice_parts in zip(self._conversations, parts_of_each, strict=True):
            for k in range(len(conversation.choices)):
                text = self._echoed(conversation) + join_texts(choice_parts, k)["content"]
                fields = self._prompt_ids(conversation) | self._token_fields(conversation, k)
                choices.append(_text_choice(len(choices), text, conversation.finish(k)) | fields)
            counted = conversation.usage()
            usage = {name: value + counted[name] for name, value in usage.items()}
        seed = self._conversations[0].order.seed
        return {**self._head, "choices": choices, "usage": usage, "rocstar": {"seed": seed}}

    def first(self) -> bytes:
        """Return the chunk with the prompt, if requested."""
        text, ids = self._echoed(self._conversations[0]), self._prompt_ids(self._conversations[0])
        return encode_event({**self._head, "choices": [_text_choice(0, text) | ids]}) if text or ids else b""

    def chunks(self, parts: Iterable[Part]) -> bytes:
        """A chunk per part."""
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if not self._with_token_ids:
            return b"".join([_fill(self._text_event, text) for text in texts])
        return b"".join(
            [encode_event({**self._head, "choices": [_text_choice(0, t) | self._new_ids()]}) for t in texts]
        )

    def _new_ids(self) -> dict[str, Any]:
        """Return the field of the ids that the policy wrote since the last call."""
        new = self._conversations[0].choices[0].written_ids[self._num_sent :]
        self._num_sent += len(new)
        return {"token_ids": new}

    def last(self, *, with_usage: bool) -> bytes:
        """The chunks that end the stream."""
        conversation = self._conversations[0]
        choice = _text_choice(0, "", conversation.finish(0)) | self._token_fields(conversation, 0)
        ends = [encode_event({**self._head, "choices": [choice]})]
        if with_usage:
            ends.append(encode_event({**self._head, "choices": [], "usage": conversation.usage()}))
        return b"".join([*ends, DONE])

    def _prompt_ids(self, conversation: ServedConversation) -> dict[str, Any]:
        return {"prompt_token_ids": conversation.order.prompt_ids} if self._with_token_ids else {}

    def _echoed(self, conversation: ServedConversation) -> str:
        return conversation.choices[0].chat.decode(conversation.order.prompt_ids) if self._echo else ""

    def _token_fields(self, conversation: ServedConversation, choice: int) -> dict[str, Any]:
        """Return the fields of the tokens of a choice, as requested."""
        trajectory, found = conversation.trajectories[choice], dict[str, Any]()
        if self._with_token_ids:
            found["token_ids"] = trajectory.ids[trajectory.prompt_length + self._num_sent :].tolist()
        if not self._with_logprobs:
            return found
        decode = conversation.choices[choice].chat.decode
        rows: list[TokenRow] = []
        if self._echo and (scores := conversation.choices[0].scores) is not None:
            rows += prompt_rows(conversation.order.prompt_ids, scores, decode)
        rows += policy_rows(trajectory, decode)
        found["logprobs"] = {
            "tokens": [text for text, _, _ in rows],
            "token_logprobs": [logprob for _, logprob, _ in rows],
            "top_logprobs": [tops for _, _, tops in rows],
            # where the text of a token begins in the text of all of them
            "text_offset": list(accumulate((len(text) for text, _, _ in rows[:-1]), initial=0))[: len(rows)],
        }
        return found


def _text_choice(choice: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": choice, "text": text, "logprobs": None, "finish_reason": finish}
