"""The client of OpenEnv servers against a fake that replays what a real one answered (record_openenv.py)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rocstar.engine.types import Failed, FinishReason, Scored
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.environments.kinds import environments_of
from tests.patience import PATIENCE_S
from tests.train.tasks.environments.attempts import attempt, call

FRAMES = json.loads(Path(__file__).with_name("openenv_frames.json").read_text())


class FakeServer:
    """Answers the frames of one talk, in order; each must be the one that was recorded. None: never answer."""

    def __init__(self, name: str, talk: list[Any]) -> None:
        self._talk, self.seen, self.closed = talk, list[Any](), asyncio.Event()
        self.app = web.Application()
        self._answers = FRAMES[name]
        self.app.router.add_get("/ws", self._socket)
        self.app.router.add_route("*", "/{path}", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        return web.json_response(self._answers[request.path])

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        talk = iter(self._talk)
        async for message in socket:
            self.seen.append(message.json())
            _, answer = next(talk)
            if answer is not None:
                await socket.send_json(answer)
        self.closed.set()
        return socket


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    runners = []

    async def start(name: str, talk: list[Any], **fields: Any) -> tuple[FakeServer, Recipe]:
        fake = FakeServer(name, talk)
        runner = web.AppRunner(fake.app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        args = {"url": f"http://127.0.0.1:{port}", **fields.pop("args", {})}
        recipe = load_recipe({"environments": [{"kind": "openenv", "args": args, **fields}]})
        await asyncio.to_thread(environments_of, recipe)  # it asks this loop's server
        return fake, recipe

    yield start
    for runner in runners:
        await runner.cleanup()


GUESS = FRAMES["talks"]["guess"]
PLAYED = [GUESS[0], GUESS[1], GUESS[3]]
GUESSES = [call("step", number=3), call("step", number=9), call("step", number=2), "not asked"]


async def test_steps_are_sent_and_rewards_added(serve: Any) -> None:
    fake, recipe = await serve("guess", PLAYED)
    t = await attempt(GUESSES, recipe, row={"seed": 1})
    assert t.outcome == Scored(reward=0.5, method="program", is_correct=False)
    assert t.finish_reason is FinishReason.answered and len(t.turns) == 3, "done ends the attempt"
    assert [result.text for result in t.results] == [
        "no",
        "Argument 'number': 9 is greater than the maximum of 6",
        "yes",
    ]
    assert [result.status for result in t.results] == ["ok", "bad_arguments", "ok"]
    assert fake.seen == [sent for sent, _ in PLAYED]
    await asyncio.wait_for(fake.closed.wait(), PATIENCE_S)


async def test_an_action_that_the_server_finds_invalid_is_an_error_to_read(serve: Any) -> None:
    _, recipe = await serve("guess", [GUESS[0], GUESS[2]])
    t = await attempt([GUESSES[0], "done"], recipe, row={"seed": 1})
    assert (t.results[0].status, t.results[0].text) == ("bad_arguments", "String should match pattern '^[a-z]*$'")
    assert t.outcome == Scored(reward=0.0, method="program", is_correct=False)


async def test_the_last_reward_can_be_chosen(serve: Any) -> None:
    _, recipe = await serve("guess", PLAYED, args={"reward": "last"})
    t = await attempt(GUESSES, recipe, row={"seed": 1})
    assert t.outcome == Scored(reward=1.0, method="program", is_correct=True)


async def test_siblings_get_one_seed(serve: Any) -> None:
    seen = []
    for sibling in (0, 1):
        fake, recipe = await serve("guess", PLAYED)
        await attempt(["done"], recipe, row={"level": 2}, sibling=sibling)
        seen.append(fake.seen[0]["data"])
    assert seen[0] == seen[1] and seen[0]["level"] == 2 and 0 <= seen[0]["seed"] < 1 << 31


async def test_the_schema_becomes_a_tool(serve: Any) -> None:
    _, recipe = await serve("guess", [])
    (function,) = environments_of(recipe)["openenv"].functions
    assert function["function"]["name"] == "step" and function["function"]["description"] == "One guess."
    assert list(function["function"]["parameters"]["properties"]) == ["number", "how"]


async def test_tools_of_an_mcp_environment_are_shown_by_name(serve: Any) -> None:
    fake, recipe = await serve("note", FRAMES["talks"]["note"])
    turns = [call("note", text="a"), call("note", text="bad"), call("note", text="b"), "done"]
    t = await attempt(turns, recipe, row={"seed": 1})
    assert [result.text for result in t.results] == ["a", "Error calling tool 'note': no such note", "a, b"]
    assert [result.is_error for result in t.results] == [False, True, False]
    assert isinstance(t.outcome, Scored) and t.outcome.reward == 0.0
    assert fake.seen == [sent for sent, _ in FRAMES["talks"]["note"]]


SILENT = [FRAMES["talks"]["note"][0], ["step", None]]


@pytest.mark.parametrize(
    ("talk", "words", "fields"),
    [
        (FRAMES["talks"]["six"], "EXECUTION_ERROR: six", {}),
        ([["reset", FRAMES["refused"]]], "CAPACITY_REACHED: Server at capacity: 1/1 sessions active", {}),
        (SILENT, "did not answer the last call in time", {"timeout_s": 0.2}),
        ([["reset", None]], "openenv: its reset took longer than timeout_s = 0.2", {"timeout_s": 0.2}),
    ],
)
async def test_an_error_of_the_server_is_no_reward(
    serve: Any, talk: list[Any], words: str, fields: dict[str, Any]
) -> None:
    _, recipe = await serve("guess", talk, **fields)
    t = await attempt([call("step", number=6), "done"], recipe, row={"seed": 1})
    assert isinstance(t.outcome, Failed) and t.outcome.kind == "environment_failed" and words in t.outcome.detail
    assert t.outcome.retryable


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"url": "http://127.0.0.1:1"}, "/schema is not answered (<urlopen error [Errno 111]"),
        ({"url": "nowhere"}, "/schema is not answered (unknown url type"),
        ({"url": "http://127.0.0.1:1", "reward": "mean"}, "args.reward = 'mean' is neither 'sum' nor 'last'"),
        ({}, "missing a required argument: 'url'"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        environments_of(load_recipe({"environments": [{"kind": "openenv", "args": args}]}))
    assert str(refused.value).startswith("environments.0.kind = 'openenv': ") and words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "listed", "words"),
    [
        ([], {}, "/schema is not answered (it is no JSON object"),
        ({}, {}, "its actions have not OpenEnv's form: KeyError('action')"),
        ({"action": 3}, {}, "its actions have not OpenEnv's form"),
        ({"action": {"type": "array"}}, {}, "the tool 'step': it is no JSON schema of an object"),
        ({"action": {"type": "object", "description": [1]}}, {}, "the tool 'step': it is no JSON schema"),
        ({"action": {}}, {"result": {"tools": {"name": 1}}}, "its actions have not OpenEnv's form"),
        ({"action": {}}, {"result": {"tools": [{"name": 1, "inputSchema": {"type": "object"}}]}}, "it has no texts"),
        ({"action": {}}, {"result": None}, "its actions have not OpenEnv's form"),
    ],
)
async def test_the_description_of_a_server_is_checked(
    serve: Any, monkeypatch: pytest.MonkeyPatch, schema: Any, listed: Any, words: str
) -> None:
    monkeypatch.setitem(FRAMES, "hostile", {"/schema": schema, "/mcp": listed})
    with pytest.raises(ConfigError) as refused:
        await serve("hostile", [])
    assert words in str(refused.value) and "\n" not in str(refused.value)
