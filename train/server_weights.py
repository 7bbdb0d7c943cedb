"""The learner's weights into SGLang servers, on this node and on all others.

    learner ─┬─ split:   Spool or broadcast ─> running servers
             └─ restart: servers stop ─> the learner works ─> Spool ─> servers start from it
    rank 0's thread: disk       write vN ─> order ServeVersion(vN)
                     broadcast  order ServeVersion ─> write vN ─> order Written(vN)

Who waits: `publish` for every server that is up, of every node, to serve the version, or to be found unable
to; rollouts only while a server takes weights, or while none runs. What a server that was away must hold when
it comes back is always on the disk: after a broadcast too, written while the rollouts go on, before the
learner's next update. Other nodes read what rank 0 wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.inference.sglang.canary import Canary, Song
from rocstar.engine.inference.sglang.publish import Publisher
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.sglang.weights import DiskWeights, LiveWeights, WeightSource
from rocstar.train import checkpoint
from rocstar.train.config import Recipe, TrainingStopped
from rocstar.train.spool import Spool
from rocstar.train.team import LearnerTeam, OrderError

if TYPE_CHECKING:  # servers.py starts what is given weights here
    from rocstar.train.servers import Servers


UPDATE_TIMEOUT_S = 900.0
"""Of one call that carries weights; a publish is a few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRoom:
    """An order: stop the servers until the next version, for the learner needs their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeVersion:
    """An order: serve `version`, whose files lie in `folder`, or will after `Written`."""

    version: int
    folder: Path
    is_live: bool
    """Broadcast what `full_weights` gathered last; the files are still to be written."""
    song: Song | None
    """What the learner says of the version, where a canary is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An order: the files of `version` are there, or why not."""

    version: int
    problem: str = ""


class Promised(DiskWeights):
    """A folder that is being written; who looks into it waits."""

    def __init__(self, path: Path, written: Future[Any]) -> None:
        super().__init__(path)
        self._written = written

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._written.result()
        return super().shapes()


@dataclass(slots=True, kw_only=True, eq=False)
class ServerWeights:
    """What the servers of this node hold.

    Invariant: what is served as a version is what `serve` of it was given, on every server, also on one that
    was away and came back later.
    """

    servers: Servers
    recipe: Recipe
    canary: Canary | None = None
    patience_s: float = 1800.0
    """For a server to come back, where none took a version."""

    def hear(self, version: int, song: Song) -> None:
        """What the learner said of `version`, on rank 0."""
        if self.canary is not None:
            self.canary.hear(version, song)

    async def make_room(self) -> None:
        """Servers have weights of their own, and go on, unless the learner needs their place."""
        if self.recipe.engine.placement == "restart":
            await self.servers.fleet.suspend()

    async def serve(
        self, version: int, kept: DiskWeights, live: list[tuple[str, Tensor]] | None = None
    ) -> None:
        """Serve `kept` as `version`, or `live`, the same weights in memory: then `kept` is for servers that
        come back later, and may still be written.

        TrainingStopped if no server takes it, or comes back to take it, within `patience_s`.
        """
        fleet, dtype = self.servers.fleet, self.recipe.model.dtype
        source: WeightSource = kept if live is None else LiveWeights(live, dtype=dtype)
        try:
            try:
                if self.recipe.engine.placement == "restart":
                    for launch in self.servers.launches:
                        launch.folder = kept.path
                    await fleet.resume(version, kept)
                else:
                    await fleet.publish(version, source, keep=kept)
            finally:
                for replica in self.servers.replicas:
                    replica.keep(version, kept)
        except InferenceError as error:
            if not await fleet.wait_up(self.patience_s):
                logs = ", ".join(str(replica.log_path) for replica in self.servers.replicas)
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none came back within "
                    f"{self.patience_s:.0f} s; see {logs}, then go on with --resume"
                ) from None


@dataclass(slots=True, kw_only=True, eq=False)
class ServerPublisher:
    """The learner's weights into the servers of all nodes; see run.Publisher.

    Invariant: what is served as a version, on any node, is the learner's weights when `publish` of it was
    called.
    """

    home: ServerWeights
    team: LearnerTeam
    thread: ThreadPoolExecutor
    """The learner's: what is written there is written before the next update."""
    spool: Spool
    has_others: bool = False
    """The first ranks of other nodes have servers, and obey."""
    _written: Future[Path] | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        return self.home.servers.fleet.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """Rollouts go on, unless the learner needs the servers' place."""
        if self.home.recipe.engine.placement == "restart":
            await _all(self.home.make_room(), self._others(MakeRoom()))
        yield

    async def publish(self, version: int) -> None:
        """TrainingStopped if on some node no server takes it, or comes back to take it."""
        if self._written is not None:
            await asyncio.wrap_future(self._written)  # raises what made it fail
        weights = await self.team.full_weights() or checkpoint.full_weights(self.team.learner.model)
        order = ServeVersion(
            version=version,
            folder=self.spool.folder(version),
            is_live=self.home.recipe.engine.publish == "broadcast",
            song=await self._song(version),
        )
        if order.is_live:
            # In this order: other nodes have the weights in memory already, and need not wait for the disk.
            told = self.thread.submit(self._tell, order)
            self._written = self.thread.submit(self._write_and_tell, version, weights)
        else:
            self._written = self.thread.submit(self.spool.write, version, weights)
            told = self.thread.submit(self._tell_when_written, order, self._written)
            await asyncio.wrap_future(self._written)
        kept = Promised(order.folder, self._written)
        live = weights if order.is_live else None
        await _all(self.home.serve(version, kept, live), _told(told))

    async def _song(self, version: int) -> Song | None:
        canary = self.home.canary
        if canary is None or not any(r.engine.dtype is None for r in self.home.servers.replicas):
            return None
        await canary.learn(version)
        return canary.song(version)

    async def _others(self, order: Any) -> None:
        if self.has_others:
            await _told(self.thread.submit(self._tell, order))

    # ---- in the learner's thread ----

    def _tell(self, order: Any) -> None:
        if self.has_others:
            self.team.order_here(order)

    def _tell_when_written(self, order: ServeVersion, written: Future[Path]) -> None:
        if written.exception() is None:
            self._tell(order)

    def _write_and_tell(self, version: int, weights: list[tuple[str, Tensor]]) -> Path:
        try:
            path = self.spool.write(version, weights)
        except OSError as error:  # who waits for the files must not wait for ever
            self._tell(Written(version=version, problem=str(error)))
            raise
        self._tell(Written(version=version))
        return path


async def _told(told: Future[None]) -> None:
    try:
        await asyncio.wrap_future(told)
    except OrderError as error:
        raise TrainingStopped(f"another node cannot go on: {error}; go on with --resume") from None


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    """All of it, also when a part fails; then the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome


@dataclass(slots=True, kw_only=True, eq=False)
class Broadcast:
    """A `Spread` over the servers of one node, which join one group with this process."""

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
