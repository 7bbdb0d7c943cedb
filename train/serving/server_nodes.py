"""SGLang servers on other nodes than rank 0's: the first rank of each starts them at rank 0's command.

OpenServers                        sandbox, servers, agent, NodeService; the answer is its address
MakeRoom, ServeVersion, FilesWritten    publish/server_node.py
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from rocstar.engine.inference.sglang.server import Launcher
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.learner.store_line import travels
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.rank_commands import weight_shapes
from rocstar.train.publish.server_node import ServerNode
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.node_commands import OpenNode, OpenService
from rocstar.train.serving.servers import make_canary, open_servers
from rocstar.train.tasks.chat_format import chat_format


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServers(OpenNode):
    """Start the recipe's servers on `folder` as `version`, and serve groups."""

    folder: Path
    logs: Path
    version: int


@contextlib.asynccontextmanager
async def open_server_node(
    recipe: Recipe,
    team: LearnerTeam | None,
    command: OpenServers,
    open_service: OpenService,
    launcher: Launcher,
    *,
    rank: int,
) -> AsyncIterator[tuple[ServerNode, str]]:
    """This node's servers and its agent behind its service, whose address is yielded. `team`: this node's
    part of the learner, None where the node only serves."""
    tokenizer = load_tokenizer(str(command.folder))
    canary = make_canary(recipe, tokenizer)
    async with (
        open_sandbox(recipe) as sandbox,
        open_servers(
            recipe,
            command.folder,
            logs=command.logs,
            name=f"sglang-rank{rank}",
            version=command.version,
            canary=canary,
            launcher=launcher,
        ) as servers,
    ):
        agent = make_agent(recipe, servers.fleet, chat_format(recipe, tokenizer), sandbox)
        node = ServerNode(servers=servers, shapes=None if team is None else weight_shapes(team))
        async with open_service(agent, lambda: servers.fleet.version) as url:
            try:
                yield node, url
            finally:
                await node.close()
