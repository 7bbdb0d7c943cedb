"""The gateway over a policy that follows a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.dialects import chat
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.endpoint import SMALL_BYTES, Gateway, open_gateway
from rocstar.engine.gateway.session import (
    CLOSING_TEXT,
    MAX_CLOSING,
    MAX_CONCURRENT,
    MAX_FIELDS,
    AgentSession,
    Sessions,
)
from rocstar.engine.inference.base import InferenceError, Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.types import Attempt, FinishReason, Outcome, Scored, Task, TrajectoryKey
from tests.engine.serve.conftest import LLAMA, TOKENIZER, call, ready_tool
from tests.fakes.scripted_policy import Reply, Request, ScriptedPolicy
from tests.malformed_http import NOT_HTTP, answer_to

KEY = TrajectoryKey(seed=7, step=0, task_id="sum", sibling=0)
USER = {"role": "user", "content": "2+2?"}


class Right:
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return Scored(reward=1.0, method="right")


def make_agent(script: Any, *, template: str = "compact", token_s: float | None = None, **limits: Any) -> Agent:
    tool = ready_tool()
    bounds = {"max_response_tokens": 2000, "max_turns": 6, "max_tool_tokens": 200, "timeout_s": 60.0}
    tokenizer = LLAMA if template == "llama3" else TOKENIZER
    if isinstance(script, Sequence):
        replies = list(script)
        script = lambda request: replies.pop(0)  # noqa: E731
    return Agent(
        inference=ScriptedPolicy(script, tokenizer, token_s=token_s),
        chat=ChatFormat(tokenizer, load_template(template, None), [tool.schema]),
        tools=Dispatcher(tools=[tool]),
        judge=Right(),
        limits=RolloutLimits(**(bounds | limits)),
        sampling=Sampling(),
    )


class Client:
    """A client of one session."""

    def __init__(self, session: AgentSession, gateway: Gateway, secret: str, http: aiohttp.ClientSession) -> None:
        self.session, self.gateway, self.secret, self.http = session, gateway, secret, http

    @property
    def requests(self) -> list[Request]:
        return self.session.agent.inference.requests  # type: ignore[attr-defined, no-any-return]

    def post(self, body: Any, path: str = "/v1/chat/completions", **options: Any) -> Any:
        options.setdefault("headers", {"Authorization": f"Bearer {self.secret}"})
        return self.http.post(self.gateway.url + path, data=json.dumps(body).encode(), **options)

    async def json(self, body: Any, path: str = "/v1/chat/completions", *, status: int = 200, **options: Any) -> Any:
        async with self.post(body, path, **options) as response:
            payload = await response.json()
            assert response.status == status, payload
            return payload

    async def chat(self, messages: Sequence[Any], *, status: int = 200, **fields: Any) -> Any:
        return await self.json({"model": "m", "messages": messages, **fields}, status=status)


@asynccontextmanager
async def opened(agent: Agent, **options: Any) -> AsyncIterator[Client]:
    sessions, session = Sessions(), AgentSession(agent, KEY, **options)
    secret = sessions.open(session)
    async with open_gateway(sessions, model="policy", max_context=4096) as gateway, aiohttp.ClientSession() as http:
        yield Client(session, gateway, secret, http)
        await sessions.close(secret)


@pytest.mark.parametrize("template", ["compact", "rstar2", "qwen3", "llama3"])
async def test_an_agent_that_only_appends_gives_the_ids_and_the_noise_of_the_built_in_loop(template: str) -> None:
    replies = [call("2+2"), call("4+1"), "It is 4"]
    agent = make_agent(replies, template=template)
    task = Task(id="sum", source="test", question="2+2?", answer="4")
    expected = await run_trajectory(agent, task, KEY)
    agent = make_agent(replies, template=template)
    async with opened(agent) as client:
        messages, functions = [USER], agent.chat.tools
        while True:
            answer = await client.chat(messages, tools=functions, return_token_ids=True)
            message = answer["choices"][0]["message"]
            messages = [*messages, message]
            if not message.get("tool_calls"):
                break
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": "4"} for c in message["tool_calls"]]
        columns = client.session.graph.columns()
    assert columns.ids == expected.ids.tolist()
    assert tuple(columns.segments) == expected.segments
    assert columns.starts == [0]
    assert [p for p in columns.logprobs if p is not None] == [p for p in expected.logprobs.tolist() if p == p]
    built_in = [(r.ids, r.seed, r.max_new_tokens, r.request_id) for r in client.requests]
    agent = make_agent(replies, template=template)
    await run_trajectory(agent, task, KEY)
    assert built_in == [(r.ids, r.seed, r.max_new_tokens, r.request_id) for r in agent.inference.requests]  # type: ignore[attr-defined]


# ---- retries ----


async def test_the_same_request_joins_is_replayed_and_after_delivery_is_a_new_sample() -> None:
    agent = make_agent(lambda request: f"answer {request.seed}", token_s=0.0)
    async with opened(agent) as client:
        session = client.session
        asked = chat.read(Fields({"model": "m", "messages": [USER]}))
        both = await asyncio.gather(*(session.sample(asked, b"d") for _ in range(3)))
        assert len({turn.id for turn in both}) == 1  # joined
        assert (await session.sample(asked, b"d")).id == both[0].id  # not delivered: replayed
        assert session.num_retries == 3
        session.delivered(b"d")
        again = await session.sample(asked, b"d")
        assert again.id != both[0].id
        assert again.generation.ids != both[0].generation.ids  # other noise
        assert len(client.requests) == len(session.graph.nodes) == 2
        assert session.graph.discards() == set()


async def test_a_body_that_a_thread_reads_leaves_the_known_lists_of_the_loop_alone() -> None:
    """Two requests of a session may be read at a time; each takes earlier values from a body of its own."""
    async with opened(make_agent(lambda request: "yes")) as client:
        await client.chat([USER])
        of_the_loop = client.session.known["/v1/chat/completions"]
        items, _ = of_the_loop["messages"]
        await client.chat([{"role": "user", "content": "x" * SMALL_BYTES}])
        assert of_the_loop["messages"][0] is items
        assert client.session.known["/v1/chat/completions"]["messages"][0] != items


async def test_a_client_that_disconnects_gets_the_answer_by_its_retry() -> None:
    began, gate = asyncio.Event(), asyncio.Event()
    agent = make_agent(["4", "5"])
    generate = agent.inference.generate

    async def slow(*args: Any, **options: Any) -> Any:
        began.set()
        await gate.wait()
        return await generate(*args, **options)

    agent.inference.generate = slow  # type: ignore[method-assign]
    async with opened(agent) as client:
        body = {"model": "m", "messages": [USER]}
        first = asyncio.create_task(client.json(body))
        await began.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        retry = asyncio.create_task(client.json(body))
        gate.set()
        assert (await retry)["choices"][0]["message"]["content"] == "4"
        assert len(client.session.graph.nodes) == 1
        assert (await client.json(body))["choices"][0]["message"]["content"] == "5"  # delivered before
        assert len(client.session.graph.nodes) == 2


async def test_a_session_samples_at_most_so_many_requests_at_a_time() -> None:
    gate = asyncio.Event()
    agent = make_agent(["4"] * 40, max_turns=40)
    generate = agent.inference.generate

    async def slow(*args: Any, **options: Any) -> Any:
        await gate.wait()
        return await generate(*args, **options)

    agent.inference.generate = slow  # type: ignore[method-assign]
    async with opened(agent) as client:
        asking = [
            asyncio.create_task(
                client.http.post(
                    client.gateway.url + "/v1/chat/completions",
                    data=json.dumps({"model": "m", "messages": [{"role": "user", "content": str(k)}]}),
                    headers={"x-api-key": client.secret},
                )
            )
            for k in range(MAX_CONCURRENT + 1)
        ]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [429]
        gate.set()
        await asyncio.gather(*asking)
        names = {request.request_id for request in client.requests}
        assert names == {str(KEY), *(f"{KEY}~{k}" for k in range(1, MAX_CONCURRENT))}
        for task in asking:
            task.result().close()
    assert names == set(agent.inference.released)  # type: ignore[attr-defined]


# ---- limits and failures ----


async def test_behind_its_limits_a_session_gives_closing_answers_that_nothing_records() -> None:
    agent = make_agent(["a", "b", "c"], max_turns=2)
    async with opened(agent) as client:
        for k in range(2):
            await client.chat([USER], seed=k)
        assert client.session.finish is None
        answer = await client.chat([USER], seed=3)
        assert answer["choices"][0]["message"]["content"] == CLOSING_TEXT
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert client.session.finish is FinishReason.max_turns
        for k in range(MAX_CLOSING - 1):
            await client.chat([USER], seed=9 + k)
        refused = await client.chat([USER], seed=4, status=403)
        assert refused["error"]["code"] == "limit_reached"
        assert len(client.session.graph.nodes) == len(client.requests) == 2
        assert client.session.ignored["seed"] == 2 + MAX_CLOSING + 1


async def test_a_sample_ends_at_the_budget_of_tokens_and_at_the_clients_own_limit() -> None:
    agent = make_agent(lambda request: Reply(text="abc", stops=False), max_response_tokens=20)
    async with opened(agent) as client:
        answer = await client.chat([USER], max_completion_tokens=5)
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 5)
        assert client.session.finish is None  # the agent's limit, not the session's
        answer = await client.chat([USER])
        assert answer["usage"]["completion_tokens"] == 15
        assert client.session.finish is FinishReason.max_tokens
        answer = await client.chat([USER])
        assert answer["choices"][0]["message"]["content"] == CLOSING_TEXT


async def test_a_prompt_that_fills_the_context_is_a_400_so_that_an_agent_can_compact() -> None:
    async with opened(make_agent(["a"]), max_context=50) as client:
        answer = await client.chat([{"role": "user", "content": "x" * 60}], status=400)
        assert answer["error"]["code"] == "context_length_exceeded"
        assert client.session.finish is FinishReason.max_tokens


async def test_a_failure_of_the_engine_fails_the_session() -> None:
    broken = InferenceError("engine_down", "it is gone", retryable=True)
    async with opened(make_agent([Reply(error=broken), "4"])) as client:
        answer = await client.json({"model": "m", "max_tokens": 9, "messages": [USER]}, "/v1/messages", status=503)
        assert answer["error"]["type"] == "overloaded_error"
        assert client.session.failure is broken
        await client.chat([USER], status=503)
        assert client.session.graph.nodes == []


async def test_a_request_that_is_not_http_gets_an_error_of_one_object() -> None:
    async with opened(make_agent(lambda request: "yes")) as client:
        port = int(client.gateway.url.rpartition(":")[2])
        head, body = await answer_to(port, NOT_HTTP)
    assert head.split()[1] == "400" and json.loads(body)["error"]["code"] == "not_http"


async def test_a_key_is_needed_in_one_of_four_places() -> None:
    async with opened(make_agent(["a"] * 4)) as client:
        body = {"model": "m", "messages": [USER]}
        assert (await client.json(body, status=401, headers={}))["error"]["code"] == "invalid_api_key"
        await client.json(body, status=401, headers={"x-api-key": "rocstar-guess"})
        for name in ("x-api-key", "x-goog-api-key"):
            await client.json(body, headers={name: client.secret})
        await client.json(body, f"/sessions/{client.secret}/v1/chat/completions", headers={})
        async with client.http.head(client.gateway.url) as response:
            assert response.status == 200


# ---- dialects ----


BROKEN = ('Hi <tool_call>{"name": "calc", "argu', "Hi <tool_call>[]</tool_call> and " + call("1"))


@pytest.mark.parametrize("written", BROKEN)
async def test_a_turn_with_a_malformed_call_is_text_as_it_was_written(written: str) -> None:
    async with opened(make_agent([written, "4"])) as client:
        tools = client.session.agent.chat.tools
        message = (await client.chat([USER], tools=tools))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": written}
        await client.chat([USER, message, USER], tools=tools)
        assert client.session.graph.nodes[1].parent == 0


async def test_ids_and_logprobs_are_those_of_the_engine_in_every_dialect_that_shows_them() -> None:
    async with opened(make_agent(["It is 4"] * 4)) as client:
        expected = [*TOKENIZER.encode("It is 4"), client.session.agent.chat.stop_id]
        answer = await client.chat([USER], logprobs=True, return_token_ids=True)
        choice = answer["choices"][0]
        prompt = client.session.graph.nodes[0].context
        assert (answer["prompt_token_ids"], choice["token_ids"]) == (list(prompt), expected)
        rows = choice["logprobs"]["content"]
        assert [row["token"] for row in rows] == [f"token_id:{token}" for token in expected]
        assert [row["logprob"] for row in rows] == list(client.session.graph.nodes[0].generation.logprobs)
        given = {"model": "m", "token_ids": answer["prompt_token_ids"], "sampling_params": {"max_tokens": 64}}
        raw = await client.json(given, "/inference/v1/generate")
        assert raw["choices"][0]["token_ids"] == expected
        assert raw["prompt_token_ids"] == list(prompt)
        text = await client.json({"model": "m", "prompt": "2+2", "max_tokens": 64, "logprobs": 0}, "/v1/completions")
        assert text["choices"][0]["text"] == "It is 4"
        assert text["choices"][0]["logprobs"]["tokens"] == [f"token_id:{token}" for token in expected]
        body = {"model": "m", "messages": [USER], "stream": True, "logprobs": True, "return_token_ids": True}
        chunks = await streamed(client, body)
        assert chunks[0]["prompt_token_ids"] == list(prompt)
        assert [t for chunk in chunks for c in chunk["choices"] for t in c.get("token_ids", ())] == expected
        assert "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]) == "It is 4"


async def streamed(client: Client, body: Any) -> list[Any]:
    async with client.post(body) as response:
        assert response.status == 200
        lines = (await response.read()).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


async def test_stop_sequences_end_a_sample_and_its_ids_are_kept() -> None:
    async with opened(make_agent(["one Observation: two"], token_s=0.0)) as client:
        answer = await client.chat([USER], stop=["Observation:"], return_token_ids=True)
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
        assert choice["token_ids"] == TOKENIZER.encode("one Observation:")
        assert client.session.finish is None


async def test_a_stream_gets_pings_while_it_is_sampled_and_an_error_behind_them() -> None:
    gate = asyncio.Event()
    broken = InferenceError("engine_down", "it is gone", retryable=True)
    agent = make_agent([Reply(error=broken)])
    generate = agent.inference.generate

    async def slow(*args: Any, **options: Any) -> Any:
        await gate.wait()
        return await generate(*args, **options)

    agent.inference.generate = slow  # type: ignore[method-assign]
    async with opened(agent) as client:
        client.gateway.ping_s = 0.01
        async with client.post({"model": "m", "messages": [USER], "stream": True}) as response:
            assert (await response.content.readline()) == b": ping\n"
            gate.set()
            rest = (await response.read()).decode()
        assert "engine_down" in rest
        assert response.status == 200


async def test_the_noise_of_a_prompt_does_not_depend_on_the_order_of_arrival() -> None:
    async def seeds(*questions: str) -> dict[str, list[int]]:
        async with opened(make_agent(["a"] * 4)) as client:
            found: dict[str, list[int]] = {}
            for number, question in enumerate(questions):
                await client.chat([{"role": "user", "content": question}], user=str(number))
                found.setdefault(question, []).append(client.requests[-1].seed)
            return found

    one, other = await seeds("a", "b", "c", "b"), await seeds("a", "b", "b", "c")
    assert one == other
    assert len({seed for given in one.values() for seed in given}) == 4
    assert one["a"] == [stream_of(KEY)]


async def test_a_session_counts_a_bounded_number_of_ignored_fields() -> None:
    async with opened(make_agent(lambda request: "4")) as client:
        for k in range(4):
            await client.chat([USER], **{f"field{k}{n}": 1 for n in range(40)})
        assert len(client.session.ignored) == MAX_FIELDS and client.session.ignored["field00"] == 1


async def test_a_stop_sequence_ends_the_sample_and_is_named() -> None:
    async with opened(make_agent(["It is four. END 5"])) as client:
        body = {"model": "m", "max_tokens": 99, "messages": [USER], "stop_sequences": ["five", "END"]}
        answer = await client.json(body, "/v1/messages")
        assert answer["content"] == [{"type": "text", "text": "It is four."}]
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
