"""Rank 0 publishes versions to servers of all nodes. Whole runs: tests/integration/test_server_nodes.py."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.train.learner.commands import RankReply, ReleaseMemory
from rocstar.train.publish import server_publisher
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServeVersion
from rocstar.train.publish.server_publisher import PublishPhase, ServerPublisher, VersionFolders
from rocstar.train.recipe.errors import TrainingStopped

from ...fakes.publishing import FakeFleet, FakeTeam, node_servers, sglang_recipe
from ...patience import PATIENCE_S


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


Made = Callable[..., tuple[ServerPublisher, FakeTeam]]


@pytest.fixture
def made(tmp_path: Path, thread: ThreadPoolExecutor) -> Made:
    """Makes a publisher of `FakeFleet` and `FakeTeam` with these settings of the engine."""

    def make(**engine: Any) -> tuple[ServerPublisher, FakeTeam]:
        (tmp_path / "start").mkdir()
        team = FakeTeam(tmp_path / "weights")
        publisher = ServerPublisher(
            home=node_servers(FakeFleet(), sglang_recipe(**engine)),
            team=cast(Any, team),
            thread=thread,
            folders=VersionFolders(tmp_path / "weights", tmp_path / "start", torch.float32),
        )
        return publisher, team

    return make


async def idle(publisher: ServerPublisher) -> None:
    """Return when the learner's thread has done all that was submitted."""
    await asyncio.to_thread(publisher.thread.submit(int).result, 20.0)


def serve(version: int, tmp_path: Path, *, is_live: bool = False) -> ServeVersion:
    folder = tmp_path / "weights" / f"v{version}"
    return ServeVersion(version=version, folder=folder, is_live=is_live, reference=None)


async def test_by_disk_other_nodes_are_told_when_the_files_are_there(tmp_path: Path, made: Made) -> None:
    publisher, team = made()
    async with publisher.updating():
        pass
    await publisher.publish(7)
    order = serve(7, tmp_path)
    assert team.told == [(order, True)]


async def test_a_broadcast_does_not_wait_for_the_files_and_other_nodes_learn_of_them(
    tmp_path: Path, made: Made
) -> None:
    publisher, team = made(publish="broadcast")
    await publisher.publish(7)
    await idle(publisher)
    order = serve(7, tmp_path, is_live=True)
    assert team.told == [(order, False), (FilesWritten(version=7), True)]
    assert cast(Any, publisher.home.fleet).served == [(7, "WeightStream")]
    assert publisher.phase is PublishPhase.done


@pytest.mark.parametrize("who", ["home", "other", "serving"])
async def test_where_a_node_has_to_take_the_files_they_are_waited_for(tmp_path: Path, made: Made, who: str) -> None:
    """The broadcast failed there, or it has no learner."""
    publisher, team = made(publish="broadcast")
    fleet = cast(Any, publisher.home.fleet)
    fleet.misses = who == "home"
    team.world.servers = int(who == "serving")
    team.replies = [RankReply(rank=8, answer=who != "other")]
    write, may_write = team.write, Event()

    def late(folder: Path, dtype: torch.dtype) -> None:
        may_write.wait(PATIENCE_S)
        write(folder, dtype)

    team.write = late  # type: ignore[method-assign]
    publishing = asyncio.create_task(publisher.publish(7))
    try:
        await asyncio.wait([publishing], timeout=0.05)
        assert not publishing.done()
    finally:
        may_write.set()  # the thread that waits for it would hold up the end of the tests
    await publishing
    assert fleet.served == [(7, "PendingFiles" if who == "home" else "WeightStream")]
    await idle(publisher)
    assert team.told[-1] == (FilesWritten(version=7), True), "which is done when they are served"


async def test_a_server_that_comes_back_for_a_broadcast_finds_its_files_written(tmp_path: Path, made: Made) -> None:
    """Who gathers does not wait for it: it would wait for the files that are written next."""
    publisher, _ = made(publish="broadcast")
    fleet = cast(Any, publisher.home.fleet)
    fleet.is_down = True
    await publisher.publish(7)
    assert fleet.served == [(7, "came back")]


async def test_weights_that_were_not_gathered_end_the_publish_and_nobody_writes(tmp_path: Path, made: Made) -> None:
    """The other ranks are still in that collective: another would wait for them for two hours."""
    publisher, team = made(publish="broadcast")

    def torn(stream: WeightStream | None) -> list[RankReply]:
        raise RuntimeError("out of memory")

    team.send = torn  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        await publisher.publish(7)
    await idle(publisher)
    assert [type(command) for command, _ in team.told] == [ServeVersion] and publisher.phase is PublishPhase.send
    assert not (tmp_path / "weights" / "v7").exists()


async def test_no_server_is_waited_for_whose_files_cannot_be_written(tmp_path: Path, made: Made) -> None:
    publisher, team = made(publish="broadcast")

    def full(folder: Path, dtype: torch.dtype) -> None:
        raise OSError(28, "No space left on device")

    async def waits(timeout_s: float) -> bool:
        raise AssertionError("half an hour, for nothing")

    team.write = full  # type: ignore[method-assign]
    fleet = cast(Any, publisher.home.fleet)
    fleet.is_down, fleet.wait_up = True, waits
    with pytest.raises(TrainingStopped, match=r"none can when it comes back: .*No space left on device"):
        await publisher.publish(7)


async def test_a_publish_that_is_cancelled_before_anybody_serves_lets_the_learner_go(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it begins: the loop then waits for the learner's thread."""
    publisher, _ = made(publish="broadcast")

    def shapes(_: Any) -> dict[str, tuple[int, ...]]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return {"a": (2,)}

    monkeypatch.setattr(server_publisher, "weight_shapes", shapes)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(publisher.publish(7))
    await idle(publisher)


@pytest.mark.parametrize("publish", ["disk", "broadcast"])
async def test_no_room_on_the_disk_is_told_to_who_waits_for_the_files(made: Made, publish: str) -> None:
    publisher, team = made(publish=publish)

    def full(version: int, weights: Any) -> Path:
        raise OSError("no space left")

    publisher.folders.fill = full  # type: ignore[method-assign,assignment]
    if publish == "disk":
        with pytest.raises(OSError, match="no space left"):
            await publisher.publish(7)
        assert team.told == []
    else:
        await publisher.publish(7)
        with pytest.raises(OSError, match="no space left"):
            await publisher.publish(8)
        assert [command for command, _ in team.told][1:] == [FilesWritten(version=7, problem="no space left")]


async def test_a_learner_in_the_servers_place_gives_memory_back_before_any_of_them_starts(
    tmp_path: Path, made: Made
) -> None:
    publisher, team = made(placement="restart")
    served: list[tuple[Any, bool]] = []

    async def resume(version: int, source: Any) -> None:
        served.extend(team.told)

    cast(Any, publisher.home.fleet).resume = resume
    await publisher.publish(7)
    order = serve(7, tmp_path)
    assert team.told == [(ReleaseMemory(), True), (order, True)]
    assert served[0] == (ReleaseMemory(), True), "at home too"


async def test_servers_make_room_on_every_node(tmp_path: Path, made: Made) -> None:
    publisher, team = made(placement="restart")
    async with publisher.updating():
        assert [command for command, _ in team.told] == [MakeRoom()]
        assert cast(Any, publisher.home.fleet).suspended == 1


async def test_a_node_that_cannot_take_a_version_ends_the_run(tmp_path: Path, made: Made) -> None:
    publisher, team = made()
    team.problem = "rank 8: no inference server took version 7"
    with pytest.raises(TrainingStopped, match="another node cannot go on: rank 8: no inference server"):
        await publisher.publish(7)
    assert cast(Any, publisher.home.fleet).served, "home serves it nevertheless"


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_version_that_no_server_takes(tmp_path: Path, made: Made, comes_back: bool) -> None:
    """One that comes back finds it on the disk; if none does, the run ends and names the logs."""
    publisher, _ = made()
    kept, waited = [], []
    replica = SimpleNamespace(
        log_path=tmp_path / "sglang-0.log",
        engine=SimpleNamespace(dtype="float32"),
        keep=lambda version, source: kept.append((version, source.path)),
    )

    async def wait_up(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return comes_back

    publisher.home.replicas.append(cast(Any, replica))
    fleet = cast(Any, publisher.home.fleet)
    fleet.is_down, fleet.wait_up = True, wait_up
    expected: Any = contextlib.nullcontext()
    if not comes_back:
        expected = pytest.raises(TrainingStopped, match=r"version 3 .*sglang-0\.log, then go on")
    with expected:
        await publisher.publish(3)
    assert kept == [(3, tmp_path / "weights" / "v3")] and waited == [9.0]
    assert (tmp_path / "weights" / "v3" / "model.safetensors").exists()
