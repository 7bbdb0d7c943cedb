"""The client of verifiers' environment server against a fake that sends what a real one sent.

The frames are those of verifiers 0.4.0, a taskset of sums with its `null` agent and `serve_env`: of a right answer
(the agent's two requests are made here), and of a row that the taskset refuses.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.types import Failed, Scored, Task, Trajectory, TrajectoryKey
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.agent import open_environments
from rocstar.train.tasks.environments.kinds import environment_judge, environments_of, places_of
from tests import needs
from tests.fakes.agents import FakeJudge, make_agent, python_tools
from tests.patience import PATIENCE_S

if find_spec("zmq") is None:
    pytest.skip(needs.package("zmq").reason, allow_module_level=True)

import zmq
import zmq.asyncio

FRAMES = json.loads(Path(__file__).with_name("verifiers_frames.json").read_text())


class FakeServer:
    """Answers health; of a run it asks the model once, then sends the frames, or none if there are none."""

    def __init__(self, frames: list[Any]) -> None:
        self.frames, self.seen, self.cancelled = frames, dict[str, Any](), asyncio.Event()
        self.running = asyncio.Event()
        self.socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    async def serve(self) -> None:
        while True:
            who, name, method, payload = await self.socket.recv_multipart()
            body = msgspec.msgpack.decode(payload)
            if method == b"cancel":
                assert body["request_id"] == self.seen["name"]
                self.cancelled.set()
                continue
            frames = self.frames if method == b"run" else [{"success": True, "error": None}]
            if method == b"run":
                self.seen = {**body, "name": name.decode()}
                self.running.set()
                await self._ask(body)
            for frame in frames:
                kind = b"reply" if "success" in frame else b"delta"
                await self.socket.send_multipart([who, name, kind, msgspec.msgpack.encode(frame)])

    async def _ask(self, body: Any) -> None:
        url = f"{body['client']['base_url']}/chat/completions"
        messages = [{"role": "user", "content": body["task_data"]["prompt"]}]
        async with aiohttp.ClientSession() as client:
            answer = await client.post(url, json={"model": body["model"], "messages": messages})
            self.seen["answer"] = (await answer.json())["choices"][0]["message"]["content"]


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    running = []

    async def start(frames: list[Any]) -> FakeServer:
        fake = FakeServer(frames)
        running.append((fake, asyncio.create_task(fake.serve())))
        return fake

    yield start
    for fake, task in running:
        task.cancel()
        fake.socket.close(linger=0)


async def attempt(fake: FakeServer, **limits: Any) -> Trajectory:
    recipe = load_recipe({"environments": [{"kind": "verifiers", "args": {"address": fake.address}}]})
    await asyncio.to_thread(environments_of, recipe)  # it asks this loop's server
    tools, judge = python_tools(), environment_judge(recipe.environments, FakeJudge(), FakeJudge())
    plain = make_agent(["It is 3."], tools=tools, judge=judge, environments=places_of(recipe, tools), **limits)
    meta = {"environment": "verifiers", "row": {"name": "s2", "prompt": "2+1?", "answer": "3"}}
    key = TrajectoryKey(seed=0, step=0, task_id="t", sibling=0)
    async with open_environments(plain.environments, max_context=None) as places:
        agent = replace(plain, environments=places)
        return await run_trajectory(agent, Task(id="t", source="s", question="", answer="", meta=meta), key)


async def test_its_agent_samples_here_and_its_reward_counts(serve: Any) -> None:
    fake = await serve(FRAMES["right"])
    t = await attempt(fake)
    assert t.outcome == Scored(reward=1.0, method="program", is_correct=True)
    assert [turn.text for turn in t.turns] == ["It is 3."] == [fake.seen["answer"]]
    assert fake.seen["task_data"] == {"name": "s2", "prompt": "2+1?", "answer": "3"}
    assert fake.seen["client"]["type"] == "eval" and "/sessions/" in fake.seen["client"]["base_url"]


UNSCORED = [*FRAMES["right"][:3], FRAMES["right"][-1]]
ERRORS = [{"trace": FRAMES["right"][0]["trace"], "errors": [{"type": "ToolError", "message": "no disk"}]}]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (FRAMES["invalid"], "ValidationError: 1 validation error for SumsData"),
        (UNSCORED, "the server scored nothing: rewards = {}"),
        ([*FRAMES["right"][:-1], *ERRORS, FRAMES["right"][-1]], "ToolError: no disk"),
        ([{"x": 1}, FRAMES["right"][-1]], "sent a frame of another form: KeyError('trace')"),
        ([{"trace": "a", "errors": [3]}, FRAMES["right"][-1]], "sent a frame of another form: TypeError"),
        ([{"trace": "a", "set": {"rewards": {"a": 1}}}, FRAMES["right"][-1]], "sent a frame of another form"),
        ([FRAMES["right"][-1]], "0 traces of a task; environments of one agent are supported"),
    ],
)
async def test_a_failure_of_the_server_is_no_reward(serve: Any, frames: list[Any], words: str) -> None:
    t = await attempt(await serve(frames))
    assert isinstance(t.outcome, Failed) and t.outcome.kind == "environment_failed" and words in t.outcome.detail


async def test_a_discarded_trace_does_not_count(serve: Any) -> None:
    retried = [{"trace": "other", "set": {"rewards": {"correct": {"score": 0.0, "weight": 1.0}}}},
               {"trace": "other", "discard": True}]  # fmt: skip
    assert (await attempt(await serve([*retried, *FRAMES["right"]]))).outcome == Scored(reward=1.0, method="program")


async def test_a_run_that_takes_too_long_is_cancelled_there(serve: Any) -> None:
    fake = await serve([])
    t = await attempt(fake, timeout_s=0.5)
    assert isinstance(t.outcome, Failed) and t.outcome.kind == "trajectory_timeout"
    await asyncio.wait_for(fake.cancelled.wait(), PATIENCE_S)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere"])
def test_a_server_that_is_not_there_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocstar.train.tasks.environments.verifiers.ASK_MS", 100)
    with pytest.raises(ConfigError) as refused:
        environments_of(load_recipe({"environments": [{"kind": "verifiers", "args": {"address": address}}]}))
    assert str(refused.value).startswith(f"environments.0.kind = 'verifiers': args.address = {address!r}: ")
