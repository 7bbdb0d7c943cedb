"""A node's servers under rank 0's commands. Whole runs: tests/integration/test_server_nodes.py."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from rocstar.engine.inference.base import InferenceError
from rocstar.train.publish.rank_commands import weight_shapes
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServerNode, ServeVersion

from ...fakes.publishing import FakeFleet, FakeTeam, node_servers, sglang_recipe


def node_of(tmp_path: Path, *, learns: bool = True, **engine: Any) -> tuple[ServerNode, FakeFleet, FakeTeam]:
    fleet, team = FakeFleet(), FakeTeam(tmp_path)
    heard = SimpleNamespace(told=[], expect=lambda *told: heard.told.append(told))
    servers = node_servers(fleet, sglang_recipe(**engine))
    servers.canary = cast(Any, heard)
    return ServerNode(servers=servers, shapes=weight_shapes(cast(Any, team)) if learns else None), fleet, team


def live(version: int, folder: Path) -> ServeVersion:
    return ServeVersion(version=version, folder=folder, is_live=True, reference=([1], [-0.5]))


async def test_files_that_are_promised_are_looked_into_when_they_are_there(tmp_path: Path) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    stream = await node.execute(live(5, tmp_path))
    assert not fleet.served, "the learner has not gathered anything yet"
    replies = await asyncio.to_thread(team.send, stream)
    assert replies[0].answer is True and fleet.served == [(5, "WeightStream")]
    assert cast(Any, node.servers.canary).told == [(5, ([1], [-0.5]))]
    looking = asyncio.create_task(asyncio.to_thread(fleet.kept.shapes))
    await asyncio.wait([looking], timeout=0.05)
    assert not looking.done()
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    await node.execute(FilesWritten(version=5))
    assert await looking == {"a": (2,)}


async def test_what_was_missed_in_memory_is_served_from_the_files_before_rank_0_goes_on(tmp_path: Path) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    fleet.misses = True
    stream = await node.execute(live(5, tmp_path))
    replies = await asyncio.to_thread(team.send, stream)
    assert replies[0].answer is False and not fleet.served
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    await node.execute(FilesWritten(version=5))
    assert fleet.served == [(5, "PendingFiles")]


async def test_a_node_without_a_learner_serves_what_others_broadcast_from_the_files(tmp_path: Path) -> None:
    node, fleet, _ = node_of(tmp_path, learns=False, publish="broadcast")
    await node.execute(live(5, tmp_path))
    assert not fleet.served
    await node.execute(FilesWritten(version=5))
    assert fleet.served == [(5, "DiskWeights")] and fleet.kept.path == tmp_path
    await node.execute(live(6, tmp_path))
    with pytest.raises(OSError, match="no space left"):
        await node.execute(FilesWritten(version=6, problem="no space left"))


@pytest.mark.parametrize("how", ["told", "closed"])
async def test_files_that_never_come_keep_nobody_waiting(tmp_path: Path, how: str) -> None:
    node, fleet, team = node_of(tmp_path, publish="broadcast")
    stream = await node.execute(live(5, tmp_path))
    await asyncio.to_thread(team.send, stream)
    if how == "told":
        await node.execute(FilesWritten(version=5, problem="no space left"))
    await node.close()
    with pytest.raises(OSError, match="no space left" if how == "told" else "the run is over"):
        fleet.kept.shapes()


async def test_a_node_that_is_closed_before_it_serves_lets_its_learner_go(tmp_path: Path) -> None:
    node, _, team = node_of(tmp_path, publish="broadcast")
    stream = await node.execute(live(5, tmp_path))
    await node.close()
    with pytest.raises(InferenceError, match="no server takes them any more"):
        await asyncio.to_thread(team.send, stream)


async def test_a_version_from_the_disk(tmp_path: Path) -> None:
    node, fleet, _ = node_of(tmp_path, placement="restart")
    await node.execute(MakeRoom())
    await node.execute(ServeVersion(version=6, folder=tmp_path, is_live=False, reference=None))
    assert fleet.suspended == 1 and fleet.served == [(6, "DiskWeights")] and fleet.kept.path == tmp_path
