"""SGLang servers on other nodes than rank 0's: the first rank of each starts its own and does as it is told.

    rank 0, learner's thread ──order──> first rank's learner thread ─> Orders ─> `serve_node`, event loop
                             <──Reply──                      <── answer ──┘
    OpenServers    sandbox, servers, agent, NodeService; the answer is the service's address
    MakeRoom, ServeVersion, Written                       server_weights.py

Who waits: rank 0's learner thread, and with it all learners, for every node's answer to an order; a first
rank's learner thread for its event loop, which does one order after the other. A node that cannot do an order
says why, and rank 0 ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rocstar.engine.rollout import Agent
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.config import Recipe
from rocstar.train.model_io import load_tokenizer
from rocstar.train.preflight import chat_format
from rocstar.train.server_weights import MakeRoom, Promised, ServerWeights, ServeVersion, Written
from rocstar.train.servers import make_canary, open_servers
from rocstar.train.team import LearnerTeam

OpenService = Callable[[Agent, Callable[[], int]], contextlib.AbstractAsyncContextManager[str]]
"""(agent, version of its engine) -> the address at which its groups can be ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServers:
    """An order: start the recipe's servers on `folder` as `version`, and serve groups. Answered by a URL."""

    folder: Path
    logs: Path
    version: int


class Orders:
    """Orders on their way from the learner's thread to the event loop.

    Invariant: every order is answered, by what it gave or raised, or because nobody takes orders any more.
    """

    def __init__(self) -> None:
        """On the event loop that takes them."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[Any, Future[Any]]] = asyncio.Queue(1)
        self._closed = ""

    def __call__(self, order: Any) -> Any:
        """In the learner's thread: the order's answer, when it is done."""
        answer: Future[Any] = Future()
        asyncio.run_coroutine_threadsafe(self._put(order, answer), self._loop).result()
        return answer.result()

    async def _put(self, order: Any, answer: Future[Any]) -> None:
        if self._closed:
            answer.set_exception(RuntimeError(self._closed))
            return
        await self._queue.put((order, answer))

    async def next(self) -> tuple[Any, Future[Any]]:
        return await self._queue.get()

    def close(self, why: str) -> None:
        """Nobody takes orders from now on."""
        self._closed = why
        while not self._queue.empty():
            self._queue.get_nowait()[1].set_exception(RuntimeError(why))


@dataclass(slots=True, kw_only=True, eq=False)
class ServerNode:
    """The servers of this node, under rank 0's orders.

    Invariant: the files of a version are looked into only when rank 0 has written them.
    """

    weights: ServerWeights
    team: LearnerTeam
    _writing: dict[int, Future[None]] = field(default_factory=dict, init=False)

    async def do(self, order: Any) -> None:
        match order:
            case MakeRoom():
                await self.weights.make_room()
            case ServeVersion():
                await self._serve(order)
            case Written():
                self._written(order)
            case _:
                raise AssertionError(f"unknown order {order!r}")

    async def _serve(self, order: ServeVersion) -> None:
        if order.song is not None:
            self.weights.hear(order.version, order.song)
        written: Future[None] = Future()
        if order.is_live:
            self._writing[order.version] = written
        else:
            written.set_result(None)
        kept = Promised(order.folder, written)
        live = self.team.take_weights() if order.is_live else None
        await self.weights.serve(order.version, kept, live)

    def _written(self, order: Written) -> None:
        promise = self._writing.pop(order.version)
        if order.problem:
            promise.set_exception(OSError(order.problem))
        else:
            promise.set_result(None)

    def close(self) -> None:
        """Who still waits for files waits no more."""
        for promise in self._writing.values():
            promise.set_exception(OSError("the run is over"))
        self._writing.clear()


async def serve_node(
    recipe: Recipe,
    team: LearnerTeam,
    following: asyncio.Future[None],
    orders: Orders,
    open_service: OpenService,
) -> None:
    """A node's first rank on its event loop, until `following` ends: its learner under rank 0's verbs.

    Raises what made the servers not start, when rank 0 has been told and has ended the run.
    """
    failure: Exception | None = None
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(orders.close, "this node takes no orders any more")
        node: ServerNode | None = None
        while (given := await _next(orders, following)) is not None:
            order, answer = given
            try:
                if isinstance(order, OpenServers):
                    opened = open_node(recipe, team, order, open_service)
                    node, url = await stack.enter_async_context(opened)
                    answer.set_result(url)
                else:
                    if node is None:
                        raise RuntimeError("this node's servers did not start")
                    await node.do(order)
                    answer.set_result(None)
            except Exception as error:  # rank 0 is told, and ends the run
                answer.set_exception(error)
                failure = failure or error
    if failure is not None:
        raise failure
    await following


async def _next(orders: Orders, following: asyncio.Future[None]) -> tuple[Any, Future[Any]] | None:
    """The next order; None when the learner is done, or has failed."""
    taking: asyncio.Future[tuple[Any, Future[Any]]] = asyncio.ensure_future(orders.next())
    try:
        both: set[asyncio.Future[Any]] = {taking, following}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return taking.result() if taking.done() else None
    finally:
        taking.cancel()


@contextlib.asynccontextmanager
async def open_node(
    recipe: Recipe, team: LearnerTeam, order: OpenServers, open_service: OpenService
) -> AsyncIterator[tuple[ServerNode, str]]:
    """This node's servers and its agent behind its service, whose address is yielded."""
    tokenizer = load_tokenizer(str(order.folder))
    canary = make_canary(recipe, tokenizer, _nobody)
    async with (
        open_sandbox(recipe) as sandbox,
        open_servers(
            recipe,
            order.folder,
            logs=order.logs,
            name=f"sglang-rank{team.world.rank}",
            version=order.version,
            canary=canary,
        ) as servers,
    ):
        agent = make_agent(recipe, servers.fleet, chat_format(recipe, tokenizer), sandbox)
        team.keeps_weights = recipe.engine.publish == "broadcast"
        weights = ServerWeights(servers=servers, recipe=recipe, canary=canary)
        node = ServerNode(weights=weights, team=team)
        async with open_service(agent, lambda: servers.fleet.version) as url:
            try:
                yield node, url
            finally:
                node.close()


async def _nobody(prompt: list[int], num_tokens: int) -> NoReturn:
    raise AssertionError("the learner is asked on rank 0, whose orders bring what it said")
