"""A node's servers under the commands of rank 0.

    MakeRoom        stop the servers: the learner needs their place
    ServeVersion    serve files that are written, or weights that the learner sends next
    FilesWritten    the files of a version that was sent are written: servers that missed it load them

Nodes that only serve have no learner, so nothing in their memory can be sent: they load every version from
its files.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.canary import Canary, Continuation
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights, Shapes, WeightSource
from rocstar.train.learner.commands import NodeCommand
from rocstar.train.learner.store_channel import travels
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped

UPDATE_TIMEOUT_S = 900.0
"""The time of one call that carries weights; a publish is a few of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class NodeServers:
    """Running servers of this node and the fleet in front of them.

    Invariant: every server serves as a version exactly the weights passed to `serve` for it, also after a
    restart.
    """

    fleet: Fleet
    replicas: list[Replica]
    recipe: Recipe
    start_from: Callable[[Path], None]
    """Sets the folder from which servers start from now on."""
    canary: Canary | None = None
    patience_s: float = 1800.0
    """The time a server has to come back, where none took a version."""

    async def make_room(self) -> None:
        """Stop the servers if the learner needs their place; otherwise they go on with their own weights."""
        if self.recipe.engine.placement == "restart":
            await self.fleet.suspend()

    async def serve(
        self, version: int, kept: DiskWeights, live: WeightStream | None = None, reference: Continuation | None = None
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
                live.settle(False, error if isinstance(error, Exception) else RuntimeError("it was cancelled"))
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
        source: WeightSource = kept if live is None else live
        try:
            try:
                if self.recipe.engine.placement == "restart":
                    self.start_from(kept.path)
                    await self.fleet.resume(version, kept)
                else:
                    await self.fleet.publish(version, source, keep=kept)
            finally:
                for replica in self.replicas:
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
                    f"{problem}; fix that, then go on with --resume"
                ) from None
            if not await self.fleet.wait_up(self.patience_s):
                logs = ", ".join(str(replica.log_path) for replica in self.replicas)
                raise TrainingStopped(
                    f"no inference server took version {version} ({error}), and none came back within "
                    f"{self.patience_s:.0f} s; see {logs}, then go on with --resume"
                ) from None


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRoom(NodeCommand):
    """Stop the servers until the next version, because the learner needs their place."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeVersion(NodeCommand):
    """Serve `version`, whose files are in `folder`, or will be after `FilesWritten`."""

    version: int
    folder: Path
    is_live: bool
    """Send what `SendWeights` gathers next; the files are still to be written."""
    reference: Continuation | None
    """The learner's answer to the canary's prompt at that version, if a canary is used."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class FilesWritten(NodeCommand):
    """The files of `version` are written, or why not. Done when the version is served."""

    version: int
    problem: str = ""


WeightCommand = MakeRoom | ServeVersion | FilesWritten


class PendingFiles(DiskWeights):
    """A folder that is being written; readers wait for it."""

    def __init__(self, path: Path, written: Future[Any]) -> None:
        super().__init__(path)
        self._written = written

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._written.result()
        return super().shapes()


@dataclass(slots=True, kw_only=True, eq=False)
class ServerNode:
    """The servers of this node, under rank 0's commands.

    Invariant: the files of a version are read only when rank 0 has written them.
    """

    servers: NodeServers
    shapes: Shapes | None
    """Shapes of all weights, in the learner's sending order; None if the node has no learner, and every
    version comes from its files."""
    _serving: dict[int, tuple[Future[None], asyncio.Task[None]]] = field(default_factory=dict, init=False)
    """By version: whether its files are written, and the task that serves it from memory."""
    _expected: dict[int, ServeVersion] = field(default_factory=dict, init=False)
    """Versions to be served when their files are written."""

    async def execute(self, command: WeightCommand) -> WeightStream | None:
        """Return the stream into which this node's learner is to gather its weights next, if there is one."""
        match command:
            case MakeRoom():
                await self.servers.make_room()
            case ServeVersion() if not command.is_live:
                folder = DiskWeights(command.folder)
                await self.servers.serve(command.version, folder, None, command.reference)
            case ServeVersion():
                return self._begin(command)
            case FilesWritten():
                await self._files_written(command)
        return None

    def _begin(self, command: ServeVersion) -> WeightStream | None:
        """Serve a version from memory while the learner gathers it."""
        if self.shapes is None:
            self._expected[command.version] = command
            return None
        files: Future[None] = Future()
        kept = PendingFiles(command.folder, files)
        stream = WeightStream(self.shapes, kept=kept)
        serve = self.servers.serve(command.version, kept, stream, command.reference)
        task = asyncio.create_task(serve, name=f"serve version {command.version}")
        task.add_done_callback(lambda _: stream.abandon())  # it may be cancelled before it begins
        self._serving[command.version] = files, task
        return stream

    async def _files_written(self, command: FilesWritten) -> None:
        """Servers that missed the version in memory take it now."""
        if (expected := self._expected.pop(command.version, None)) is not None:
            if command.problem:
                raise OSError(command.problem)
            folder = DiskWeights(expected.folder)
            await self.servers.serve(expected.version, folder, None, expected.reference)
            return
        files, task = self._serving.pop(command.version)
        if command.problem:
            files.set_exception(OSError(command.problem))
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
