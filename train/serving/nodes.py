"""Rollouts on several nodes: the work of every node's first rank beside learning, or in its place.

    rank 0 ── Start(path, token) ──> every rank: its part of the learner
      ├── OpenNode ────────────────> first rank of another node: sandbox, engine, agent -> NodeService
      │<── NodeAddress, by rank ─────┘      learner thread: LearnerTeam.follow
      ├── also to nodes that only serve, which are not ranks of the learner
      └── Nodes: groups over HTTP, at home in this process

Rank 0 waits once for every node to serve; later as in engine/nodes/nodes.py. A leader's event loop waits for
requests, commands and its learner thread, which waits for rank 0's commands. A leader's backend loads new
weights (train/publish). The end of the learner thread or of the service ends the process, with
a nonzero code unless rank 0 stopped it: torchrun then ends the others.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvloop

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.nodes.client import HttpNode, node_session
from rocstar.engine.nodes.grants import FILL, PART
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.nodes.service import NodeService, serving
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.waits import waiting
from rocstar.train.learner import checkpoint
from rocstar.train.learner.commands import ExecuteOnNode, NodeAnswer, NodeCommand, RankReply
from rocstar.train.learner.sharding import load_learner
from rocstar.train.learner.store_channel import LeaderLost, StoreChannel, travels
from rocstar.train.learner.team import LearnerTeam, NodeCommandError
from rocstar.train.learner.world import World
from rocstar.train.publish.server_node import FilesWritten, MakeRoom, ServerNode, ServeVersion
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped, mark_mistake
from rocstar.train.serving.backend import backend_of
from rocstar.train.tasks.chat_format import with_date

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


T = TypeVar("T")


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start message of rank 0.

    Attributes:
        token: of the nodes' services; None if no other node rolls out.
        date: `model.date` of rank 0, whose clock may show another day.
    """

    path: str
    token: str | None = None
    date: str = ""


# ---- rank 0 ----


@contextlib.asynccontextmanager
async def open_nodes(
    recipe: Recipe,
    addresses: Sequence[NodeAddress],
    token: str | None,
    home_load: Callable[[], KvLoad],
    note: Callable[[str], None],
) -> AsyncIterator[Nodes | None]:
    """This node and the others; None where there are none."""
    if token is None:
        yield None
        return
    at_once = backend_of(recipe).groups_at_once(recipe)
    async with node_session(token) as session:
        others = [HttpNode(str(k), address.url, session) for k, address in enumerate(addresses, 1)]
        async with Nodes(
            others,
            home_load=home_load,
            max_groups=at_once,
            part=None if recipe.engine.deterministic else PART,
            fill=FILL if at_once is None else 1.0,
            note=note,
        ) as nodes:
            note(f"{nodes.num_up} nodes roll out: this one and {', '.join(a.url for a in addresses)}")
            yield nodes


# ---- the other ranks ----


def follow(recipe: Recipe, world: World) -> None:
    """The whole life of a rank that is not 0."""
    start: Start | None = world.broadcast(None)
    if start is None:  # rank 0 could not begin; its message says why
        return
    recipe = with_date(recipe, start.date)
    model = load_learner(start.path, world, recipe)
    with ThreadPoolExecutor(1) as thread:
        if start.token is not None and world.local_rank == 0:
            make_team = partial(LearnerTeam, model, world, thread, recipe.model)
            _wait_for_stop(_serve(recipe, make_team, start, start.token))
            return
        LearnerTeam(model, world, thread, recipe.model).follow()


def serve_alone(recipe: Recipe, world: World) -> None:
    """The whole life of a node that only serves."""
    start: Start | None = world.broadcast(None)
    if start is None or start.token is None:  # rank 0 could not begin, or rolls nothing out
        return
    _wait_for_stop(_serve_alone(with_date(recipe, start.date), world, start.token))


async def _serve_alone(recipe: Recipe, world: World, token: str) -> None:
    line, commands = world.line, CommandQueue()
    assert line is not None, "a node that only serves has a line to rank 0"
    service = partial(_open_service, token)
    open_node = partial(backend_of(recipe).open_serving_node, recipe, world.rank, service=service)
    following = in_daemon(partial(follow_commands, line, world.rank, commands), name="commands")
    await serve_node(open_node, following, commands)


def _wait_for_stop(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until rank 0 says stop. Anything else leaves at once: a learner thread that is stuck in a
    collective would keep an orderly exit waiting; children die with us."""
    code = 1
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving)
        return
    except KeyboardInterrupt:
        code = 130
    except ConfigError as error:
        print(f"rocstar: {error}", file=sys.stderr)
        code = 2
    except LeaderLost as error:
        print(f"rocstar: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    mark_mistake(code)
    sys.stderr.flush()
    os._exit(code)


async def _serve(recipe: Recipe, make_team: Callable[..., LearnerTeam], start: Start, token: str) -> None:
    """Roll out and learn, until rank 0 ends the run."""
    commands = CommandQueue()
    team = make_team(execute_on_node=commands)

    def follow() -> None:
        checkpoint.set_threads(team.world.threads(recipe.run.threads))
        team.follow()

    open_node = partial(backend_of(recipe).open_node, recipe, team, start.path, service=partial(_open_service, token))
    await serve_node(open_node, in_daemon(follow, name="learner"), commands)


@contextlib.asynccontextmanager
async def _open_service(token: str, agent: Agent, version: Callable[[], int]) -> AsyncIterator[str]:
    """Yields its address."""
    host = own_address()
    async with serving(NodeService(agent, token, version=version), host) as port:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"


def own_address() -> str:
    """Return this machine's address for other nodes: that of the interface that leads to rank 0.

    On rank 0's own machine MASTER_ADDR may be its name and resolve to loopback. Nothing is sent.
    """
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        found: str = probe.getsockname()[0]
    ipaddress.ip_address(found)
    return found


def in_daemon(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `work` in a thread of its own that no exit of the process waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = work(), None
        except BaseException as caught:
            result, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
