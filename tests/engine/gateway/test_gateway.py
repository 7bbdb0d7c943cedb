"""The gateway over a policy that follows a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.endpoint import Gateway, open_gateway
from rocstar.engine.gateway.session import Session, Sessions
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.types import Attempt, Outcome, Scored, Task, TrajectoryKey
from tests.engine.serve.conftest import LLAMA, TOKENIZER, call, ready_tool
from tests.fakes.scripted_policy import Request, ScriptedPolicy

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

    def __init__(self, session: Session, gateway: Gateway, secret: str, http: aiohttp.ClientSession) -> None:
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
    sessions, session = Sessions(), Session(agent, KEY, **options)
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
