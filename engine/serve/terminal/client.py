"""A streaming client of /v1/chat/completions.

`ask` waits at most `begin_s` for the beginning of the response, as the server may be full; then at most
`silence_s` for each event, as a server sends a ping every few seconds. Closing it ends the stream and the
conversation on the server, including a tool's child.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from rocstar.engine.gateway.stream_parts import TextPart, ToolCallPart, ToolResultPart

CONNECT_S = 10.0
BEGIN_S = 300.0
SILENCE_S = 60.0
MAX_LINE_BYTES = 16 << 20


class TerminalError(Exception):
    """A command failed, or the endpoint rejected a request or disconnected; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of a choice, with OpenAI's finish reason.

    Attributes:
        ids: its tokens after the prompt, if requested.
    """

    choice: int
    reason: str
    ids: Sequence[int] = ()


@dataclass(slots=True)
class AnswerEnd:
    """The end of a response.

    Attributes:
        id: the id of the response, for feedback; None if the endpoint gives none.
        usage: the token counts of the endpoint.
        facts: the field `rocstar` of the response.
        prompt_ids: the token ids of the prompt, if requested.
    """

    id: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: Sequence[int] = ()


StreamEvent = TextPart | ToolCallPart | ToolResultPart | ChoiceEnd | AnswerEnd


@dataclass(slots=True, kw_only=True)
class ChatClient:
    """An endpoint's /v1/chat/completions.

    Args:
        url: up to and with /v1.
        model: as the endpoint names it.
        token: sent with every request, if there is one.
        fields: further fields of every request.
        begin_s: how long an answer may take to begin, its place in the engine included.
        silence_s: how long an answer that has begun may say nothing.
    """

    url: str
    model: str = "rocstar-agent"
    token: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    begin_s: float = BEGIN_S
    silence_s: float = SILENCE_S
    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ChatClient:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
            headers={"User-Agent": "rocstar-chat", **headers},
            read_bufsize=MAX_LINE_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], *, num_choices: int = 1, prefix_ids: Sequence[int] | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the response. Raises TerminalError.

        prefix_ids: the tokens of the conversation before the messages; the response then has its
            token ids. None: the messages are the whole conversation.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"n": num_choices} if num_choices > 1 else {}),
            **({} if prefix_ids is None else {"prefix_token_ids": prefix_ids, "return_token_ids": True}),
            **self.fields,
        }
        end, ids = AnswerEnd(), defaultdict[int, list[int]](list)
        try:
            async with await self._post("chat/completions", body) as response:
                async for chunk in self._chunks(response):
                    end.id = chunk.get("id", end.id)
                    end.prompt_ids = chunk.get("prompt_token_ids") or end.prompt_ids
                    end.usage = _object_or(chunk.get("usage"), end.usage)
                    end.facts = _object_or(chunk.get("rocstar"), end.facts)
                    try:
                        events = _parse_chunk(chunk, ids)
                    except (AttributeError, TypeError, ValueError, OverflowError):
                        raise TerminalError(f"{self.url} sent an unknown event: {str(chunk)[:200]}") from None
                    for event in events:
                        yield event
        except (aiohttp.ClientError, ConnectionError) as error:
            raise TerminalError(f"{self.url}: {error}") from None
        yield end

    async def thumb(self, answer_id: str, choice: int, thumb: str) -> None:
        """Send feedback on a response. Raises TerminalError if it is not stored."""
        payload = {"id": answer_id, "index": choice, "thumb": thumb}
        (await self._post("feedback", payload)).release()

    async def _post(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """An answer that begins with status 200. TerminalError for another, or for none in time."""
        assert self._session is not None, "the client has not been entered"
        try:
            async with asyncio.timeout(self.begin_s):
                response = await self._session.post(f"{self.url}/{path}", json=body)
                if response.status == 200:
                    return response
                async with response:
                    answer = await response.read()
                    try:
                        message = _error_message(json.loads(answer)["error"])
                    except (ValueError, KeyError, TypeError):
                        message = f"{response.url} answered {response.status}: {answer[:200]!r}"
                    raise TerminalError(message)
        except (aiohttp.ClientError, ConnectionError) as error:  # of which some are a TimeoutError
            raise TerminalError(f"{self.url}: {error}") from None
        except TimeoutError:
            raise TerminalError(f"{self.url} did not begin an answer in {self.begin_s:g} s") from None

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        while True:
            try:
                async with asyncio.timeout(self.silence_s):
                    line = await response.content.readline()
            except TimeoutError:
                raise TerminalError(f"{self.url} sent nothing for {self.silence_s:g} s") from None
            except ValueError:
                raise TerminalError(f"{self.url} sent a line of more than {MAX_LINE_BYTES} bytes") from None
            if not line:
                raise TerminalError(f"{self.url} ended its stream early")
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                chunk = json.loads(data)
            except ValueError:
                raise TerminalError(f"{self.url} sent invalid JSON: {data[:80]!r}") from None
            if not isinstance(chunk, dict):
                raise TerminalError(f"{self.url} sent a value that is not an object: {data[:80]!r}")
            if chunk.get("error"):
                raise TerminalError(_error_message(chunk["error"]))
            yield chunk


def _object_or(value: Any, otherwise: Mapping[str, Any]) -> Mapping[str, Any]:
    return value if isinstance(value, dict) and value else otherwise


def _parse_chunk(chunk: Mapping[str, Any], ids: Mapping[int, list[int]]) -> list[StreamEvent]:
    """Return the events of a chunk. ids: the token ids of each choice so far, to which its own are added."""
    events: list[StreamEvent] = []
    happened = chunk.get("server_tool_event")
    if isinstance(happened, Mapping):
        events.append(msgspec.convert(happened, ToolCallPart | ToolResultPart))
    for choice in chunk.get("choices") or ():
        index, delta = int(choice.get("index", 0)), choice.get("delta") or {}
        if text := delta.get("reasoning_content"):
            events.append(TextPart(index, "reasoning_content", str(text)))
        if text := delta.get("content"):
            events.append(TextPart(index, "content", str(text)))
        ids[index].extend(choice.get("token_ids") or ())
        if reason := choice.get("finish_reason"):
            events.append(ChoiceEnd(index, str(reason), ids[index]))
    return events


def _error_message(error: Any) -> str:
    """Return the message of an error: OpenAI's errors are objects, others are texts."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)
