"""What one node asks of another: a whole group, and how full its KV cache is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.rollout import RolloutLimits
from rocstar.engine.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """Names a group and all that its tokens depend on besides the weights: equal orders, equal groups.

    Siblings stay together, for they share the KV of their prompt.
    """

    task: Task
    step: int
    seed: int
    size: int
    limits: RolloutLimits
    temperature: float

    @property
    def key(self) -> str:
        return f"s{self.step}/{self.task.id}"


class NodeError(Exception):
    """A node did not do what it was asked. The group it had is granted elsewhere."""


class Node(Protocol):
    """Another node that rolls out. Both calls raise NodeError or TimeoutError; the caller sets a deadline."""

    @property
    def name(self) -> str: ...

    async def roll_out(self, order: GroupOrder, *, timeout_s: float) -> Group:
        """The group; cancelling the call ends it there too."""
        ...

    async def load(self) -> KvLoad: ...
