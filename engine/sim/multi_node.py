"""The live system on several nodes: parts of groups are granted to nodes, every node schedules its replicas.

    event ─> MultiNodeScheduler ─┬─ Grants (engine/nodes/): which node a part goes to, when it fits
                        └─ one Scheduler per node ──Grant, Drop──> replicas of that node

Trajectories of a part wait here until it is granted to a node; from then on they stay on that node. A single
Scheduler over all replicas, which the live system has on one node only, may place and move every trajectory
anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.nodes.grants import FILL, PART, Grants
from rocstar.engine.scheduling.events import (
    Command,
    Event,
    Left,
    LoadSeen,
    Preempted,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.schedule_state import SchedulingPolicy


@dataclass(slots=True, eq=False)
class _GrantedPart:
    """`events`: those not yet passed to its node; `tokens`: of the trajectories that have left."""

    size: int
    limit_tokens: int
    events: list[Event] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """part: siblings that are granted together. fill: times a node's KV that is granted."""

    part: int = PART
    fill: float = FILL

    def __post_init__(self) -> None:
        if self.part < 1 or not self.fill > 0:
            raise ValueError(f"part {self.part} must be 1 or more and fill {self.fill} above 0")


class MultiNodeScheduler:
    """Takes events as a `Scheduler` does, over one scheduler per node.

    Invariant: every event of a trajectory reaches exactly one node's scheduler, in their order, and none
    before its part is granted there.
    """

    def __init__(
        self, policy: Callable[[], SchedulingPolicy], *, replicas_per_node: int, levels: NodeSettings | None = None
    ) -> None:
        self._policy, self._per_node, self._levels = policy, replicas_per_node, levels or NodeSettings()
        self._sizes: Mapping[str, int] = {}
        self._num_seen: Counter[str] = Counter()
        self._nodes: list[Scheduler] = []
        self._pools: list[dict[int, int]] = []
        """Tokens of the pool by node and replica, and, below, those in use as last reported."""
        self._used: list[dict[int, int]] = []
        self._grants: Grants | None = None
        self._groups: dict[str, _GrantedPart] = {}
        self._group_of: dict[str, str] = {}
        self._context: dict[str, int] = {}

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Siblings of every group of the step that comes."""
        self._sizes = sizes
        self._num_seen.clear()

    def handle(self, event: Event) -> list[Command]:
        match event:
            case ReplicaUp():
                return self._up(event)
            case LoadSeen():
                assert self._grants is not None
                node = event.replica // self._per_node
                self._used[node][event.replica] = event.used_tokens
                self._grants.seen(str(node), sum(self._used[node].values()))
                return self._nodes[node].handle(event) + self._granted()
            case Submitted():
                return self._submit(event)
            case ReplicaDown():
                raise AssertionError("no replica goes down in a simulation")
            case TurnReady() | TurnEnded() | Preempted() | Left():
                return self._handle_turn(event)

    def _up(self, event: ReplicaUp) -> list[Command]:
        node = event.replica // self._per_node
        if node == len(self._nodes):
            self._nodes.append(Scheduler(self._policy()))
            self._pools.append({})
            self._used.append({})
        self._pools[node][event.replica] = event.kv_tokens
        total = sum(self._pools[node].values())
        if self._grants is None:
            self._grants = Grants("0", home_tokens=total, fill=self._levels.fill)
        self._grants.up(str(node), total)
        return self._nodes[node].handle(event)

    def _submit(self, event: Submitted) -> list[Command]:
        assert self._grants is not None
        sibling = self._num_seen[event.group]
        self._num_seen[event.group] += 1
        name = f"{event.group}~{sibling // self._levels.part}"
        group = self._groups.get(name)
        if group is None:
            size = min(self._levels.part, self._sizes[event.group] - sibling)
            group = self._groups[name] = _GrantedPart(size=size, limit_tokens=event.max_tokens)
            self._grants.submit(name, size=size, limit_tokens=group.limit_tokens)
        self._group_of[event.traj] = name
        self._context[event.traj] = event.prompt_tokens
        return self._pass(group, event) + self._granted()

    def _handle_turn(self, event: TurnReady | TurnEnded | Preempted | Left) -> list[Command]:
        name = self._group_of[event.traj]
        group = self._groups[name]
        if isinstance(event, TurnReady):
            self._context[event.traj] = event.context_tokens
        elif isinstance(event, TurnEnded):
            self._context[event.traj] += event.new_tokens
        out = self._pass(group, event)
        if isinstance(event, Left):
            group.tokens.append(self._context.pop(event.traj))
            del self._group_of[event.traj]
            if len(group.tokens) == group.size:
                assert self._grants is not None
                del self._groups[name]
                self._grants.ended(name, group.tokens)
                out += self._granted()
        return out

    def _pass(self, group: _GrantedPart, event: Event) -> list[Command]:
        if group.node is None:
            group.events.append(event)
            return []
        return self._nodes[group.node].handle(event)

    def _granted(self) -> list[Command]:
        assert self._grants is not None
        out: list[Command] = []
        for name, node in self._grants.grants():
            group = self._groups[name]
            group.node, events, group.events = int(node), group.events, []
            for event in events:
                out += self._nodes[group.node].handle(event)
        return out
