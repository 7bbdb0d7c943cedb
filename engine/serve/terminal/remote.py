"""An endpoint as a client sees it: one request, and what comes of it while it comes.

Who waits: `ask` for the answer's beginning, at most `begin_s`, as a server may be full; then for the next
event of the stream, at most `silence_s`, as one that lives says so every few seconds. Leaving it ends the
stream, and so the conversation at the server, down to a tool's child.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from rocstar.engine.serve.parts import Said, ToolAnswer, ToolUse

CONNECT_S = 10.0
BEGIN_S = 300.0
SILENCE_S = 60.0
MAX_LINE_BYTES = 16 << 20


class RemoteError(Exception):
    """The endpoint refused, or went away; the message says which."""


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """A choice has ended, for OpenAI's reason.

    Attributes:
        ids: its tokens behind the prompt, where they were asked for.
    """

    choice: int
    reason: str
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """All has been said.

    Attributes:
        id: of the answer, for feedback; None where the endpoint gives none.
        usage: tokens, as the endpoint counts them.
        facts: what a rocstar endpoint tells besides.
        prompt_ids: tokens that the policy read first, where they were asked for.
    """

    id: str | None
    usage: Mapping[str, Any]
    facts: Mapping[str, Any]
    prompt_ids: Sequence[int] = ()


Told = Said | ToolUse | ToolAnswer | ChoiceEnd | AnswerEnd


@dataclass(slots=True, kw_only=True)
class RemoteChat:
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

    async def __aenter__(self) -> RemoteChat:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
            headers={"User-Agent": "rocstar-chat", **headers},
            read_bufsize=MAX_LINE_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        num_choices: int = 1,
        prefix_ids: Sequence[int] | None = None,
    ) -> AsyncGenerator[Told, None]:
        """What the endpoint says to the messages. RemoteError where it does not.

        prefix_ids: the conversation so far, which the messages follow, token for token; the answer then tells
        its tokens. None: the messages are all of it.
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
        usage: Mapping[str, Any] = {}
        facts: Mapping[str, Any] = {}
        answer_id: str | None = None
        prompt_ids: Sequence[int] = ()
        try:
            async with await self._begun("chat/completions", body) as response:
                async for chunk in self._chunks(response):
                    answer_id = chunk.get("id", answer_id)
                    prompt_ids = chunk.get("prompt_token_ids") or prompt_ids
                    usage = _object(chunk.get("usage"), usage)
                    facts = _object(chunk.get("rocstar"), facts)
                    for told in self._read(chunk):
                        yield told
        except (aiohttp.ClientError, ConnectionError) as error:
            raise RemoteError(f"{self.url}: {error}") from None
        yield AnswerEnd(answer_id, usage, facts, prompt_ids)

    async def thumb(self, answer_id: str, choice: int, thumb: str) -> None:
        """Tell what a person thinks of an answer. RemoteError where it is not stored."""
        told = {"id": answer_id, "index": choice, "thumb": thumb}
        (await self._begun("feedback", told)).release()

    async def _begun(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """An answer that begins with status 200. RemoteError for another, or for none in time."""
        assert self._session is not None, "the client has not been entered"
        try:
            async with asyncio.timeout(self.begin_s):
                response = await self._session.post(f"{self.url}/{path}", json=body)
                if response.status == 200:
                    return response
                async with response:
                    raise RemoteError(await _refusal(response))
        except (aiohttp.ClientError, ConnectionError) as error:  # of which some are a TimeoutError
            raise RemoteError(f"{self.url}: {error}") from None
        except TimeoutError:
            raise RemoteError(f"{self.url} did not begin an answer in {self.begin_s:g} s") from None

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        while True:
            try:
                async with asyncio.timeout(self.silence_s):
                    line = await response.content.readline()
            except TimeoutError:
                raise RemoteError(f"{self.url} said nothing for {self.silence_s:g} s") from None
            except ValueError:
                raise RemoteError(f"{self.url} sent a line of more than {MAX_LINE_BYTES} bytes") from None
            if not line:
                raise RemoteError(f"{self.url} ended its stream in the middle")
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                chunk = json.loads(data)
            except ValueError:
                raise RemoteError(f"{self.url} sent what is no JSON: {data[:80]!r}") from None
            if not isinstance(chunk, dict):
                raise RemoteError(f"{self.url} sent what is no object: {data[:80]!r}")
            if chunk.get("error"):
                raise RemoteError(_message(chunk["error"]))
            yield chunk

    def _read(self, chunk: Mapping[str, Any]) -> list[Told]:
        """What a chunk says. RemoteError for one that is of another protocol."""
        try:
            return _told(chunk)
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise RemoteError(f"{self.url} sent what is no part of an answer: {str(chunk)[:200]}") from None


def _object(value: Any, otherwise: Mapping[str, Any]) -> Mapping[str, Any]:
    return value if isinstance(value, dict) and value else otherwise


def _told(chunk: Mapping[str, Any]) -> list[Told]:
    """What a chunk says."""
    told: list[Told] = []
    happened = chunk.get("server_tool_event")
    if isinstance(happened, Mapping):
        told.append(_tool_event(happened))
    for choice in chunk.get("choices") or ():
        index, delta = int(choice.get("index", 0)), choice.get("delta") or {}
        if text := delta.get("reasoning_content"):
            told.append(Said(index, "reasoning_content", str(text)))
        if text := delta.get("content"):
            told.append(Said(index, "content", str(text)))
        if reason := choice.get("finish_reason"):
            told.append(ChoiceEnd(index, str(reason), choice.get("token_ids") or ()))
    return told


def _tool_event(event: Mapping[str, Any]) -> ToolUse | ToolAnswer:
    choice, call_id = int(event.get("index", 0)), str(event.get("id", ""))
    name, arguments = event.get("name"), event.get("arguments")
    if not (isinstance(name, str | None) and isinstance(arguments, dict | None)):
        raise TypeError("a call has a name and named arguments")
    if event.get("type") == "tool_use":
        return ToolUse(choice=choice, id=call_id, name=name, arguments=arguments)
    return ToolAnswer(
        choice=choice,
        id=call_id,
        name=name,
        status=str(event.get("status", "")),
        is_error=bool(event.get("is_error")),
        text=str(event.get("content", "")),
    )


def _message(error: Any) -> str:
    """What an error says: OpenAI's are objects with a message, others texts."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    body = await response.read()
    try:
        return _message(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered {response.status}: {body[:200]!r}"
