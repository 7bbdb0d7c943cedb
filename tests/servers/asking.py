"""A client of `rocstar serve`, and what an answer must be whoever serves the model behind it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.engine.serve.endpoint import Endpoint

from ..engine.serve.conftest import events, of_stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LEFT_S = 60.0
"""How long a server may take to let a request go. It is waited for, never measured."""
MANY = 16
"""Requests of a client that goes away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Asks an endpoint that is open."""

    session: aiohttp.ClientSession
    endpoint: Endpoint

    async def at_once(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer."""
        async with self.session.post(self.endpoint.url + path, json=body) as response:
            told: dict[str, Any] = await response.json()
            assert response.status == 200, told
            return told

    async def streamed(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Every chunk of the answer, which ends as it must."""
        async with self.session.post(self.endpoint.url + path, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            chunks = [chunk async for chunk in events(response) if chunk != ": ping"]
        assert chunks.pop() == "data: [DONE]"
        assert not [chunk for chunk in chunks if "error" in chunk]
        return chunks

    async def leave(self, path: str, running: Callable[[], Awaitable[int]], bodies: Sequence[dict[str, Any]]) -> int:
        """Go away in the middle of streams, as soon as one has begun; how many requests ran then on the
        server of the model."""
        async with contextlib.AsyncExitStack() as streams:
            began = [asyncio.create_task(self._post(streams, path, body)) for body in bodies]
            done, _ = await asyncio.wait(began, return_when=asyncio.FIRST_COMPLETED)
            seen = await running()
            for task in done:
                task.result()
            for task in began:
                task.cancel()
            await asyncio.wait(began)
        return seen

    async def _post(self, streams: contextlib.AsyncExitStack, path: str, body: dict[str, Any]) -> None:
        """Return when the first piece has come; the stream goes on until `streams` are closed."""
        response = await self.session.post(self.endpoint.url + path, json=body | {"stream": True})
        streams.callback(response.close)
        assert response.status == 200, await response.text()
        async for piece in events(response):
            assert "error" not in piece, piece
            break


def agent(question: str, **fields: Any) -> dict[str, Any]:
    """A question to the agent, whose answer has no noise."""
    messages = [{"role": "user", "content": question}]
    return {"model": "rocstar-agent", "messages": messages, "temperature": 0.0, "seed": 1, **fields}


def raw(prompt: str | Sequence[int], **fields: Any) -> dict[str, Any]:
    """What the model alone writes behind a prompt, without noise."""
    return {"model": "rocstar-raw", "prompt": prompt, "temperature": 0.0, "seed": 1, **fields}


async def check_agent(asking: Asking, questions: Sequence[str], *, calls: int) -> None:
    """Streams, put together, are the answers at once; they come in pieces, and tools are called.

    What comes while our own process waits for a core is one piece: they are counted over all questions.
    """
    called = pieces = turns = 0
    for question in questions:
        whole = await asking.at_once(CHAT, **agent(question))
        chunks = await asking.streamed(CHAT, **agent(question, stream_options={"include_usage": True}))
        (choice,) = whole["choices"]
        assert of_stream(chunks) == choice["message"], question
        said = [chunk for chunk in chunks if chunk["choices"]]
        assert said[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        for name in ("prompt_tokens", "completion_tokens", "tool_tokens", "turns"):
            assert chunks[-1]["usage"][name] == whole["usage"][name], name
        written = [c for c in said if {"content", "reasoning_content"} & c["choices"][0]["delta"].keys()]
        pieces, turns = pieces + len(written), turns + whole["usage"]["turns"]
        called += len(choice["message"].get("server_tool_events", [])) // 2
    assert called >= calls, f"{called} calls"
    assert pieces > turns, "turns were told when they ended"


async def check_completions(asking: Asking, prompt: str | Sequence[int]) -> dict[str, Any]:
    """Text, why it ended, and log-probs: streamed as at once. The choice that came at once."""
    body = raw(prompt, max_tokens=40, logprobs=1)
    (whole,) = (await asking.at_once(COMPLETIONS, **body))["choices"]
    chunks = [chunk["choices"][0] for chunk in await asking.streamed(COMPLETIONS, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    assert chunks[-1]["logprobs"]["tokens"] == whole["logprobs"]["tokens"]
    return dict(whole)


async def check_stop(asking: Asking, prompt: str | Sequence[int], text: str) -> None:
    """A stop text ends what is written before it, streamed and at once; `text` is what comes without one."""
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    body = raw(prompt, max_tokens=40, stop=[stop])
    (whole,) = (await asking.at_once(COMPLETIONS, **body))["choices"]
    chunks = [chunk["choices"][0] for chunk in await asking.streamed(COMPLETIONS, **body)]
    streamed = "".join(chunk["text"] for chunk in chunks)
    assert whole["text"] == streamed and stop not in streamed and text.startswith(streamed[:5])
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "stop"


async def check_leaving(
    asking: Asking,
    prompt: str | Sequence[int],
    running: Callable[[], Awaitable[int]],
    *,
    tokens: int,
    temperature: float = 2.0,
) -> None:
    """A client that goes away ends its requests on the server of the model, too.

    A tiny model writes an answer in less time than its server takes to say that it does: many are asked
    for, which makes each slow, and hot, for then a policy seldom ends its turn (`unending` makes sure of it;
    vLLM takes no temperature above 2). If all had ended, others are asked for.
    """
    for first in range(0, 30 * MANY, MANY):
        seeds = range(first, first + MANY)
        body = raw(prompt, max_tokens=tokens) | {"temperature": temperature}
        bodies = [body | {"seed": seed} for seed in seeds]
        if await asking.leave(COMPLETIONS, running, bodies):
            break
    else:
        raise AssertionError("every answer had ended before its client went away")
    async with asyncio.timeout(LEFT_S):
        while asking.endpoint.conversations.in_flight or await running():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def unending(fields: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block endpoints are asked with these fields, too, which keep a policy from its end; but for
    a single token, by which they are looked at."""
    body = OpenAIEndpoint._body

    def longer(self: OpenAIEndpoint, *of: Any) -> dict[str, Any]:
        asked = body(self, *of)
        return asked if asked["max_tokens"] == 1 else {**asked, **fields}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenAIEndpoint, "_body", longer)
        yield
