"""A fleet and a learner of one weight, for publishing without servers and ranks."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import nn

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.train.learner.commands import NodeCommand, RankCommand, RankReply, ReleaseMemory
from rocstar.train.learner.team import NodeCommandError
from rocstar.train.publish.rank_commands import SendWeights, WriteWeights
from rocstar.train.publish.server_node import NodeServers
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe


def sglang_recipe(**engine: Any) -> Recipe:
    return parse_recipe({"engine": {"kind": "sglang", **engine}}, where="test")


class FakeFleet:
    """Takes every version; `served` are (version, kind of source). With `misses` it takes none from memory:
    it waits for the files; when it `is_down`, a server comes back with them."""

    def __init__(self) -> None:
        self.misses = self.is_down = False
        self.version, self.suspended = 0, 0
        self.served: list[tuple[int, str]] = []
        self.kept: Any = None
        self.started_from: list[Path] = []

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


class FakeTeam:
    """One weight, of value 3; `told` are commands to nodes, with whether the files of v7 exist."""

    def __init__(self, files: Path) -> None:
        model = nn.Module()
        model.a = nn.Parameter(torch.full((2,), 3.0))
        self.learner = SimpleNamespace(model=model)
        self.world = SimpleNamespace(rank=1, servers=0, has_nodes=True)
        self.told: list[tuple[Any, bool]] = []
        self.problem, self.replies = "", [RankReply(rank=8, answer=True)]
        self._files = files

    def execute(self, command: RankCommand[Any]) -> Any:
        match command:
            case SendWeights(stream):
                return self.send(stream)
            case WriteWeights(folder, dtype):
                return self.write(folder, dtype)
            case ReleaseMemory():
                return self.command_nodes(cast(Any, command))
        raise AssertionError(command)

    def send(self, stream: WeightStream | None) -> list[RankReply]:
        assert stream is not None
        stream.put([("a", torch.full((2,), 3.0))])
        stream.end()
        return [RankReply(rank=0, answer=stream.outcome()), *self.replies]

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({"a": torch.full((2,), 3.0, dtype=dtype)}, folder / "model.safetensors")

    def command_nodes(self, command: NodeCommand) -> list[RankReply]:
        self.told.append((command, (self._files / "v7" / "model.safetensors").exists()))
        if self.problem:
            raise NodeCommandError(self.problem)
        return []


def node_servers(fleet: FakeFleet, recipe: Recipe) -> NodeServers:
    return NodeServers(
        fleet=cast(Any, fleet), replicas=[], recipe=recipe, start_from=fleet.started_from.append, patience_s=9.0
    )
