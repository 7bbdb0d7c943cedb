"""A server keeps no objects of a conversation that has ended and is on the disk."""

import asyncio
import gc
import types
import weakref
from collections import Counter
from pathlib import Path

import pytest

from .conftest import Client, SlowTool, call, keeping, make_agent, opened, scripted

PER_FILE = 4
OF_CACHES = (weakref.ReferenceType, types.BuiltinFunctionType)
"""The types in the caches of abstract base classes, whose size varies."""
THINKS = ["<think>Add.</think>" + call("2+2"), "So <answer>4</answer>"]


def things() -> Counter[type]:
    """Return the number of objects of each type."""
    gc.collect()
    return Counter(kind for kind in map(type, gc.get_objects()) if kind not in OF_CACHES)


@pytest.mark.parametrize("how", ["at_once", "streamed", "left"])
async def test_no_kind_of_object_grows_with_the_requests(tmp_path: Path, how: str) -> None:
    """Whole, streamed, or left by the client in the middle."""
    tool = SlowTool()
    agent, found = make_agent(scripted(THINKS), tool), []
    async with keeping(tmp_path / "served", agent, per_file=PER_FILE) as store:
        async with opened(agent, tool, store) as client:
            for _ in range(2):
                for _ in range(4 * PER_FILE):
                    await one(client, how)
                await client.conversations._idle.wait()
                for noted in (agent.inference.requests, agent.inference.released, tool.noted):  # type: ignore[attr-defined]
                    noted.clear()
                await client.get("/health")  # whose task and connection are there every time
                await settle()
                found.append(things())
    grown = found[1] - found[0]
    # What is made at a first use is few; of a leak there is one a request.
    assert {kind: more for kind, more in grown.items() if more >= 2 * PER_FILE} == {}
    assert {kind: more for kind, more in grown.items() if kind.__module__.startswith("rocstar")} == {}


async def settle() -> None:
    """Let pending callbacks run, and make asyncio drop its cancelled timers, which need to be many."""
    for _ in range(500):
        asyncio.get_running_loop().call_later(1e6, gc.collect).cancel()
    for _ in range(10):
        await asyncio.sleep(0)


async def one(client: Client, how: str) -> None:
    if how == "left":
        client.tool.gate.clear()
        client.tool.began.clear()
        response = await client.streaming()
        await client.tool.began.wait()
        response.close()
        await client.conversations._idle.wait()
        await asyncio.sleep(0)
        return
    client.tool.gate.set()
    await (client.chat() if how == "at_once" else client.stream())
