"""The engine of a recipe, running: one embedded engine, several behind a fleet, or SGLang servers.

opened for learning: engine <── publisher <── the learner's weights
opened alone:        engine on a model that stays
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import Inference
from rocstar.engine.inference.embedded import EmbeddedEngine
from rocstar.engine.progress import working
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.waits import waiting
from rocstar.train import checkpoint
from rocstar.train.config import Recipe, TrainingStopped
from rocstar.train.fleet_metrics import FleetMeter
from rocstar.train.model_io import DTYPES, load_model, local_folder
from rocstar.train.node_address import START_TIMEOUT_S, NodeAddress
from rocstar.train.run import Measure, Publisher, nothing_measured
from rocstar.train.server_nodes import OpenServers
from rocstar.train.server_weights import ServerPublisher, ServerWeights
from rocstar.train.servers import make_canary, open_servers
from rocstar.train.shared_threads import SharedThreads
from rocstar.train.source import Engine
from rocstar.train.spool import Spool, link
from rocstar.train.team import LearnerTeam, OrderError, placed


class RolloutEngine(Inference, Engine, Protocol):
    """What a run wants of an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A running engine that learns: what generates, what brings it new weights, what it tells of a step."""

    engine: RolloutEngine
    publisher: Publisher
    measure: Measure
    begin: Callable[[str], None]
    """Told the stage whose trajectories come next: a scheduler learns lengths by stage."""
    others: list[NodeAddress] = field(default_factory=list)
    """Nodes whose servers were started with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The policy at the begin of a run, or where it goes on."""

    model: PreTrainedModel
    """As it was loaded or made; under FSDP a copy beside the learner's."""
    tokenizer: PreTrainedTokenizerBase
    folder: Path | None
    """Where the same weights lie as a Hugging Face folder that stays while the run lasts; None = nowhere."""
    saved: Path | None
    """The checkpoint to go on from, which may be deleted later."""
    version: int
    """Of its weights."""


@contextlib.asynccontextmanager
async def open_learning_engine(
    recipe: Recipe,
    team: LearnerTeam,
    origin: Origin,
    thread: ThreadPoolExecutor,
    run_dir: Path,
    note: Callable[[str], None],
) -> AsyncIterator[Opened]:
    """The recipe's engine on the learner's present weights: servers serve them as `origin.version`, an
    embedded engine as version 0 until they are published."""
    if recipe.engine.kind == "embedded":
        async with (
            _engine_thread(recipe, team, thread) as own,
            open_embedded(recipe, placed(origin.model, recipe.model), own) as (engine, engines),
        ):
            publisher = EnginePublisher(engine, engines, team)
            if isinstance(engine, Fleet):
                yield _opened(engine, publisher)
            else:
                yield Opened(
                    engine=engine, publisher=publisher, measure=nothing_measured, begin=lambda stage: None
                )
        return
    async with _learning_servers(recipe, team, origin, thread, run_dir, note) as learning:
        yield learning


@contextlib.asynccontextmanager
async def _learning_servers(
    recipe: Recipe,
    team: LearnerTeam,
    origin: Origin,
    thread: ThreadPoolExecutor,
    run_dir: Path,
    note: Callable[[str], None],
) -> AsyncIterator[Opened]:
    """Servers on all nodes start at the same time, from the same files."""
    root, logs = run_dir / "weights", run_dir / "logs"
    folder = origin.folder or await _start_folder(root / "start", origin, team)
    canary = make_canary(recipe, origin.tokenizer, team.greedy)
    spool = Spool(root, folder, DTYPES[recipe.model.dtype])
    async with (
        _servers_elsewhere(team, OpenServers(folder=folder, logs=logs, version=origin.version)) as starting,
        open_servers(recipe, folder, logs=logs, version=origin.version, note=note, canary=canary) as servers,
    ):
        publisher = ServerPublisher(
            home=ServerWeights(servers=servers, recipe=recipe, canary=canary),
            team=team,
            thread=thread,
            spool=spool,
            has_others=team.world.has_nodes,
        )
        yield _opened(servers.fleet, publisher, others=await starting)


@contextlib.asynccontextmanager
async def _servers_elsewhere(
    team: LearnerTeam, order: OpenServers
) -> AsyncIterator[asyncio.Task[list[NodeAddress]]]:
    """The other nodes' servers, starting."""
    starting = asyncio.create_task(_start_elsewhere(team, order), name="servers of other nodes")
    try:
        yield starting
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def _start_elsewhere(team: LearnerTeam, order: OpenServers) -> list[NodeAddress]:
    if not team.world.has_nodes:
        return []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    try:
        async with waiting("the run", "every node's servers to start", kind="start", deadline=deadline):
            replies = await team.order(order)
    except OrderError as error:
        raise TrainingStopped(f"a node cannot roll out: {error}") from None
    return [NodeAddress(rank=reply.rank, url=reply.answer) for reply in replies]


@contextlib.asynccontextmanager
async def _engine_thread(
    recipe: Recipe, team: LearnerTeam, learner: ThreadPoolExecutor
) -> AsyncIterator[ThreadPoolExecutor]:
    """Where embedded engines decode: in the learner's thread if the two take turns anyway, else beside it."""
    if recipe.rl.max_staleness == 0:
        yield learner
        return
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as own:
        threads = learner.submit(torch.get_num_threads).result()
        own.submit(checkpoint.set_threads, threads).result()
        team.learner.learning = SharedThreads(own, threads).learning
        yield own


def _opened(fleet: Fleet, publisher: Publisher, others: Sequence[NodeAddress] = ()) -> Opened:
    def begin(stage: str) -> None:
        fleet.stage = stage

    return Opened(
        engine=fleet, publisher=publisher, measure=FleetMeter(fleet), begin=begin, others=list(others)
    )


async def _start_folder(folder: Path, origin: Origin, team: LearnerTeam) -> Path:
    """A folder of this run's own with the learner's present weights."""
    if origin.saved is not None:
        _link_all(origin.saved, folder)
        return folder
    weights: list[tuple[str, Tensor]] | None = await team.full_weights()
    model = team.learner.model
    _emptied(folder)
    with working("writing the weights that servers start from"):
        checkpoint.save_model(folder, model, weights or checkpoint.full_weights(model), origin.tokenizer)
    return folder


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _link_all(source: Path, folder: Path) -> None:
    """The files of a checkpoint under names of their own, without what only resuming needs."""
    _emptied(folder)
    for path in source.iterdir():
        if path.is_file() and path.name != checkpoint.COMPLETE:
            link(path, folder / path.name)


@contextlib.asynccontextmanager
async def open_engine(
    recipe: Recipe, model: PreTrainedModel, thread: ThreadPoolExecutor
) -> AsyncIterator[RolloutEngine]:
    """The recipe's embedded engine around `model`."""
    async with open_embedded(recipe, model, thread) as (engine, _):
        yield engine


@contextlib.asynccontextmanager
async def open_engine_at(
    recipe: Recipe, path: str, thread: ThreadPoolExecutor, *, logs: Path | None = None
) -> AsyncIterator[RolloutEngine]:
    """The recipe's engine on the model at `path`, which stays. logs: of servers; None = kept nowhere."""
    if recipe.engine.kind == "embedded":
        model = placed(load_model(path, recipe.model.dtype), recipe.model)
        async with open_engine(recipe, model, thread) as engine:
            yield engine
        return
    folder = logs or Path(tempfile.mkdtemp(prefix="rocstar-logs-"))
    async with open_servers(recipe, local_folder(path), logs=folder) as servers:
        yield servers.fleet
    if logs is None:  # after a failure they stay, for its message names them
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def open_embedded(
    recipe: Recipe, model: PreTrainedModel, thread: ThreadPoolExecutor
) -> AsyncIterator[tuple[EmbeddedEngine | Fleet, list[EmbeddedEngine]]]:
    """Engines that decode with `model` itself, in turns in `thread`. One alone costs nothing more."""
    config = recipe.engine
    engines = [
        EmbeddedEngine(model, max_running=config.max_running, thread=thread, lockstep=config.deterministic)
        for _ in range(config.num_replicas)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        if len(engines) == 1:
            yield engines[0], engines
            return
        limits = FleetLimits(turn_timeout_s=config.trajectory_timeout_s)
        fleet = Fleet(engines, policy=make_policy(config.policy), limits=limits)
        await stack.enter_async_context(fleet)
        yield fleet, engines


class EnginePublisher:
    """Serves the learner's weights in this process; under FSDP the engines have an unsharded copy.

    Invariant: from the first change of a weight until its version serves, no engine is in a forward.
    """

    def __init__(self, engine: RolloutEngine, engines: list[EmbeddedEngine], team: LearnerTeam) -> None:
        """`engine` takes the version: the only one of `engines`, or the fleet of them."""
        self._engine, self._engines, self._team = engine, engines, team
        self._held = contextlib.ExitStack()
        self._is_holding = False
        team.learner.before_change = self._hold

    @property
    def version(self) -> int:
        return self._engine.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """The engines decode on while the gradient is made, until the learner is about to change weights."""
        try:
            with self._held:
                yield
        finally:
            self._is_holding = False

    def _hold(self) -> None:
        """In the learner's thread, inside `updating`: returns when no engine is in a forward."""
        if self._is_holding:
            return
        self._is_holding = True
        for engine in self._engines:
            self._held.enter_context(engine.hold())
        for engine in self._engines:
            engine.quiesce()

    async def publish(self, version: int) -> None:
        await self._engine.publish(version, await self._team.full_weights(version))
