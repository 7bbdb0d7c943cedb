"""Publish the learner's weights to SGLang servers, on this node and on all others, in four phases.

    phase    engine.publish = "disk"                 "broadcast"
    gather   all ranks write the files of vN         other nodes accept vN: each opens a stream
    send     servers of all nodes load the files     a bucket is sent while all ranks gather the next
    verify   every node has replied                  every node has replied; who missed vN needs its files
    commit   nothing is left                         all ranks write the files; other nodes hear of them

The learner's thread does the work of all ranks, one job after the other; the event loop has this node's
servers load the weights, and waits for both. An engine verifies the received weights (sglang/sender.py).

`publish` waits until every running server of every node serves the version, or has failed; rollouts wait only
while a server loads weights, or while none runs. A broadcast never holds the complete weights
(weight_stream.py). A restarted server loads files, so they are written after a broadcast too, during the
rollouts and before the learner's next update. `publish` waits for them only if a broadcast failed on another
node, or a node has no learner.
"""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

import torch

from rocstar.engine.inference.sglang.canary import NUM_TOKENS, Continuation
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights
from rocstar.train.learner.commands import Greedy, NodeCommand, RankReply, ReleaseMemory
from rocstar.train.learner.team import LearnerTeam, NodeCommandError, check_replies
from rocstar.train.publish.rank_commands import SendWeights, WriteWeights, weight_shapes
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, NodeServers, PendingFiles, ServeVersion
from rocstar.train.recipe.errors import TrainingStopped

KEPT = 2
Save = Callable[[Path, torch.dtype], None]
"""Writes weights in a type into a folder."""


class VersionFolders:
    """Invariant: a folder `vN` is complete, and holds exactly the weights of version N.

    Args:
        root: the folder of all versions; files of an earlier run are removed.
        start: a folder of the model, whose other files (configuration, tokenizer) every version gets.
        dtype: the dtype of served weights.
    """

    def __init__(self, root: Path, start: Path, dtype: torch.dtype) -> None:
        self._root, self._start, self._dtype = root, start, dtype
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in self._folders():
            shutil.rmtree(folder)

    def folder(self, version: int) -> Path:
        return self._root / f"v{version}"

    def fill(self, version: int, save: Save) -> Path:
        """The folder of `version`, whose weights `save` writes. OSError where there is no room."""
        partial = self.folder(version).with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in self._start.iterdir():  # all but the weights and a checkpoint's state
            if path.is_file() and path.suffix not in (".safetensors", ".bin") and "index" not in path.name:
                link(path, partial / path.name)
        save(partial, self._dtype)
        partial.rename(self.folder(version))
        for old in self._folders()[:-KEPT]:
            shutil.rmtree(old)
        return self.folder(version)

    def _folders(self) -> list[Path]:
        found = [p for p in self._root.iterdir() if re.fullmatch(r"v\d+(\.partial)?", p.name)]
        return sorted(found, key=lambda path: int(path.stem[1:]))


def link(source: Path, target: Path) -> None:
    """The same file under another name: it stays when the other goes."""
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copy2(source, target)


T = TypeVar("T")


class PublishPhase(Enum):
    """The phase of the newest version; see the table above."""

    gather = auto()
    send = auto()
    verify = auto()
    commit = auto()
    done = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class ServerPublisher:
    """Publishes the learner's weights to the servers of all nodes; see publisher.py.

    Invariant: every node serves as a version the learner's weights at the call of `publish`. The thread that
    does a phase's work sets `phase`; the submission of that work orders the two threads.
    """

    home: NodeServers
    team: LearnerTeam
    thread: ThreadPoolExecutor
    """The learner's."""
    folders: VersionFolders
    """Their files are written before the next update."""
    phase: PublishPhase = field(default=PublishPhase.done, init=False)
    _committed: Future[Path] | None = field(default=None, init=False)
    """The files of the newest version."""

    @property
    def version(self) -> int:
        return self.home.fleet.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """Rollouts go on, unless the learner needs the servers' place."""
        if self.home.recipe.engine.placement == "restart":
            await _all(self.home.make_room(), self._outcome(self.thread.submit(self._command_nodes, MakeRoom())))
        yield

    async def publish(self, version: int) -> None:
        """TrainingStopped if on some node no server takes it, or comes back to take it."""
        if self._committed is not None:
            await self._outcome(self._committed)  # raises its failure
        self.phase = PublishPhase.gather
        command = ServeVersion(
            version=version,
            folder=self.folders.folder(version),
            is_live=self.home.recipe.engine.publish == "broadcast",
            reference=await self._reference(),
        )
        await (self._broadcast(command) if command.is_live else self._by_disk(command))

    async def _reference(self) -> Continuation | None:
        """Return the learner's present answer, if some server's checksums cannot be predicted."""
        canary = self.home.canary
        if canary is None or not any(r.engine.dtype is None for r in self.home.replicas):
            return None
        return await self.team.run(Greedy(canary.prompt, NUM_TOKENS))

    async def _by_disk(self, command: ServeVersion) -> None:
        self._committed = self.thread.submit(self._gather_files, command.version)
        await asyncio.wrap_future(self._committed)
        self.phase = PublishPhase.send
        sent = self.thread.submit(self._command_nodes, command)
        await _all(self._send_files(command), self._outcome(sent))
        self.phase = PublishPhase.done

    async def _send_files(self, command: ServeVersion) -> None:
        try:
            await self.home.serve(command.version, DiskWeights(command.folder), None, command.reference)
        finally:
            self.phase = PublishPhase.verify

    async def _broadcast(self, command: ServeVersion) -> None:
        files: Future[Path] = Future()
        kept = PendingFiles(command.folder, files)
        stream = WeightStream(weight_shapes(self.team), kept=kept)
        sent = self.thread.submit(self._gather_and_send, command, stream)
        # Behind the buckets: other nodes have the weights in memory already, and need not wait for the disk.
        self._committed = committed = self.thread.submit(self._commit, command.version, files)
        serving = self.home.serve(command.version, kept, stream, command.reference)
        try:
            await _all(self._verify(sent, committed), serving)  # report first that nothing was sent
        finally:
            stream.abandon()  # cancelled before any server loaded it

    async def _verify(self, sent: Future[list[RankReply]], committed: Future[Path]) -> None:
        """Return when every other node serves the version; one that missed it in memory loads its files."""
        replies = await self._outcome(sent)
        if self.team.world.servers or any(reply.rank and not reply.answer for reply in replies):
            await self._outcome(committed)

    @staticmethod
    async def _outcome(work: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(work)
        except NodeCommandError as error:
            raise TrainingStopped(f"another node cannot go on: {error}; go on with --resume") from None

    # ---- in the learner's thread ----

    def _command_nodes(self, command: NodeCommand) -> None:
        if self.team.world.has_nodes:
            self.team.command_nodes(command)

    def _gather_files(self, version: int) -> Path:
        path = self._write(version)
        if self.home.recipe.engine.placement == "restart":
            self.team.execute(ReleaseMemory())  # the next servers use the memory that is free
        return path

    def _gather_and_send(self, command: ServeVersion, stream: WeightStream) -> list[RankReply]:
        try:
            self._command_nodes(command)
            self.phase = PublishPhase.send
            replies = self.team.execute(SendWeights(stream))
            self.phase = PublishPhase.verify
            check_replies(replies)
            self.phase = PublishPhase.commit
            return replies
        finally:
            stream.end()  # if no rank may have gathered

    def _commit(self, version: int, files: Future[Path]) -> Path:
        """Return when the nodes that wait for the files serve them; `files` is done when they exist.

        Writes nothing if the weights were not sent: other ranks may still be in that collective and not reach
        another.
        """
        if self.phase is not PublishPhase.commit:
            unsent = OSError(f"the weights of version {version} were not sent, so no rank writes them")
            files.set_exception(unsent)
            raise unsent
        try:
            path = self._write(version)
        except BaseException as error:
            files.set_exception(error)
            if isinstance(error, OSError):  # waiters for the files must not wait for ever
                self._command_nodes(FilesWritten(version=version, problem=str(error)))
            raise
        files.set_result(path)
        self._command_nodes(FilesWritten(version=version))
        self.phase = PublishPhase.done
        return path

    def _write(self, version: int) -> Path:
        def save(folder: Path, dtype: torch.dtype) -> None:
            self.team.execute(WriteWeights(folder, dtype))

        return self.folders.fill(version, save)


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    """Do all of it, also if a part fails; then raise the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome
