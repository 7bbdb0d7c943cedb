"""`engine.kind = "sglang"`: SGLang servers, children of the run, on the nodes that roll out.

files of the model ─> servers ─> Fleet ─> rollouts
the learner's weights ─> ServerPublisher (train/publish/server_publisher.py) ─> servers
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import InferenceError, RolloutEngine
from rocstar.engine.inference.sglang.canary import Canary
from rocstar.engine.inference.sglang.replica import BroadcastToAll, Replica, server_command, sglang_python
from rocstar.engine.inference.sglang.server import Launcher, ServerProcess
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.progress.progress import format_bytes, working
from rocstar.engine.scheduling.policies import make_policy
from rocstar.train.learner import checkpoint
from rocstar.train.learner.commands import ReleaseMemory
from rocstar.train.learner.model_io import DTYPES, ModelSize, checked_folder, load_tokenizer, vocabulary_size
from rocstar.train.learner.store_channel import travels
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.rank_commands import WriteWeights, weight_shapes
from rocstar.train.publish.server_node import UPDATE_TIMEOUT_S, NodeServers, ServerNode
from rocstar.train.publish.server_publisher import ServerPublisher, VersionFolders, link
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import EngineBackend, InitialPolicy, Learning, Opened, opened_fleet
from rocstar.train.serving.nodes import NodeAddress, OpenedNode, OpenNode, OpenService, open_others
from rocstar.train.serving.placement import GpuMap, check_gpus, server_env
from rocstar.train.tasks.chat_format import chat_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


HANG_TIMEOUT_S = 300.0
"""Longest standstill of a scheduler in seconds, for a prefill or a compilation."""
NOT_THEIRS = re.compile(
    r"ROCSTAR_REDIS_URL|ROCSTAR_OPENAI_KEY|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|(GROUP|ROLE)_(RANK|WORLD_SIZE)|ROLE_NAME"
    r"|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|TORCHRUN_\w+"
)
"""Variables that a server does not get. The first may hold a password. The others are torchrun's: a server
that sees TORCHELASTIC_USE_AGENT_STORE waits for ever for torchrun's store, and makes no group of its own."""
CANARY_TEXT = "1 + 1 = 2, 2 + 2 = 4, 3 + 3 ="
CANARY_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Nats by which engines of one precision differ on the likeliest token, with room to spare."""
PARALLEL_ARGS = {"tp", "tp-size", "tensor-parallel-size", "dp", "dp-size", "data-parallel-size", "pp-size"}


def check_sglang() -> None:
    """The interpreter that starts servers must have SGLang."""
    python = sglang_python()
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([python, "-c", program], check=False, timeout=60.0, capture_output=True)
        missing = bool(found.returncode)
    except (OSError, subprocess.TimeoutExpired):
        missing = True
    if missing:
        raise ConfigError(
            f"engine.kind = 'sglang': {python!r} has no sglang; name an interpreter that has it in "
            "ROCSTAR_SGLANG_PYTHON, or run `make sglang-env` on a machine without a GPU"
        )


def make_canary(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Canary:
    """Return the canary of the recipe's servers, for servers without predictable checksums."""
    prompt: list[int] = tokenizer.encode(CANARY_TEXT, add_special_tokens=False)
    return Canary(prompt=prompt, tolerance=CANARY_TOLERANCE[recipe.model.dtype])


@dataclass(slots=True, kw_only=True, eq=False)
class Launch:
    """The command that starts a server, from the folder that servers are started from now."""

    recipe: Recipe
    folder: Path
    replica: int

    def __call__(self, port: int) -> list[str]:
        return server_command(sglang_python(), self.folder, port, server_args(self.recipe, self.replica))


def server_args(recipe: Recipe, replica: int) -> dict[str, Any]:
    """Return [engine.args] with defaults from the rest of the recipe."""
    given = {name.replace("_", "-") for name in recipe.engine.args}
    own: dict[str, Any] = {} if "dtype" in given else {"dtype": recipe.model.dtype}
    is_rounded = recipe.model.head_dtype == "float32" and recipe.model.dtype != "float32"
    if is_rounded and "enable-fp32-lm-head" not in given:
        own["enable-fp32-lm-head"] = True
    gpus = recipe.engine.gpus_of(replica)
    if gpus is not None and len(gpus) > 1 and not given & PARALLEL_ARGS:
        own["tp-size"] = len(gpus)
    return own | recipe.engine.args


@contextlib.asynccontextmanager
async def open_servers(
    recipe: Recipe,
    folder: Path,
    *,
    logs: Path,
    name: str = "sglang",
    version: int = 0,
    note: Callable[[str], None] = lambda text: None,
    canary: Canary | None = None,
    launcher: Launcher = ServerProcess,
) -> AsyncIterator[NodeServers]:
    """Start the recipe's servers on the model in `folder` concurrently; they serve it as `version`. Their
    logs are `name`-K.log.

    Raises ConfigError if one does not start, with its name, the reason and its log.
    """
    launches = [Launch(recipe=recipe, folder=folder, replica=k) for k in range(recipe.engine.num_replicas)]
    paths = [logs / f"{name}-{launch.replica}.log" for launch in launches]
    replicas = [
        _replica(launch, path, version, note, canary, launcher) for launch, path in zip(launches, paths, strict=True)
    ]
    send_to_all = None
    async with contextlib.AsyncExitStack() as stack:
        if recipe.engine.publish == "broadcast":
            backend = "gloo" if recipe.engine.args.get("device") == "cpu" else "nccl"
            folder_of_all = logs.with_name("weights")
            send_to_all = BroadcastToAll(backend=backend, folder=folder_of_all, timeout_s=UPDATE_TIMEOUT_S)
        note(f"starting {len(replicas)} inference servers; their logs are in {logs}")
        await _enter_all(stack, replicas, paths)
        if send_to_all is not None:
            stack.push_async_callback(send_to_all.close)
        limits = FleetLimits(
            turn_timeout_s=recipe.engine.trajectory_timeout_s,
            publish_timeout_s=3 * UPDATE_TIMEOUT_S,
            restart_timeout_s=1800.0,
        )
        fleet = Fleet(
            replicas,
            policy=make_policy(recipe.engine.policy),
            limits=limits,
            restart=lambda k: replicas[k].restart(),
            send_to_all=send_to_all,
            version=version,
        )
        await stack.enter_async_context(fleet)

        def start_from(folder: Path) -> None:
            for launch in launches:
                launch.folder = folder

        yield NodeServers(fleet=fleet, replicas=replicas, recipe=recipe, start_from=start_from, canary=canary)


def server_environment(gpus: list[int] | None, environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Environment variables that a server adds to ours, or removes (None)."""
    return {**server_env(gpus, environment), **{name: None for name in environment if NOT_THEIRS.fullmatch(name)}}


def _replica(
    launch: Launch, log: Path, version: int, note: Callable[[str], None], canary: Canary | None, launcher: Launcher
) -> Replica:
    rows = vocabulary_size(str(launch.folder))
    if rows is None:
        raise ConfigError(f"{launch.folder / 'config.json'} has no vocab_size; a server needs it")
    return Replica(
        launch,
        model=DiskWeights(launch.folder),
        vocab_size=rows,
        version=version,
        log_path=log,
        env=server_environment(launch.recipe.engine.gpus_of(launch.replica)),
        progress=lambda text: note(f"server {launch.replica}: {text}"),
        engine_options={"hang_timeout_s": HANG_TIMEOUT_S, "update_timeout_s": UPDATE_TIMEOUT_S},
        canary=canary,
        launcher=launcher,
    )


async def _enter_all(stack: contextlib.AsyncExitStack, replicas: Sequence[Replica], logs: Sequence[Path]) -> None:
    with working("starting inference servers", unit="servers", total=len(replicas)) as work:

        async def enter(replica: Replica) -> None:
            await replica.__aenter__()
            work.done += 1

        outcomes = await asyncio.gather(*map(enter, replicas), return_exceptions=True)
    failed: list[tuple[int, BaseException]] = []
    for k, (replica, outcome) in enumerate(zip(replicas, outcomes, strict=True)):
        if isinstance(outcome, BaseException):
            failed.append((k, outcome))
        else:
            stack.push_async_exit(replica)
    for k, error in failed:
        if not isinstance(error, InferenceError):
            raise error
        last = (error.detail.strip().splitlines() or [""])[-1]
        raise ConfigError(
            f"engine.kind = 'sglang': server {k} did not start ({error.detail.splitlines()[0]}: {last}); "
            f"{logs[k]} has all it said, docs/reference/sglang.md what it needs"
        )


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
    async def open(self, recipe: Recipe, path: str, thread: ThreadPoolExecutor) -> AsyncIterator[RolloutEngine]:
        logs = Path(tempfile.mkdtemp(prefix="rocstar-logs-"))
        model = checked_folder(path).path.absolute()
        async with open_servers(recipe, model, logs=logs, launcher=type(self).launcher) as servers:
            yield servers.fleet
        shutil.rmtree(logs)  # after a failure they stay, for its message names them

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
