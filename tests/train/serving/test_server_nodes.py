"""Orders of rank 0 to servers of other nodes. Whole runs: tests/integration/test_server_nodes.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.train.learner.team import OrderError, RankReply
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving.orders import Orders, serve_node
from rocstar.train.serving.server_nodes import OpenServers, ServerNode
from rocstar.train.serving.server_weights import (
    FilesWritten,
    MakeRoom,
    ServerPublisher,
    ServerWeights,
    ServeVersion,
)
from rocstar.train.serving.servers import Servers
from rocstar.train.serving.weight_folders import WeightFolders

from ...patience import PATIENCE_S

OPEN = OpenServers(folder=Path("start"), logs=Path("logs"), version=4)


def recipe_of(**engine: Any) -> Recipe:
    return parse_recipe({"engine": {"kind": "sglang", **engine}}, where="test")


class Fleet:
    """Takes every version; `served` are (version, kind of source). With `misses` it takes none from memory:
    it waits for the files; when it `is_down`, a server comes back with them."""

    def __init__(self) -> None:
        self.misses = self.is_down = False
        self.version, self.suspended = 0, 0
        self.served: list[tuple[int, str]] = []
        self.kept: Any = None

    async def suspend(self) -> None:
        self.suspended += 1

    async def resume(self, version: int, source: Any) -> None:
        await self.publish(version, source, keep=source)

    async def publish(self, version: int, source: Any, *, keep: Any) -> None:
        self.version, self.kept = version, keep
        if self.is_down:
            raise InferenceError("publish_failed", "no replica took it", retryable=True)
        if isinstance(source, WeightStream):
            if self.misses:
                source = await source.files()
            else:
                assert [name async for bucket in source for name, _ in bucket] == ["a"]
        self.served.append((version, type(source).__name__))

    async def wait_up(self, timeout_s: float) -> bool:
        await asyncio.to_thread(self.kept.shapes)
        self.served.append((self.version, "came back"))
        return True


class Team:
    """One weight, of value 3; `told` are the orders, with whether the files of v7 were there."""

    def __init__(self, files: Path) -> None:
        self.world = SimpleNamespace(rank=1, servers=0)
        self.told: list[tuple[Any, bool]] = []
        self.problem, self.replies = "", [RankReply(rank=8, answer=True)]
        self.stream: WeightStream | None = None
        self._files = files

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (2,)}

    def send_into(self, stream: WeightStream) -> None:
        self.stream = stream

    def send_weights_here(self) -> list[RankReply]:
        stream, self.stream = self.stream, None
        assert stream is not None
        stream.put([("a", torch.full((2,), 3.0))])
        stream.end()
        return [RankReply(rank=0, answer=stream.outcome()), *self.replies]

    def write_weights_here(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({"a": torch.full((2,), 3.0, dtype=dtype)}, folder / "model.safetensors")

    def give_back_here(self) -> None:
        self.order_here("give back")

    def order_here(self, order: Any) -> list[RankReply]:
        self.told.append((order, (self._files / "v7" / "model.safetensors").exists()))
        if self.problem:
            raise OrderError(self.problem)
        return []


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def weights_of(fleet: Fleet, recipe: Recipe) -> ServerWeights:
    return ServerWeights(
        servers=Servers(fleet=cast(Any, fleet), replicas=[], launches=[]), recipe=recipe, patience_s=9.0
    )


# ---- rank 0 ----


def publisher_of(tmp_path: Path, thread: ThreadPoolExecutor, **engine: Any) -> tuple[ServerPublisher, Team]:
    (tmp_path / "start").mkdir()
    team = Team(tmp_path / "weights")
    publisher = ServerPublisher(
        home=weights_of(Fleet(), recipe_of(**engine)),
        team=cast(Any, team),
        thread=thread,
        weight_folders=WeightFolders(tmp_path / "weights", tmp_path / "start", torch.float32),
        has_others=True,
    )
    return publisher, team


async def test_by_disk_other_nodes_are_told_when_the_files_are_there(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    publisher, team = publisher_of(tmp_path, thread)
    async with publisher.updating():
        pass
    await publisher.publish(7)
    order = ServeVersion(version=7, folder=tmp_path / "weights" / "v7", is_live=False, reference=None)
    assert team.told == [(order, True)]


async def test_a_broadcast_does_not_wait_for_the_files_and_other_nodes_learn_of_them(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    publisher, team = publisher_of(tmp_path, thread, publish="broadcast")
    await publisher.publish(7)
    await asyncio.to_thread(lambda: thread.submit(int).result())  # all that was submitted is done
    order = ServeVersion(version=7, folder=tmp_path / "weights" / "v7", is_live=True, reference=None)
    assert team.told == [(order, False), (FilesWritten(version=7), True)]
    assert cast(Any, publisher.home.servers.fleet).served == [(7, "WeightStream")]


@pytest.mark.parametrize("who", ["home", "other", "serving"])
async def test_where_a_node_has_to_take_the_files_they_are_waited_for(
    tmp_path: Path, thread: ThreadPoolExecutor, who: str
) -> None:
    """The broadcast failed there, or it has no learner."""
    publisher, team = publisher_of(tmp_path, thread, publish="broadcast")
    fleet = cast(Any, publisher.home.servers.fleet)
    fleet.misses = who == "home"
    team.world.servers = int(who == "serving")
    team.replies = [RankReply(rank=8, answer=who != "other")]
    write, may_write = team.write_weights_here, Event()

    def late(folder: Path, dtype: torch.dtype) -> None:
        may_write.wait(PATIENCE_S)
        write(folder, dtype)

    team.write_weights_here = late  # type: ignore[method-assign]
    publishing = asyncio.create_task(publisher.publish(7))
    try:
        await asyncio.wait([publishing], timeout=0.05)
        assert not publishing.done()
    finally:
        may_write.set()  # the thread that waits for it would hold up the end of the tests
    await publishing
    assert fleet.served == [(7, "Promised" if who == "home" else "WeightStream")]
    await asyncio.to_thread(lambda: thread.submit(int).result())  # all that was submitted is done
    assert team.told[-1] == (FilesWritten(version=7), True), "which is done when they are served"


async def test_a_server_that_comes_back_for_a_broadcast_finds_its_files_written(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """Who gathers does not wait for it: it would wait for the files that are written next."""
    publisher, _ = publisher_of(tmp_path, thread, publish="broadcast")
    fleet = cast(Any, publisher.home.servers.fleet)
    fleet.is_down = True
    await publisher.publish(7)
    assert fleet.served == [(7, "came back")]


async def test_weights_that_were_not_gathered_end_the_publish_and_nobody_writes(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """The other ranks are still in that collective: another would wait for them for two hours."""
    publisher, team = publisher_of(tmp_path, thread, publish="broadcast")

    def torn() -> list[RankReply]:
        raise RuntimeError("out of memory")

    team.send_weights_here = torn  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        await publisher.publish(7)
    await asyncio.to_thread(lambda: thread.submit(int).result())  # all that was submitted is done
    assert [type(order) for order, _ in team.told] == [ServeVersion]
    assert not (tmp_path / "weights" / "v7").exists()


async def test_no_server_is_waited_for_whose_files_cannot_be_written(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    publisher, team = publisher_of(tmp_path, thread, publish="broadcast")

    def full(folder: Path, dtype: torch.dtype) -> None:
        raise OSError(28, "No space left on device")

    async def waits(timeout_s: float) -> bool:
        raise AssertionError("half an hour, for nothing")

    team.write_weights_here = full  # type: ignore[method-assign]
    fleet = cast(Any, publisher.home.servers.fleet)
    fleet.is_down, fleet.wait_up = True, waits
    with pytest.raises(TrainingStopped, match=r"none can when it comes back: .*No space left on device"):
        await publisher.publish(7)


async def test_a_publish_that_is_cancelled_before_anybody_serves_lets_the_learner_go(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """Ctrl-C while it begins: the loop then waits for the learner's thread."""
    publisher, team = publisher_of(tmp_path, thread, publish="broadcast")

    def shapes() -> dict[str, tuple[int, ...]]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return {"a": (2,)}

    team.shapes = shapes  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(publisher.publish(7))
    await asyncio.to_thread(lambda: thread.submit(int).result(20.0))


@pytest.mark.parametrize("publish", ["disk", "broadcast"])
async def test_no_room_on_the_disk_is_told_to_who_waits_for_the_files(
    tmp_path: Path, thread: ThreadPoolExecutor, publish: str
) -> None:
    publisher, team = publisher_of(tmp_path, thread, publish=publish)

    def full(version: int, weights: Any) -> Path:
        raise OSError("no space left")

    publisher.weight_folders.fill = full  # type: ignore[method-assign,assignment]
    if publish == "disk":
        with pytest.raises(OSError, match="no space left"):
            await publisher.publish(7)
        assert team.told == []
    else:
        await publisher.publish(7)
        with pytest.raises(OSError, match="no space left"):
            await publisher.publish(8)
        assert [order for order, _ in team.told][1:] == [FilesWritten(version=7, problem="no space left")]


async def test_a_learner_in_the_servers_place_gives_memory_back_before_any_of_them_starts(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    publisher, team = publisher_of(tmp_path, thread, placement="restart")
    served: list[tuple[Any, bool]] = []
    cast(Any, publisher.home.servers.fleet).resume = lambda version, source: _noted(served, team.told)
    await publisher.publish(7)
    order = ServeVersion(version=7, folder=tmp_path / "weights" / "v7", is_live=False, reference=None)
    assert team.told == [("give back", True), (order, True)]
    assert served[0] == ("give back", True), "at home too"


async def _noted(served: list[Any], told: list[Any]) -> None:
    served += told


async def test_servers_make_room_on_every_node(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    publisher, team = publisher_of(tmp_path, thread, placement="restart")
    async with publisher.updating():
        assert [order for order, _ in team.told] == [MakeRoom()]
        assert cast(Any, publisher.home.servers.fleet).suspended == 1


async def test_a_node_that_cannot_take_a_version_ends_the_run(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    publisher, team = publisher_of(tmp_path, thread)
    team.problem = "rank 8: no inference server took version 7"
    with pytest.raises(TrainingStopped, match="another node cannot go on: rank 8: no inference server"):
        await publisher.publish(7)
    assert cast(Any, publisher.home.servers.fleet).served, "home serves it nevertheless"


# ---- the first rank of another node ----


def node_of(tmp_path: Path, *, learns: bool = True, **engine: Any) -> tuple[ServerNode, Fleet, Team]:
    fleet, team = Fleet(), Team(tmp_path)
    heard = SimpleNamespace(told=[], expect=lambda *told: heard.told.append(told))
    weights = weights_of(fleet, recipe_of(**engine))
    weights.canary = cast(Any, heard)
    node = ServerNode(weights=weights, fills=team.send_into if learns else None, shapes=team.shapes())
    return node, fleet, team


def live(version: int, folder: Path) -> ServeVersion:
    return ServeVersion(version=version, folder=folder, is_live=True, reference=([1], [-0.5]))


async def test_files_that_are_promised_are_looked_into_when_they_are_there(tmp_path: Path) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    await node.do(live(5, tmp_path))
    assert not fleet.served, "the learner has not gathered anything yet"
    replies = await asyncio.to_thread(team.send_weights_here)
    assert replies[0].answer is True and fleet.served == [(5, "WeightStream")]
    assert cast(Any, node.weights.canary).told == [(5, ([1], [-0.5]))]
    looking = asyncio.create_task(asyncio.to_thread(fleet.kept.shapes))
    await asyncio.wait([looking], timeout=0.05)
    assert not looking.done()
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    await node.do(FilesWritten(version=5))
    assert await looking == {"a": (2,)}


async def test_what_was_missed_in_memory_is_served_from_the_files_before_rank_0_goes_on(
    tmp_path: Path,
) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    fleet.misses = True
    await node.do(live(5, tmp_path))
    replies = await asyncio.to_thread(team.send_weights_here)
    assert replies[0].answer is False and not fleet.served
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    await node.do(FilesWritten(version=5))
    assert fleet.served == [(5, "Promised")]


async def test_a_node_without_a_learner_serves_what_others_broadcast_from_the_files(tmp_path: Path) -> None:
    node, fleet, _ = node_of(tmp_path, learns=False, publish="broadcast")
    await node.do(live(5, tmp_path))
    assert not fleet.served
    await node.do(FilesWritten(version=5))
    assert fleet.served == [(5, "DiskWeights")] and fleet.kept.path == tmp_path
    await node.do(live(6, tmp_path))
    with pytest.raises(OSError, match="no space left"):
        await node.do(FilesWritten(version=6, problem="no space left"))


@pytest.mark.parametrize("how", ["told", "closed"])
async def test_files_that_never_come_keep_nobody_waiting(tmp_path: Path, how: str) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    await node.do(live(5, tmp_path))
    await asyncio.to_thread(team.send_weights_here)
    if how == "told":
        await node.do(FilesWritten(version=5, problem="no space left"))
    await node.close()
    with pytest.raises(OSError, match="no space left" if how == "told" else "the run is over"):
        fleet.kept.shapes()


async def test_a_node_that_is_closed_before_it_serves_lets_its_learner_go(tmp_path: Path) -> None:
    node, _, team = node_of(tmp_path, publish="broadcast")
    await node.do(live(5, tmp_path))
    await node.close()
    with pytest.raises(InferenceError, match="nobody serves them any more"):
        await asyncio.to_thread(team.send_weights_here)


async def test_a_version_from_the_disk(tmp_path: Path) -> None:
    node, fleet, _ = node_of(tmp_path, placement="restart")
    await node.do(MakeRoom())
    await node.do(ServeVersion(version=6, folder=tmp_path, is_live=False, reference=None))
    assert fleet.suspended == 1 and fleet.served == [(6, "DiskWeights")] and fleet.kept.path == tmp_path


# ---- orders between two threads ----


async def test_every_order_is_answered() -> None:
    orders = Orders()
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(orders, name) for name in ("good", "bad")]
        for _ in asked:
            order, answer = await orders.next()
            if order == "good":
                answer.set_result("done")
            else:
                answer.set_exception(ValueError("cannot"))
        good, bad = (asyncio.wrap_future(one) for one in asked)
        assert await good == "done"
        with pytest.raises(ValueError, match="cannot"):
            await bad
        waiting: Future[Any] = Future()
        await orders._put("nobody takes it", waiting)
        orders.close("it ends")
        late = threads.submit(orders, "too late")
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
async def test_a_node_serves_from_the_first_order_to_the_end_of_its_learner(
    tmp_path: Path, starts: bool
) -> None:
    node, fleet, _ = node_of(tmp_path)
    opened = Opened(node, None if starts else ValueError("no room on the device"))
    orders, following = Orders(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_node(opened, following, orders))

    async def ask(order: Any) -> Any:
        return await asyncio.to_thread(orders, order)

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
    with pytest.raises(RuntimeError, match="takes no orders"):
        await ask(version)


async def test_what_ends_the_learner_ends_the_node() -> None:
    following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    following.set_exception(ConnectionError("rank 0 is gone"))
    with pytest.raises(ConnectionError, match="rank 0 is gone"):
        await serve_node(Opened(None), following, Orders())
