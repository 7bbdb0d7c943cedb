"""Turns from another server: they are streamed as they arrive, and equal the whole response."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.engine.inference.openai_formats import EndpointFormat
from tests.fakes.openai_endpoint import STOP, TOKENIZER, VOCAB, Endpoint

from .conftest import Client, SlowTool, events, make_agent, of_stream, opened, scripted

SAID = "<think>I add two and two.</think> So it is four, no more STOP and no less."


class SaysIds(Endpoint):
    """vLLM's dialect, which says SAID whatever it is asked."""

    def _pieces(self, body: dict[str, Any], *, at_once: bool = False) -> list[dict[str, Any]]:
        out = [*TOKENIZER.encode(SAID), STOP][: body["max_tokens"]]
        ends = [len(out)] if at_once else self.cuts(len(out))
        pieces = [
            {"text": "", "token_ids": out[a:b], "logprobs": {"token_logprobs": [-1.0] * (b - a)}}
            for a, b in zip([0, *ends], ends, strict=False)
        ]
        pieces[-1]["finish_reason"] = "stop" if out[-1] == STOP else "length"
        return pieces


@asynccontextmanager
async def served_over(server: Endpoint) -> AsyncIterator[Client]:
    async with server.serve() as url, in_front_of(url, "m") as client:
        yield client


@asynccontextmanager
async def in_front_of(url: str, model: str) -> AsyncIterator[Client]:
    tool = SlowTool()
    async with OpenAIEndpoint(url, model=model, vocab_size=VOCAB, codec=TOKENIZER) as endpoint:
        agent = dataclasses.replace(make_agent(scripted([]), tool), inference=endpoint)
        async with opened(agent, tool) as client:
            yield client


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("stop", [None, "STOP", "four"])
async def test_a_stream_put_together_is_the_answer_at_once(with_ids: bool, stop: str | None) -> None:
    """A stop text ends the other server's writing, too: what came before it is the answer."""
    server = SaysIds(with_ids=True) if with_ids else Endpoint(with_ids=False, text=SAID)
    fields = {"stop": [stop]} if stop else {}
    async with served_over(server) as client:
        whole = await client.chat(seed=1, **fields)
        chunks = await client.stream(seed=1, **fields)
        assert of_stream(chunks) == whole["choices"][0]["message"]
        finish = [c["choices"][0]["finish_reason"] for c in chunks if not isinstance(c, str) and c["choices"]]
        assert finish[-1] == whole["choices"][0]["finish_reason"] == "stop"
        said = whole["choices"][0]["message"]
        assert said["reasoning_content"] == "I add two and two."
        assert said["content"].strip() == SAID.partition("</think>")[2].partition(stop or "\0")[0].strip()


async def test_what_was_written_is_shown_before_the_rest_is(until: Any) -> None:
    """And a client that goes away ends it there, too."""
    server = SaysIds(with_ids=True)
    server.cuts = lambda length: sorted({max(1, length // 2), length})
    async with served_over(server) as client:
        await client.stream()
        server.release.clear()
        async with client.streaming() as response:
            thought = ""
            async for chunk in events(response):
                thought += chunk["choices"][0]["delta"].get("reasoning_content", "")
                if thought == "I add two and two.":
                    break
        await server.closed.wait()
        await until(lambda: client.conversations.in_flight == 0)


async def test_one_of_our_own_serves_another() -> None:
    """Text alone, word by word: the model behind /v1/completions of a second `rocstar serve`."""
    tool = SlowTool()
    async with opened(make_agent(lambda request: SAID, tool), tool) as below:
        async with in_front_of(f"{below.endpoint.url}/v1", "rocstar-raw") as client:
            whole, chunks = await client.chat(), await client.stream()
            endpoint = client.agent.inference
            assert isinstance(endpoint, OpenAIEndpoint)
            assert endpoint._streams and endpoint.form is EndpointFormat.SENT_IDS
    assert of_stream(chunks) == whole["choices"][0]["message"]
    assert len([c for c in chunks if not isinstance(c, str) and c["choices"]]) > 10, "word by word"
