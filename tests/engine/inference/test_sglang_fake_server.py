"""How the fake server dies: nobody's connection outlives it, whenever they came."""

import asyncio
import contextlib
import gc
import socket
import warnings
from pathlib import Path

import pytest

from tests.fakes.sglang.fake_model import write_tiny_model
from tests.fakes.sglang.fake_server import FakeServer

from ...patience import PATIENCE_S


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("fake") / "model", seed=0)


async def test_its_door_closes_even_when_all_tasks_are_cancelled_while_it_dies(model: Path) -> None:
    """As at the end of a run, in which a rollout ahead had killed it."""
    server = await FakeServer(model).__aenter__()
    server._answering += 1  # a request that never ends
    dying = asyncio.create_task(server.kill())
    while server._killing is None or server._runner is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert dying.cancelled()
    assert server._listening is not None and not server._listening.is_serving()


@pytest.mark.parametrize("turns", range(12))
async def test_who_is_being_let_in_while_it_dies_is_dropped(model: Path, turns: int) -> None:
    """`turns` of the loop after its death began. A socket that is left open is closed by the garbage
    collector, with a warning in whatever test runs then."""
    server = await FakeServer(model).__aenter__()
    with warnings.catch_warnings(record=True) as caught, socket.socket() as client:
        warnings.simplefilter("always", ResourceWarning)
        client.setblocking(False)
        dying = asyncio.create_task(server.kill())
        for _ in range(turns):
            await asyncio.sleep(0)
        client.connect_ex(("127.0.0.1", server.port))
        await dying
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(OSError):  # refused, or reset
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        del dying, server
        gc.collect()
    assert not [str(one.message) for one in caught]
