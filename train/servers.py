"""SGLang servers as the engine of a recipe: started, behind a fleet, given the learner's weights.

    folder ─> Replica 0 .. N-1, children of this process ─> Fleet ─> rollouts
    learner ─┬─ split:   Spool or broadcast ─> running servers
             └─ restart: servers stop ─> the learner works ─> Spool ─> servers start from it

Who waits: `publish` for every server that is up to serve the version, or to be found unable to; rollouts only
while a server takes weights, or while none runs. What a server that was away must hold when it comes back is
always on the disk: after a broadcast too, written while the rollouts go on, before the learner's next update.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from rocstar.engine.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.inference.sglang.canary import Canary
from rocstar.engine.inference.sglang.publish import Publisher
from rocstar.engine.inference.sglang.replica import Replica, server_command, sglang_python
from rocstar.engine.inference.sglang.weights import DiskWeights, LiveWeights, WeightSource
from rocstar.engine.scheduling.policies import make_policy
from rocstar.train import checkpoint
from rocstar.train.config import ConfigError, Recipe, TrainingStopped
from rocstar.train.model_io import vocabulary_size
from rocstar.train.placement import server_env
from rocstar.train.spool import Spool
from rocstar.train.team import LearnerTeam

UPDATE_TIMEOUT_S = 900.0
"""Of one call that carries weights; a publish is a few of them."""
HANG_TIMEOUT_S = 300.0
"""A scheduler stands still so long for a prefill or a compilation, and no longer."""
NOT_THEIRS = ("ROCSTAR_REDIS_URL",)
"""Of our environment: it may hold a password, and no server needs it."""
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


@dataclass(slots=True, kw_only=True, eq=False)
class Launch:
    """The command that starts a server, from the folder that servers are started from now."""

    recipe: Recipe
    folder: Path
    replica: int

    def __call__(self, port: int) -> list[str]:
        return server_command(sglang_python(), self.folder, port, server_args(self.recipe, self.replica))


def server_args(recipe: Recipe, replica: int) -> dict[str, Any]:
    """[engine.args], and what follows from the rest of the recipe where they do not say it."""
    given = {name.replace("_", "-") for name in recipe.engine.args}
    own: dict[str, Any] = {} if "dtype" in given else {"dtype": recipe.model.dtype}
    gpus = recipe.engine.gpus_of(replica)
    if gpus is not None and len(gpus) > 1 and not given & PARALLEL_ARGS:
        own["tp-size"] = len(gpus)
    return own | recipe.engine.args


@dataclass(slots=True, kw_only=True, eq=False)
class Broadcast:
    """A `Spread`: into the memory of all servers in one group, by disk to those where that fails."""

    backend: str
    folder: Path
    """For what goes by disk, where a publish is possible at all."""
    _publisher: Publisher | None = None

    async def __call__(
        self, replicas: Sequence[Inference], version: int, source: WeightSource
    ) -> Sequence[InferenceError | None]:
        servers = cast("Sequence[Replica]", replicas)
        engines = [server.engine for server in servers]
        if self._publisher is None or self._publisher.engines != engines:
            await self.close()
            self._publisher = Publisher(
                engines, backend=self.backend, spool=self.folder, timeout_s=UPDATE_TIMEOUT_S
            )
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server.on_trial())
            failures = await self._publisher.publish(version, source)
            return await asyncio.gather(
                *(_tried(s, source, f) for s, f in zip(servers, failures, strict=True))
            )

    async def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.__aexit__(None, None, None)


async def _tried(
    server: Replica, source: WeightSource, failure: InferenceError | None
) -> InferenceError | None:
    if failure is not None:
        return failure
    server.published(source)
    try:
        await server.try_out()
    except InferenceError as error:
        return error
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Servers:
    """Running servers and the fleet in front of them."""

    fleet: Fleet
    replicas: list[Replica]
    launches: list[Launch]


@contextlib.asynccontextmanager
async def open_servers(
    recipe: Recipe,
    folder: Path,
    *,
    logs: Path,
    version: int = 0,
    note: Callable[[str], None] = lambda text: None,
    canary: Canary | None = None,
) -> AsyncIterator[Servers]:
    """Start the recipe's servers on the model in `folder`, all at once; `version` is what it is served as.

    ConfigError if one does not come up: which, why, and where its log is.
    """
    launches = [Launch(recipe=recipe, folder=folder, replica=k) for k in range(recipe.engine.num_replicas)]
    replicas = [_replica(launch, logs, version, note, canary) for launch in launches]
    spread = None
    async with contextlib.AsyncExitStack() as stack:
        if recipe.engine.publish == "broadcast":
            backend = "gloo" if recipe.engine.args.get("device") == "cpu" else "nccl"
            spread = Broadcast(backend=backend, folder=logs.with_name("weights"))
        note(f"starting {len(replicas)} inference servers; their logs are in {logs}")
        await _enter_all(stack, replicas, logs)
        if spread is not None:
            stack.push_async_callback(spread.close)
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
            spread=spread,
            version=version,
        )
        await stack.enter_async_context(fleet)
        yield Servers(fleet=fleet, replicas=replicas, launches=launches)


def _replica(
    launch: Launch, logs: Path, version: int, note: Callable[[str], None], canary: Canary | None
) -> Replica:
    rows = vocabulary_size(str(launch.folder))
    if rows is None:
        raise ConfigError(f"{launch.folder / 'config.json'} has no vocab_size; a server needs it")
    return Replica(
        launch,
        model=DiskWeights(launch.folder),
        vocab_size=rows,
        version=version,
        log_path=logs / f"sglang-{launch.replica}.log",
        env={**server_env(launch.recipe.engine.gpus_of(launch.replica)), **dict.fromkeys(NOT_THEIRS)},
        progress=lambda text: note(f"server {launch.replica}: {text}"),
        engine_options={"hang_timeout_s": HANG_TIMEOUT_S, "update_timeout_s": UPDATE_TIMEOUT_S},
        canary=canary,
    )


async def _enter_all(stack: contextlib.AsyncExitStack, replicas: Sequence[Replica], logs: Path) -> None:
    outcomes = await asyncio.gather(*(r.__aenter__() for r in replicas), return_exceptions=True)
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
            f"{logs / f'sglang-{k}.log'} has all it said, docs/sglang.md what it needs"
        )


class _Promised(DiskWeights):
    """A folder that is being written; who looks into it waits."""

    def __init__(self, path: Path, written: Future[Path]) -> None:
        super().__init__(path)
        self._written = written

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._written.result()
        return super().shapes()


@dataclass(slots=True, kw_only=True, eq=False)
class ServerPublisher:
    """The learner's weights into servers; see run.Publisher.

    Invariant: what is served as a version is the learner's weights when `publish` of it was called, on every
    server, also on one that was away and came back later.
    """

    servers: Servers
    team: LearnerTeam
    thread: ThreadPoolExecutor
    """The learner's: what is written there is written before the next update."""
    spool: Spool
    recipe: Recipe
    canary: Canary | None = None
    patience_s: float = 1800.0
    """For a server to come back, where none took a version."""
    _written: Future[Path] | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        return self.servers.fleet.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """Servers have weights of their own: rollouts go on, unless the learner needs the servers' place."""
        if self.recipe.engine.placement == "restart":
            await self.servers.fleet.suspend()
        yield

    async def publish(self, version: int) -> None:
        """TrainingStopped if no server takes it, or comes back to take it, within `patience_s`."""
        if self._written is not None:
            await asyncio.wrap_future(self._written)  # raises what made it fail
        weights = await self.team.full_weights(version) or checkpoint.full_weights(self.team.learner.model)
        if self.canary is not None and any(r.engine.dtype is None for r in self.servers.replicas):
            await self.canary.learn(version)
        self._written = self.thread.submit(self.spool.write, version, weights)
        kept = _Promised(self.spool.folder(version), self._written)
        try:
            await self._send(version, weights, kept)
        except InferenceError as error:
            if not await self.servers.fleet.wait_up(self.patience_s):
                logs = ", ".join(str(replica.log_path) for replica in self.servers.replicas)
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none came back within "
                    f"{self.patience_s:.0f} s; see {logs}, then go on with --resume"
                ) from None

    async def _send(self, version: int, weights: list[tuple[str, Tensor]], kept: DiskWeights) -> None:
        engine, servers = self.recipe.engine, self.servers
        source: WeightSource = kept
        if engine.publish == "broadcast":
            source = LiveWeights(weights, dtype=self.recipe.model.dtype)
        else:
            assert self._written is not None
            await asyncio.wrap_future(self._written)
        try:
            if engine.placement == "restart":
                for launch in servers.launches:
                    launch.folder = kept.path
                await servers.fleet.resume(version, kept)
            else:
                await servers.fleet.publish(version, source, keep=kept)
        finally:
            for replica in servers.replicas:
                replica.keep(version, kept)
