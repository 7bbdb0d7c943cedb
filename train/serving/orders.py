"""Orders of rank 0 to the first ranks of other nodes, each with its own engine.

    rank 0, learner's thread ──order──> first rank's learner thread ─> Orders ─> `serve_node`, event loop
                             <──RankReply──                      <── answer ──┘
    OpenNode    sandbox, engine, agent, NodeService; the answer is the service's address

Rank 0's learner thread, and with it all learners, waits for every node's answer to an order; a first rank's
learner thread waits for its event loop, which executes orders in sequence. A node that fails an order reports
the reason, and rank 0 ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.waits import waiting
from rocstar.train.learner.store_line import travels
from rocstar.train.learner.team import LearnerTeam, OrderError
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.serving.node_address import START_TIMEOUT_S, NodeAddress

OpenService = Callable[[Agent, Callable[[], int]], AbstractAsyncContextManager[str]]
"""(agent, version of its engine) -> the address at which its groups can be ordered."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode:
    """An order: open this node's engine and serve groups. Answered by a URL."""


class OrderedNode(Protocol):
    """The resources that a node opened."""

    async def do(self, order: Any) -> None:
        """Execute a later order."""
        ...


class NoOrders:
    """A node that gets no further orders: its weights come with `full_weights`."""

    async def do(self, order: Any) -> None:
        raise AssertionError(f"unknown order {order!r}")


async def open_others(team: LearnerTeam, order: OpenNode) -> list[NodeAddress]:
    """Have every other node open its engine, all at once. TrainingStopped: one could not."""
    if not team.world.has_nodes:
        return []
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    try:
        async with waiting("the run", "every node to start", kind="start", deadline=deadline):
            replies = await team.order(order)
    except OrderError as error:
        raise TrainingStopped(f"a node cannot roll out: {error}") from None
    return [NodeAddress(rank=reply.rank, url=reply.answer) for reply in replies]


class Orders:
    """A queue of orders from the learner's thread to the event loop.

    Invariant: every order is answered, by its result or exception, or by an error after the queue is closed.
    """

    def __init__(self) -> None:
        """Take orders on the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[Any, Future[Any]]] = asyncio.Queue(1)
        self._closed = ""

    def __call__(self, order: Any) -> Any:
        """Return the order's answer when it is done; called in the learner's thread."""
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


async def serve_node(
    open_node: Callable[[OpenNode], AbstractAsyncContextManager[tuple[OrderedNode, str]]],
    following: asyncio.Future[None],
    orders: Orders,
) -> None:
    """Run a node's first rank on its event loop until `following`, its learner under rank 0, ends.

    Raises the error that prevented the node's start, after reporting it to rank 0, which ends the run.
    """
    failure: Exception | None = None
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(orders.close, "this node takes no orders any more")
        node: OrderedNode | None = None
        while (given := await _next(orders, following)) is not None:
            order, answer = given
            try:
                if isinstance(order, OpenNode):
                    node, url = await stack.enter_async_context(open_node(order))
                    answer.set_result(url)
                else:
                    if node is None:
                        raise RuntimeError("this node did not start")
                    await node.do(order)
                    answer.set_result(None)
            except Exception as error:  # reported to rank 0, which ends the run
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
