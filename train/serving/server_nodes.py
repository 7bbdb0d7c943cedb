"""SGLang servers on other nodes than rank 0's: the first rank of each starts them and executes orders.

    OpenServers                        sandbox, servers, agent, NodeService; the answer is its address
    MakeRoom, ServeVersion, FilesWritten    server_weights.py

Orders arrive by orders.py, and on nodes that only serve by serving_node.py. These have no learner, so there
is nothing in their memory to broadcast: they load every version from its files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.inference.sglang.server import Launcher
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights, Shapes
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.learner.store_line import travels
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.orders import OpenNode, OpenService
from rocstar.train.serving.server_weights import FilesWritten, MakeRoom, Promised, ServerWeights, ServeVersion
from rocstar.train.serving.servers import make_canary, open_servers
from rocstar.train.tasks.chat_format import chat_format


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServers(OpenNode):
    """An order: start the recipe's servers on `folder` as `version`, and serve groups."""

    folder: Path
    logs: Path
    version: int


@dataclass(slots=True, kw_only=True, eq=False)
class ServerNode:
    """The servers of this node, under rank 0's orders.

    Invariant: the files of a version are looked into only when rank 0 has written them.
    """

    weights: ServerWeights
    fills: Callable[[WeightStream], None] | None
    """Makes this node's learner send its next gather into a stream; None if the node has no learner, and
    every version comes from its files."""
    shapes: Shapes
    """Shapes of all weights, in the learner's sending order."""
    _serving: dict[int, tuple[Future[None], asyncio.Task[None]]] = field(default_factory=dict, init=False)
    """By version: whether its files are there, and who serves it from memory."""
    _expected: dict[int, ServeVersion] = field(default_factory=dict, init=False)
    """Versions to be served when their files are there."""

    async def do(self, order: Any) -> None:
        match order:
            case MakeRoom():
                await self.weights.make_room()
            case ServeVersion() if not order.is_live:
                await self.weights.serve(order.version, DiskWeights(order.folder), None, order.reference)
            case ServeVersion() if self.fills is None:
                self._expected[order.version] = order
            case ServeVersion():
                self._begin(order)
            case FilesWritten():
                await self._written(order)
            case _:
                raise AssertionError(f"unknown order {order!r}")

    def _begin(self, order: ServeVersion) -> None:
        """Serve a version beside the learner, which gathers it next."""
        assert self.fills is not None
        files: Future[None] = Future()
        kept = Promised(order.folder, files)
        stream = WeightStream(self.shapes, kept=kept)
        self.fills(stream)
        serve = self.weights.serve(order.version, kept, stream, order.reference)
        task = asyncio.create_task(serve, name=f"serve version {order.version}")
        task.add_done_callback(lambda _: stream.abandon())  # it may be cancelled before it begins
        self._serving[order.version] = files, task

    async def _written(self, order: FilesWritten) -> None:
        """Servers that missed the version in memory take it now."""
        if (expected := self._expected.pop(order.version, None)) is not None:
            if order.problem:
                raise OSError(order.problem)
            folder = DiskWeights(expected.folder)
            await self.weights.serve(expected.version, folder, None, expected.reference)
            return
        files, task = self._serving.pop(order.version)
        if order.problem:
            files.set_exception(OSError(order.problem))
        else:
            files.set_result(None)
        await task

    async def close(self) -> None:
        """End all waits for files."""
        for files, task in self._serving.values():
            task.cancel()
            files.set_exception(OSError("the run is over"))
        await asyncio.gather(*(task for _, task in self._serving.values()), return_exceptions=True)
        self._serving.clear()


@contextlib.asynccontextmanager
async def open_server_node(
    recipe: Recipe,
    team: LearnerTeam | None,
    order: OpenServers,
    open_service: OpenService,
    launcher: Launcher,
    *,
    rank: int,
) -> AsyncIterator[tuple[ServerNode, str]]:
    """This node's servers and its agent behind its service, whose address is yielded. `team`: this node's
    part of the learner, None where the node only serves."""
    tokenizer = load_tokenizer(str(order.folder))
    canary = make_canary(recipe, tokenizer)
    async with (
        open_sandbox(recipe) as sandbox,
        open_servers(
            recipe,
            order.folder,
            logs=order.logs,
            name=f"sglang-rank{rank}",
            version=order.version,
            canary=canary,
            launcher=launcher,
        ) as servers,
    ):
        agent = make_agent(recipe, servers.fleet, chat_format(recipe, tokenizer), sandbox)
        node = ServerNode(
            weights=ServerWeights(servers=servers, recipe=recipe, canary=canary),
            fills=None if team is None else team.send_into,
            shapes={} if team is None else team.shapes(),
        )
        async with open_service(agent, lambda: servers.fleet.version) as url:
            try:
                yield node, url
            finally:
                await node.close()
