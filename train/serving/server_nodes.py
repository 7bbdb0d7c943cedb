"""SGLang servers on other nodes than rank 0's: the first rank of each starts its own and does as it is told.

    OpenServers                        sandbox, servers, agent, NodeService; the answer is its address
    MakeRoom, ServeVersion, FilesWritten    server_weights.py

How orders get there: orders.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.inference.sglang.server import Launcher
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.orders import OpenNode, OpenService
from rocstar.train.serving.server_weights import FilesWritten, MakeRoom, Promised, ServerWeights, ServeVersion
from rocstar.train.serving.servers import make_canary, open_servers
from rocstar.train.tasks.chat_format import chat_format


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
    team: LearnerTeam
    _writing: dict[int, Future[None]] = field(default_factory=dict, init=False)

    async def do(self, order: Any) -> None:
        match order:
            case MakeRoom():
                await self.weights.make_room()
            case ServeVersion():
                await self._serve(order)
            case FilesWritten():
                self._written(order)
            case _:
                raise AssertionError(f"unknown order {order!r}")

    async def _serve(self, order: ServeVersion) -> None:
        written: Future[None] = Future()
        if order.is_live:
            self._writing[order.version] = written
        else:
            written.set_result(None)
        kept = Promised(order.folder, written)
        live = self.team.take_weights() if order.is_live else None
        await self.weights.serve(order.version, kept, live, order.reference)

    def _written(self, order: FilesWritten) -> None:
        promise = self._writing.pop(order.version)
        if order.problem:
            promise.set_exception(OSError(order.problem))
        else:
            promise.set_result(None)

    def close(self) -> None:
        """Who still waits for files waits no more."""
        for promise in self._writing.values():
            promise.set_exception(OSError("the run is over"))
        self._writing.clear()


@contextlib.asynccontextmanager
async def open_server_node(
    recipe: Recipe, team: LearnerTeam, order: OpenServers, open_service: OpenService, launcher: Launcher
) -> AsyncIterator[tuple[ServerNode, str]]:
    """This node's servers and its agent behind its service, whose address is yielded."""
    tokenizer = load_tokenizer(str(order.folder))
    canary = make_canary(recipe, tokenizer)
    async with (
        open_sandbox(recipe) as sandbox,
        open_servers(
            recipe,
            order.folder,
            logs=order.logs,
            name=f"sglang-rank{team.world.rank}",
            version=order.version,
            canary=canary,
            launcher=launcher,
        ) as servers,
    ):
        agent = make_agent(recipe, servers.fleet, chat_format(recipe, tokenizer), sandbox)
        team.keeps_weights = recipe.engine.publish == "broadcast"
        weights = ServerWeights(servers=servers, recipe=recipe, canary=canary)
        node = ServerNode(weights=weights, team=team)
        async with open_service(agent, lambda: servers.fleet.version) as url:
            try:
                yield node, url
            finally:
                node.close()
