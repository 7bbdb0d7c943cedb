"""The messages between nodes: an order of some siblings of a group, and the load of the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rocstar.engine.inference.base import KvLoad, Sampling
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """Names siblings of a group and all that their tokens depend on besides the weights: equal orders, equal
    trajectories, whichever other siblings are ordered with them."""

    task: Task
    step: int
    seed: int
    size: int
    first: int = 0
    """The number of the first of them."""
    limits: RolloutLimits
    temperature: float

    @property
    def key(self) -> str:
        name = f"s{self.step}/{self.task.id}"
        return f"{name}~{self.first}" if self.first else name

    def parts(self, size: int) -> list[GroupOrder]:
        """Split the order into orders of `size` siblings; the last has the rest."""
        ends = range(self.first, self.first + self.size, size)
        return [replace(self, first=k, size=min(size, self.first + self.size - k)) for k in ends]


async def run_order(agent: Agent, order: GroupOrder, *, placed: Callable[[], None] = lambda: None) -> Group:
    """Roll out the siblings of an order; call `placed` when each of them has its place."""
    left = order.size

    def granted() -> None:
        nonlocal left
        left -= 1
        if not left:
            placed()

    return await run_group(
        replace(agent, limits=order.limits, sampling=Sampling(temperature=order.temperature)),
        order.task,
        size=order.size,
        seed=order.seed,
        step=order.step,
        first=order.first,
        granted=granted,
    )


class NodeError(Exception):
    """A node failed an order. Its group is granted to another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """How full a node's KV cache is, and the keys of the orders whose siblings all have a place there."""

    kv: KvLoad
    granted: frozenset[str] = frozenset()


class Node(Protocol):
    """Another node that rolls out. Both calls raise NodeError or TimeoutError; the caller sets a deadline."""

    @property
    def name(self) -> str: ...

    async def roll_out(self, order: GroupOrder, *, timeout_s: float) -> Group:
        """The group; cancelling the call ends it there too. timeout_s: from when all of it is granted."""

    async def load(self) -> NodeLoad: ...
