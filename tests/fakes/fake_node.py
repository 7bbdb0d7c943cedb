"""A node in this process, whose answers can be spoiled. It passes the tests of the real one.

node = FakeNode("1", agent)
node.faults["s1/t0"] = Fault.error     # this group fails there; `node.is_dead` is of all of them
"""

import asyncio
import dataclasses
from enum import Enum

from rocstar.engine.nodes.node import GroupOrder, NodeError, NodeLoad, run_order
from rocstar.engine.nodes.wire import decode_group, decode_order, encode_group, encode_order
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Failed, Group


class Fault(Enum):
    """The fate of a group: status 500, no answer, or an answer of failed trajectories only."""

    error = "error"
    hang = "hang"
    failed = "failed"


class FakeNode:
    """Implements `node.Node` over an agent. `asked` lists the groups it was asked for, `ended` those that it
    rolled out, in order; `running` are under way."""

    def __init__(self, name: str, agent: Agent, *, total_tokens: int = 1 << 20) -> None:
        self.name, self._agent, self.total_tokens = name, agent, total_tokens
        self.faults: dict[str, Fault] = {}
        self.is_dead = False
        self.is_silent = False
        """Nothing answers, nothing fails."""
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.running: set[str] = set()
        self.granted: set[str] = set()

    async def roll_out(self, order: GroupOrder, *, timeout_s: float) -> Group:
        self.asked.append(order.key)
        await self._answer()
        fault = self.faults.get(order.key)
        self.running.add(order.key)
        try:
            if fault is Fault.hang:
                self.granted.add(order.key)
                await asyncio.get_running_loop().create_future()
            if fault is Fault.error:
                raise NodeError("/v1/groups answered 500: a fault")
            received, _ = decode_order(encode_order(order, timeout_s=timeout_s))
            group = await run_order(self._agent, received, placed=lambda: self.granted.add(order.key))
            await self._answer()
        finally:
            self.running.discard(order.key)
            self.granted.discard(order.key)
        if fault is Fault.failed:
            lost = Failed(kind="engine_stopped", retryable=False, detail="a fault")
            trajectories = tuple(dataclasses.replace(t, outcome=lost) for t in group.trajectories)
            group = dataclasses.replace(group, trajectories=trajectories)
        self.ended.append(order.key)
        return decode_group(encode_group(group), order)

    async def load(self) -> NodeLoad:
        await self._answer()
        kv = dataclasses.replace(self._agent.inference.load(), total=self.total_tokens)
        return NodeLoad(kv=kv, granted=frozenset(self.granted))

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.is_silent:
            await asyncio.get_running_loop().create_future()
        if self.is_dead:
            raise NodeError("/v1/groups: ClientConnectorError: no server")
