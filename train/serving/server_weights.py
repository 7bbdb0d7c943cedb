"""Load the learner's weights into SGLang servers, on this node and on all others.

    learner ─┬─ split:   WeightFolders or broadcast ─> running servers
             └─ restart: servers stop ─> the learner works ─> WeightFolders ─> servers start from it
    rank 0's thread: disk       write vN, with all ranks ─> release memory ─> order ServeVersion(vN)
                     broadcast  order ServeVersion ─> send buckets, write vN ─> order FilesWritten

`publish` waits until every running server of every node serves the version, or has failed; rollouts wait only
while a server loads weights, or while none runs. A broadcast never holds the complete weights: on the first
rank of each node a bucket is sent while the next is gathered (weight_stream.py). The weights for a restarted
server are always on disk: after a broadcast too, written during the rollouts, before the learner's next
update, by all learner ranks (weight_file.py). Other nodes read the same files. `publish` waits for them only
if a broadcast failed on another node, or a node has no learner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.canary import NUM_TOKENS, Canary, Continuation
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights, WeightSource
from rocstar.train.learner.store_line import travels
from rocstar.train.learner.team import LearnerTeam, OrderError, RankReply
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.serving.weight_folders import WeightFolders

if TYPE_CHECKING:  # servers.py starts the servers that get weights here
    from rocstar.train.serving.servers import Servers

T = TypeVar("T")

UPDATE_TIMEOUT_S = 900.0
"""The time of one call that carries weights; a publish is a few of them."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRoom:
    """An order: stop the servers until the next version, for the learner needs their place."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeVersion:
    """An order: serve `version`, whose files lie in `folder`, or will after `FilesWritten`."""

    version: int
    folder: Path
    is_live: bool
    """Broadcast what `send_weights` gathers next; the files are still to be written."""
    reference: Continuation | None
    """The learner's answer to the canary's prompt at that version, if a canary is used."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class FilesWritten:
    """An order: the files of `version` are there, or why not. Done when the version is served."""

    version: int
    problem: str = ""


class Promised(DiskWeights):
    """A folder that is being written; readers wait for it."""

    def __init__(self, path: Path, written: Future[Any]) -> None:
        super().__init__(path)
        self._written = written

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._written.result()
        return super().shapes()


@dataclass(slots=True, kw_only=True, eq=False)
class ServerWeights:
    """The weights of this node's servers.

    Invariant: every server serves as a version exactly the weights passed to `serve` for it, also after a
    restart.
    """

    servers: Servers
    recipe: Recipe
    canary: Canary | None = None
    patience_s: float = 1800.0
    """The time a server has to come back, where none took a version."""

    async def make_room(self) -> None:
        """Servers have weights of their own, and go on, unless the learner needs their place."""
        if self.recipe.engine.placement == "restart":
            await self.servers.fleet.suspend()

    async def serve(
        self,
        version: int,
        kept: DiskWeights,
        live: WeightStream | None = None,
        reference: Continuation | None = None,
    ) -> None:
        """Serve `kept` as `version`, or `live`, equal weights from memory: then `kept` is for servers that
        restart later, and may still be being written. `reference`: expected answer of the canary.

        In every case `live` is released and its outcome set.

        Raises TrainingStopped if no server loads it within `patience_s`, restarts included.
        """
        try:
            await self._serve(version, kept, live, reference)
        except BaseException as error:
            if live is not None:
                live.settle(
                    False, error if isinstance(error, Exception) else RuntimeError("it was cancelled")
                )
            raise
        finally:
            if live is not None:
                live.let_go()
                live.settle(True)

    async def _serve(
        self, version: int, kept: DiskWeights, live: WeightStream | None, reference: Continuation | None
    ) -> None:
        if self.canary is not None and reference is not None:
            self.canary.expect(version, reference)
        fleet = self.servers.fleet
        source: WeightSource = kept if live is None else live
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
            if live is not None:  # the files are written next, and a restarted server needs them
                live.let_go()
                live.settle(False)
            try:
                await asyncio.to_thread(kept.shapes)
            except (OSError, ValueError) as problem:
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none can when it comes back: "
                    f"{problem}; mend that, then go on with --resume"
                ) from None
            if not await fleet.wait_up(self.patience_s):
                logs = ", ".join(str(replica.log_path) for replica in self.servers.replicas)
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none came back within "
                    f"{self.patience_s:.0f} s; see {logs}, then go on with --resume"
                ) from None


@dataclass(slots=True, kw_only=True, eq=False)
class ServerPublisher:
    """Publishes the learner's weights to the servers of all nodes; see run.Publisher.

    Invariant: every node serves as a version the learner's weights at the call of `publish`.
    """

    home: ServerWeights
    team: LearnerTeam
    thread: ThreadPoolExecutor
    """The learner's folders: their files are written before the next update."""
    weight_folders: WeightFolders
    has_others: bool = False
    """The first ranks of other nodes have servers, and do_order."""
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
            await _told(self._written)  # raises what made it fail
        order = ServeVersion(
            version=version,
            folder=self.weight_folders.folder(version),
            is_live=self.home.recipe.engine.publish == "broadcast",
            reference=await self._reference(),
        )
        await (self._broadcast(order) if order.is_live else self._by_disk(order))

    async def _by_disk(self, order: ServeVersion) -> None:
        self._written = self.thread.submit(self._write_and_make_room, order.version)
        told = self.thread.submit(self._tell_when_written, order, self._written)
        await asyncio.wrap_future(self._written)
        kept = Promised(order.folder, self._written)
        await _all(self.home.serve(order.version, kept, None, order.reference), _told(told))

    async def _broadcast(self, order: ServeVersion) -> None:
        files: Future[Path] = Future()
        kept = Promised(order.folder, files)
        stream = WeightStream(self.team.shapes(), kept=kept)
        sent = self.thread.submit(self._tell_and_send, order, stream)
        # Behind the buckets: other nodes have the weights in memory already, and need not wait for the disk.
        self._written = written = self.thread.submit(self._write_and_tell, order.version, files, sent)
        serving = self.home.serve(order.version, kept, stream, order.reference)
        try:
            await _all(self._others_serve(sent, written), serving)  # report first that nothing was sent
        finally:
            stream.abandon()  # cancelled before any server loaded it

    async def _others_serve(self, sent: Future[list[RankReply]], written: Future[Path]) -> None:
        replies = await _told(sent)
        if self.team.world.servers or any(reply.rank and not reply.answer for reply in replies):
            await _told(written)

    async def _reference(self) -> Continuation | None:
        """Return the learner's present answer, if some server's checksums cannot be predicted."""
        canary = self.home.canary
        if canary is None or not any(r.engine.dtype is None for r in self.home.servers.replicas):
            return None
        return await self.team.greedy(canary.prompt, NUM_TOKENS)

    async def _others(self, order: Any) -> None:
        if self.has_others:
            await _told(self.thread.submit(self._tell, order))

    # ---- in the learner's thread ----

    def _write_and_make_room(self, version: int) -> Path:
        path = self.weight_folders.fill(version, self.team.write_weights_here)
        if self.home.recipe.engine.placement == "restart":
            self.team.give_back_here()  # the next servers size their memory by what is free
        return path

    def _tell(self, order: Any) -> None:
        if self.has_others:
            self.team.order_here(order)

    def _tell_and_send(self, order: ServeVersion, stream: WeightStream) -> list[RankReply]:
        try:
            self._tell(order)
            self.team.send_into(stream)
            return self.team.send_weights_here()
        finally:
            stream.end()  # if no rank may have gathered

    def _tell_when_written(self, order: ServeVersion, written: Future[Path]) -> None:
        if written.exception() is None:
            self._tell(order)

    def _write_and_tell(self, version: int, files: Future[Path], sent: Future[list[RankReply]]) -> Path:
        """Return when the nodes that wait for the files serve them; `files` is done when they exist.

        Does nothing if the weights were not sent: other ranks may still be in that collective and not reach
        another.
        """
        if sent.cancelled() or sent.exception() is not None:
            unsent = OSError(f"the weights of version {version} were not sent, so nobody writes them")
            files.set_exception(unsent)
            raise unsent
        try:
            path = self.weight_folders.fill(version, self.team.write_weights_here)
        except BaseException as error:
            files.set_exception(error)
            if isinstance(error, OSError):  # waiters for the files must not wait for ever
                self._tell(FilesWritten(version=version, problem=str(error)))
            raise
        files.set_result(path)
        self._tell(FilesWritten(version=version))
        return path


async def _told(told: Future[T]) -> T:
    try:
        return await asyncio.wrap_future(told)
    except OrderError as error:
        raise TrainingStopped(f"another node cannot go on: {error}; go on with --resume") from None


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    """All of it, also when a part fails; then the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome
