"""A server holds nothing of a conversation that is over and on the disk, but what its folder needs."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from rocstar.engine.serve.endpoint import ServeOptions
from rocstar.engine.serve.opened import open_endpoint

from .conftest import QUESTION, Client, SlowTool, call, keeping, make_agent, scripted

PER_FILE = 4
THINKS = ["<think>Add.</think>" + call("2+2"), "So <answer>4</answer>"]


def things() -> Counter[str]:
    """How many objects there are, by type."""
    gc.collect()
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


@pytest.mark.parametrize("how", ["at_once", "streamed", "left"])
async def test_no_kind_of_object_grows_with_the_requests(tmp_path: Path, how: str) -> None:
    """Answered at once, streamed, or left by their client in the middle: whole files of conversations later
    there are no more objects of any type than before."""
    tool = SlowTool()
    agent = make_agent(scripted(THINKS), tool)
    async with keeping(tmp_path / "served", agent, per_file=PER_FILE) as kept:
        async with open_endpoint(agent, ServeOptions(), kept=kept, note=lambda line: None) as listening:
            async with aiohttp.ClientSession() as session:
                client = Client(session=session, listening=listening, tool=tool, agent=agent, notes=[])
                found = []
                for _ in range(4):
                    for _ in range(2 * PER_FILE):
                        await one(client, how)
                    await client.desk._idle.wait()
                    for noted in (agent.inference.requests, agent.inference.released, tool.noted):  # type: ignore[attr-defined]
                        noted.clear()
                    await client.get("/health")  # whose task and connection are there every time
                    found.append(things())
    grown = {name: found[-1][name] - found[1][name] for name in found[-1]}
    assert {name: more for name, more in grown.items() if more >= PER_FILE} == {}
    assert {name: more for name, more in grown.items() if more > 0 and name.startswith("rocstar")} == {}


async def one(client: Client, how: str) -> None:
    if how == "left":
        client.tool.gate.clear()
        client.tool.began.clear()
        body = {"model": "rocstar-agent", "messages": [QUESTION], "stream": True}
        response = await client.post("/v1/chat/completions", body)
        await client.tool.began.wait()
        response.close()
        await client.desk._idle.wait()
        await asyncio.sleep(0)
        return
    client.tool.gate.set()
    await (client.chat() if how == "at_once" else client.stream())
