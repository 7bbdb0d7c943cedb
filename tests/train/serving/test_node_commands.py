"""Commands of rank 0 between the two threads of another node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.learner.commands import NodeCommand
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServerNode, ServeVersion
from rocstar.train.serving.nodes import CommandQueue, serve_node
from rocstar.train.serving.sglang import OpenServers

from ...fakes.publishing import FakeFleet, node_servers, sglang_recipe

OPEN = OpenServers(folder=Path("start"), logs=Path("logs"), version=4)


async def test_every_command_is_answered() -> None:
    commands = CommandQueue()
    with ThreadPoolExecutor(3) as threads:
        good_one, bad_one = MakeRoom(), FilesWritten(version=1)
        asked = [threads.submit(commands, one) for one in (good_one, bad_one)]
        for _ in asked:
            command, answer = await commands.queue.get()
            if command == good_one:
                answer.set_result("done")
            else:
                answer.set_exception(ValueError("cannot"))
        good, bad = (asyncio.wrap_future(one) for one in asked)
        assert await good == "done"
        with pytest.raises(ValueError, match="cannot"):
            await bad
        waiting: Future[Any] = Future()
        await commands._put(good_one, waiting)
        commands.close("it ends")
        late = threads.submit(commands, bad_one)
        for one in (waiting, late):
            with pytest.raises(RuntimeError, match="it ends"):
                await asyncio.wrap_future(one)


class Opened:
    """A backend's `open_node`, and what became of it."""

    def __init__(self, node: Any, error: Exception | None = None) -> None:
        self.node, self.error, self.is_open = node, error, False

    @contextlib.asynccontextmanager
    async def __call__(self, *arguments: Any) -> AsyncIterator[tuple[Any, str]]:
        if self.error is not None:
            raise self.error
        self.is_open = True
        yield self.node, "http://10.0.0.2:9"
        self.is_open = False


@pytest.mark.parametrize("starts", [True, False])
async def test_a_node_serves_from_the_first_command_to_the_end_of_its_learner(tmp_path: Path, starts: bool) -> None:
    fleet = FakeFleet()
    node = ServerNode(servers=node_servers(fleet, sglang_recipe()), shapes=None)
    opened = Opened(node, None if starts else ValueError("no room on the device"))
    commands, following = CommandQueue(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_node(opened, following, commands))

    async def ask(command: NodeCommand) -> Any:
        return await asyncio.to_thread(commands, command)

    version = ServeVersion(version=6, folder=tmp_path, is_live=False, reference=None)
    if starts:
        assert await ask(OPEN) == "http://10.0.0.2:9" and opened.is_open
        await ask(version)
        assert fleet.served == [(6, "DiskWeights")]
    else:
        with pytest.raises(ValueError, match="no room on the device"):
            await ask(OPEN)
        with pytest.raises(RuntimeError, match="did not start"):
            await ask(version)
    assert not serving.done(), "rank 0 says when it ends"
    following.set_result(None)
    with contextlib.nullcontext() if starts else pytest.raises(ValueError, match="no room"):  # type: ignore[attr-defined]
        await serving
    assert not opened.is_open
    with pytest.raises(RuntimeError, match="takes no commands"):
        await ask(version)


async def test_what_ends_the_learner_ends_the_node() -> None:
    following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    following.set_exception(ConnectionError("rank 0 is gone"))
    with pytest.raises(ConnectionError, match="rank 0 is gone"):
        await serve_node(Opened(None), following, CommandQueue())
