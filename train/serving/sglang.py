"""`engine.kind = "sglang"`: SGLang servers, children of the run, on the nodes that roll out.

files of the model ─> servers (servers.py) ─> Fleet ─> rollouts
the learner's weights ─> ServerPublisher (train/publish/server_publisher.py) ─> servers
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from rocstar.engine.inference.base import RolloutEngine
from rocstar.engine.inference.sglang.server import Launcher, ServerProcess
from rocstar.engine.progress.progress import format_bytes, working
from rocstar.train.learner import checkpoint
from rocstar.train.learner.commands import ReleaseMemory
from rocstar.train.learner.model_io import DTYPES, checked_folder, load_tokenizer
from rocstar.train.learner.model_size import ModelSize
from rocstar.train.learner.store_channel import travels
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.rank_commands import WriteWeights, weight_shapes
from rocstar.train.publish.server_node import ServerNode
from rocstar.train.publish.server_publisher import ServerPublisher
from rocstar.train.publish.version_folders import VersionFolders, link
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import EngineBackend, InitialPolicy, Learning, Opened, opened_fleet
from rocstar.train.serving.node_commands import NodeAddress, OpenedNode, OpenNode, OpenService, open_others
from rocstar.train.serving.placement import GpuMap, check_gpus, server_env
from rocstar.train.serving.servers import Launch, check_sglang, make_canary, open_servers
from rocstar.train.tasks.chat_format import chat_format

PORT = 29501
"""Stands in a plan for a server's port; a run takes free ones."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServers(OpenNode):
    """Start the recipe's servers on `folder` as `version`, and serve groups."""

    folder: Path
    logs: Path
    version: int


class SGLang(EngineBackend):
    """SGLang servers that a run starts and ends."""

    learns = True
    sets_head_dtype = True
    has_nodes = True
    has_serving_nodes = True
    launcher: ClassVar[Launcher] = ServerProcess
    """Starts a server's process; a derived class may start it on another machine."""

    def check(self, recipe: Recipe, *, elsewhere: bool) -> list[str]:
        """The GPUs that the recipe names, and an interpreter that has SGLang."""
        problems, unknown = [], []
        if not elsewhere:
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            try:
                check_gpus(recipe.engine, torch.cuda.device_count(), ranks)
            except ConfigError as error:
                problems.append(str(error))
        elif not isinstance(recipe.engine.replicas, int):
            unknown.append("engine.replicas: the GPUs of the nodes that --world describes")
        try:
            check_sglang()
        except ConfigError as error:
            problems.append(str(error))
        if problems:
            raise ConfigErrors(problems)
        return unknown

    def plan(self, recipe: Recipe, size: ModelSize | str, *, ranks: int, ranks_per_node: int) -> list[str]:
        """The servers of a node: placement, memory and start."""
        engine = recipe.engine
        gpus = GpuMap.of(engine, ranks_per_node)
        lines = [
            "",
            f"engine: {engine.num_replicas} SGLang servers on each node behind a {engine.policy} "
            f"scheduler of its own, weights by {engine.publish}, placement {engine.placement}",
            *_gpu_lines(recipe, gpus, size, ranks_per_node if recipe.model.sharding == "node" else ranks),
        ]
        given = recipe.model.path != "scratch" and not recipe.sft.steps
        folder = Path(recipe.model.path if given else f"runs/{recipe.run.name}/weights/start")
        for k in range(engine.num_replicas):
            visible = server_env(engine.gpus_of(k), {}).get("CUDA_VISIBLE_DEVICES")
            start = f"CUDA_VISIBLE_DEVICES={visible} " if visible else ""
            command = Launch(recipe=recipe, folder=folder, replica=k)(PORT + k)
            lines.append(f"server {k}:  {start}{' '.join(command)}")
        return [*lines, "rocstar starts and ends the servers; their ports are free ones"]

    @contextlib.asynccontextmanager
    async def open(
        self, recipe: Recipe, path: str, thread: ThreadPoolExecutor, *, logs: Path | None = None
    ) -> AsyncIterator[RolloutEngine]:
        folder = logs or Path(tempfile.mkdtemp(prefix="rocstar-logs-"))
        model = checked_folder(path).path.absolute()
        async with open_servers(recipe, model, logs=folder, launcher=type(self).launcher) as servers:
            yield servers.fleet
        if logs is None:  # after a failure they stay, for its message names them
            shutil.rmtree(folder)

    @contextlib.asynccontextmanager
    async def open_learning(self, recipe: Recipe, learning: Learning) -> AsyncIterator[Opened]:
        """Servers on all nodes start at the same time, from the same files, as the origin's version."""
        origin, team = learning.origin, learning.team
        root, logs = learning.run_dir / "weights", learning.run_dir / "logs"
        dtype = DTYPES[recipe.model.dtype]
        folder = origin.folder or await _start_folder(root / "start", origin, team, dtype)
        if recipe.engine.placement == "restart":
            await team.run(ReleaseMemory())
        version, canary = origin.version, make_canary(recipe, origin.tokenizer)
        folders = VersionFolders(root, folder, dtype)
        async with (
            _others(team, OpenServers(folder=folder, logs=logs, version=version)) as starting,
            open_servers(
                recipe,
                folder,
                logs=logs,
                version=version,
                note=learning.note,
                canary=canary,
                launcher=type(self).launcher,
            ) as servers,
        ):
            publisher = ServerPublisher(home=servers, team=team, thread=learning.thread, folders=folders)
            yield opened_fleet(servers.fleet, publisher, await starting)

    def open_node(
        self, recipe: Recipe, team: LearnerTeam, path: str, command: OpenNode, service: OpenService
    ) -> OpenedNode:
        return self._open_node(recipe, team, team.world.rank, command, service)

    def open_serving_node(self, recipe: Recipe, rank: int, command: OpenNode, service: OpenService) -> OpenedNode:
        return self._open_node(recipe, None, rank, command, service)

    @contextlib.asynccontextmanager
    async def _open_node(
        self, recipe: Recipe, team: LearnerTeam | None, rank: int, command: OpenNode, service: OpenService
    ) -> AsyncIterator[tuple[ServerNode, str]]:
        """Open this node's servers and its agent behind its service. `team`: None if the node only serves."""
        assert isinstance(command, OpenServers)
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
                launcher=type(self).launcher,
            ) as servers,
        ):
            node = ServerNode(servers=servers, shapes=None if team is None else weight_shapes(team))
            async with (
                open_agent(recipe, servers.fleet, chat_format(recipe, tokenizer), sandbox) as agent,
                service(agent, lambda: servers.fleet.version) as url,
            ):
                try:
                    yield node, url
                finally:
                    await node.close()


def _gpu_lines(recipe: Recipe, gpus: GpuMap, size: ModelSize | str, ranks: int) -> list[str]:
    if not gpus.servers:
        return ["GPUs: none is named; the servers run where engine.args.device says"]
    learner = server = ""
    if not isinstance(size, str):
        learner = f"  {format_bytes(size.learner_bytes(ranks))} and activations" if gpus.learner else ""
        share = size.dtype_bytes * size.parameters / len(gpus.servers[0])
        server = f"  {format_bytes(share)} of weights; KV fills engine.args.mem-fraction-static"
    other = " while no server runs" if recipe.engine.placement == "restart" else ""
    used = {gpu: [f"learner rank {rank} of the node{other}{learner}"] for rank, gpu in enumerate(gpus.learner)}
    for k, of_server in enumerate(gpus.servers):
        for gpu in of_server:
            used.setdefault(gpu, []).append(f"server {k}{server}")
    return ["GPUs of a node:"] + [f"  GPU {gpu}:  {' | '.join(used[gpu])}" for gpu in sorted(used)]


@contextlib.asynccontextmanager
async def _others(team: LearnerTeam, command: OpenNode) -> AsyncIterator[asyncio.Task[list[NodeAddress]]]:
    """The other nodes' servers, starting."""
    starting = asyncio.create_task(open_others(team, command), name="servers of other nodes")
    try:
        yield starting
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def _start_folder(folder: Path, origin: InitialPolicy, team: LearnerTeam, dtype: torch.dtype) -> Path:
    """Make a folder of this run with the learner's present weights."""
    _make_folder(folder, origin.saved)
    if origin.saved is None:
        with working("writing the weights that servers start from"):
            checkpoint.save_shell(folder, team.learner.model, origin.tokenizer)
            await team.run(WriteWeights(folder, dtype))
    return folder


def _make_folder(folder: Path, saved: Path | None) -> None:
    """Empty the folder; link the files of a checkpoint, without those that only a resume needs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in saved.iterdir() if saved else ():
        if path.is_file() and path.name != checkpoint.COMPLETE:
            link(path, folder / path.name)
