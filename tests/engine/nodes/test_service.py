"""The service and its client over HTTP on loopback; the fake node passes what the real one passes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from rocstar.engine.nodes import client, service
from rocstar.engine.nodes.client import HttpNode, node_session
from rocstar.engine.nodes.node import Node, NodeError, run_order
from rocstar.engine.nodes.service import NodeService, serving
from rocstar.engine.nodes.wire import encode_order
from rocstar.engine.rollout.rollout import Agent
from tests.fakes.fake_node import FakeNode, Fault
from tests.fakes.scripted_policy import Reply, Request, check_trajectory

from ...malformed_http import answer_to

TOKEN = "t" * 32
Open = Callable[[Agent], contextlib.AbstractAsyncContextManager[Node]]


@contextlib.asynccontextmanager
async def real(agent: Agent) -> AsyncIterator[Node]:
    async with serving(NodeService(agent, TOKEN), "127.0.0.1") as port, node_session(TOKEN) as session:
        yield HttpNode("1", f"http://127.0.0.1:{port}", session)


@contextlib.asynccontextmanager
async def fake(agent: Agent) -> AsyncIterator[Node]:
    yield FakeNode("1", agent)


@pytest.fixture(params=[real, fake])
def opened(request: pytest.FixtureRequest) -> Open:
    made: Open = request.param
    return made


def at_once(request: Request) -> Reply:
    return Reply(text=str(request.seed % 5))


async def test_a_group_is_the_one_of_this_process(opened: Open, agent_of: Any, order_of: Any) -> None:
    order = order_of("a", size=4, meta={"x": (1, 2)})
    expected = await run_order(agent_of(at_once), order)
    async with opened(agent_of(at_once)) as node:
        group = await node.roll_out(order, timeout_s=50.0)
    assert group == expected and len(group.trajectories) == 4
    for trajectory in group.trajectories:
        check_trajectory(trajectory)


async def test_siblings_ordered_apart_are_those_of_the_whole(opened: Open, agent_of: Any, order_of: Any) -> None:
    order = order_of("a", size=7)
    expected = await run_order(agent_of(at_once), order)
    async with opened(agent_of(at_once)) as node:
        parts = [await node.roll_out(part, timeout_s=50.0) for part in order.parts(3)]
    assert [len(part.trajectories) for part in parts] == [3, 3, 1]
    assert tuple(t for part in parts for t in part.trajectories) == expected.trajectories


async def test_load_is_that_of_the_engine(opened: Open, agent_of: Any) -> None:
    agent = agent_of(at_once)
    async with opened(agent) as node:
        load = (await node.load()).kv
        assert (load.used, load.running, load.waiting) == (0, 0, 0) and load.total > 0


async def test_a_bug_there_is_an_error_here(
    opened: Open, agent_of: Any, order_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(agent_of(lambda _: Reply(text="a bug"))) as node:
        if isinstance(node, FakeNode):
            node.faults["s1/a"] = Fault.error
        with pytest.raises(NodeError, match="500"):
            await node.roll_out(order_of("a"), timeout_s=50.0)
        assert (await node.load()).kv.used == 0
        if isinstance(node, HttpNode):
            assert "KeyError: 'a bug'" in capsys.readouterr().err


async def test_cancelling_ends_it_there(opened: Open, agent_of: Any, order_of: Any, until: Callable[..., Any]) -> None:
    agent = agent_of(lambda _: Reply(text="4", delay_s=3600.0))
    policy: Any = agent.inference
    async with opened(agent) as node:
        waiting = asyncio.create_task(node.roll_out(order_of("a", size=2), timeout_s=5000.0))
        await until(lambda: len(policy.requests) == 2)
        waiting.cancel()
        await until(lambda: len(policy.released) == 2)
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("header", [None, "Bearer " + "x" * 32, "Bearer", TOKEN, "Basic " + TOKEN])
async def test_another_token_is_refused(agent_of: Any, order_of: Any, header: str | None) -> None:
    agent = agent_of(at_once)
    async with serving(NodeService(agent, TOKEN), "127.0.0.1") as port, aiohttp.ClientSession() as session:
        headers = {} if header is None else {"Authorization": header}
        url, body = f"http://127.0.0.1:{port}", encode_order(order_of("a"), timeout_s=1.0)
        for answer in (
            await session.post(url + "/v1/groups", data=body, headers=headers),
            await session.get(url + "/v1/load", headers=headers),
            await session.get(url + "/other", headers=headers),
        ):
            assert answer.status == 401 and TOKEN not in await answer.text()
    assert not agent.inference.requests


async def test_what_is_no_http_has_the_form_of_other_errors(agent_of: Any) -> None:
    async with serving(NodeService(agent_of(at_once), TOKEN), "127.0.0.1") as port:
        line, body = await answer_to(port)
    reason = "the request is not HTTP: Invalid character in Content-Length: b'Content-Length: x'"
    assert " 400 " in line and json.loads(body) == {"error": reason}


async def test_what_is_refused_says_why(agent_of: Any, order_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(service, "MAX_BODY_BYTES", 10_000)
    agent = agent_of(lambda _: Reply(text="4", delay_s=3600.0))

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.get_running_loop().create_future()

    async with serving(NodeService(agent, TOKEN), "127.0.0.1") as port, node_session(TOKEN) as session:
        url = f"http://127.0.0.1:{port}/v1/groups"
        order = encode_order(order_of("a"), timeout_s=0.01)
        for body, status, reason in (
            (b"{}", 400, "not of version 5"),
            (b"x" * 20_000, 413, "Too Large"),
            (never(), 408, "did not arrive"),
            (order, 504, "s1/a was not done within 0.01 s"),
        ):
            async with session.post(url, data=body) as answer:
                assert answer.status == status and reason in json.loads(await answer.read())["error"]
        monkeypatch.setattr(service, "MAX_GROUPS", 0)
        async with session.post(url, data=order) as answer:
            assert answer.status == 429
        async with session.get(url) as answer:
            assert answer.status == 405


async def test_a_group_ordered_again_begins_anew(agent_of: Any, order_of: Any, until: Callable[..., Any]) -> None:
    """As when the first caller was lost and its connection not noticed yet: never two of one name at once."""
    slow = {"first": True}
    agent = agent_of(lambda r: Reply(text=str(r.seed % 5), delay_s=3600.0 if slow["first"] else 0.0))
    policy: Any = agent.inference
    order = order_of("a", size=2)
    async with real(agent) as node:
        first = asyncio.create_task(node.roll_out(order, timeout_s=5000.0))
        await until(lambda: policy.load().running == 2)
        slow["first"] = False
        second = await node.roll_out(order, timeout_s=50.0)
        with pytest.raises(NodeError, match=r"409: .*ordered again"):
            await first
    assert second == await run_order(agent_of(at_once), order)
    assert sorted(policy.released) == sorted(["s1/a/0", "s1/a/1"] * 2)


async def test_a_service_that_ends_ends_its_groups(agent_of: Any, order_of: Any, until: Callable[..., Any]) -> None:
    agent = agent_of(lambda _: Reply(text="4", delay_s=3600.0))
    policy: Any = agent.inference
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(node_session(TOKEN))
        async with serving(NodeService(agent, TOKEN), "127.0.0.1") as port:
            node = HttpNode("1", f"http://127.0.0.1:{port}", session)
            waiting = asyncio.create_task(node.roll_out(order_of("a", size=2), timeout_s=5000.0))
            await until(lambda: len(policy.requests) == 2)
        assert len(policy.released) == 2
        with pytest.raises(NodeError):
            await waiting
        with pytest.raises(NodeError):
            await node.load()


async def test_an_answer_that_is_too_large_is_not_taken(
    agent_of: Any, order_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 200)
    async with real(agent_of(at_once)) as node:
        with pytest.raises(NodeError, match="more than 200 bytes"):
            await node.roll_out(order_of("a"), timeout_s=50.0)
        await node.load()
