"""Commands of rank 0 to the first ranks of other nodes, and to nodes that only serve.

    rank 0, learner's thread ── command ──> first rank's learner thread ─> CommandQueue ─> `serve_node`, loop
                             <── RankReply ──                        <── answer ──┘
    OpenNode    sandbox, engine, agent, NodeService; the answer is the service's address
    others      publish/server_node.py

Rank 0's learner thread, and with it all learners, waits for every node's answer to a command; a first rank's
learner thread waits for its event loop, which executes commands in sequence. A node that only serves has
no learner: `follow_commands` receives its commands from the store (store_channel.py), in a thread of its own.
A node that fails a command reports the reason, and rank 0 ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.waits import waiting
from rocstar.train.learner.commands import ExecuteOnNode, NodeAnswer, NodeCommand, RankReply
from rocstar.train.learner.store_channel import StoreChannel, travels
from rocstar.train.learner.team import LearnerTeam, NodeCommandError
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServerNode, ServeVersion
from rocstar.train.recipe.errors import TrainingStopped

START_TIMEOUT_S = 3600.0
"""The time every node has to have loaded its model, or started its servers, and opened its sandbox."""
OpenService = Callable[[Agent, Callable[[], int]], AbstractAsyncContextManager[str]]
"""(agent, version of its engine) -> the address at which rank 0 can request its groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """The address at which the node of a rank serves the groups that it is granted."""

    rank: int
    url: str


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode(NodeCommand):
    """Open this node's engine and serve groups. Answered by a URL."""


OpenedNode = AbstractAsyncContextManager[tuple[ServerNode | None, str]]
"""A node's engine and the address of its service; None if it gets no further commands."""


async def open_others(team: LearnerTeam, command: OpenNode) -> list[NodeAddress]:
    """Have every other node open its engine, all at once. TrainingStopped: one could not."""
    if not team.world.has_nodes:
        return []
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    try:
        async with waiting("the run", "every node to start", kind="start", deadline=deadline):
            replies = await team.in_thread(team.command_nodes, command)
    except NodeCommandError as error:
        raise TrainingStopped(f"a node cannot roll out: {error}") from None
    return [NodeAddress(rank=reply.rank, url=str(reply.answer)) for reply in replies]


Queued = tuple[NodeCommand, Future[NodeAnswer]]


class CommandQueue:
    """A queue of commands from the learner's thread to the event loop.

    Invariant: every command is answered, by its result or exception, or by an error after the queue is
    closed.
    """

    def __init__(self) -> None:
        """Commands are executed on the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Queued] = asyncio.Queue(1)
        self._closed = ""

    def __call__(self, command: NodeCommand) -> NodeAnswer:
        """Return the command's answer when it is done; called in the learner's thread."""
        answer: Future[NodeAnswer] = Future()
        asyncio.run_coroutine_threadsafe(self._put(command, answer), self._loop).result()
        return answer.result()

    async def _put(self, command: NodeCommand, answer: Future[NodeAnswer]) -> None:
        if self._closed:
            answer.set_exception(RuntimeError(self._closed))
            return
        await self.queue.put((command, answer))

    def close(self, why: str) -> None:
        """Answer every later command by an error."""
        self._closed = why
        while not self.queue.empty():
            self.queue.get_nowait()[1].set_exception(RuntimeError(why))


def follow_commands(line: StoreChannel, rank: int, execute: ExecuteOnNode) -> None:
    """Execute rank 0's commands and reply, until it ends the run. LeaderLost: rank 0 is gone."""

    def answer() -> str | None:
        found = execute(command)
        assert not isinstance(found, WeightStream), "this node has no learner to fill it"
        return found

    while (command := line.hear()) is not None:
        line.reply(RankReply.of(rank, answer))
    line.reply(None)  # rank 0 waits for that before it ends, perhaps with the store


async def serve_node(
    open_node: Callable[[OpenNode], OpenedNode], following: asyncio.Future[None], commands: CommandQueue
) -> None:
    """Run a node's first rank on its event loop until `following`, its learner under rank 0, ends.

    Raises the error that prevented the node's start, after reporting it to rank 0, which ends the run.
    """
    failure: Exception | None = None
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(commands.close, "this node takes no commands any more")
        node: ServerNode | None = None
        while (queued := await _next(commands, following)) is not None:
            command, answer = queued
            try:
                match command:
                    case OpenNode():
                        node, url = await stack.enter_async_context(open_node(command))
                        answer.set_result(url)
                    case MakeRoom() | ServeVersion() | FilesWritten() if node is not None:
                        answer.set_result(await node.execute(command))
                    case _:
                        raise RuntimeError(f"this node did not start, or cannot execute {command!r}")
            except Exception as error:  # reported to rank 0, which ends the run
                answer.set_exception(error)
                failure = failure or error
    if failure is not None:
        raise failure
    await following


async def _next(commands: CommandQueue, following: asyncio.Future[None]) -> Queued | None:
    """Return the next command, or None when the learner is done, or has failed."""
    taking = asyncio.ensure_future(commands.queue.get())
    try:
        both: set[asyncio.Future[Any]] = {taking, following}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return taking.result() if taking.done() else None
    finally:
        taking.cancel()
