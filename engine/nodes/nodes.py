"""The host of `Grants`: groups go out to nodes, and come back from each exactly once.

    roll_out(order) ──parts──> Grants ──grant──> home: in process | another node: HTTP ──> siblings ──> Group
                                 ^                        │ 500, gone, hung, silent, or all of them failed
                                 └──── the same part ─────┘

`roll_out` waits for its grant, then for the granted node: without limit until the node reports that all
siblings are placed, then at most the order's time and GRACE_S twice. Both waits are on the wait board
(waits.py). The groups of a silent node are withdrawn and granted again, the same order with the same noise.
Home is always up and final: its result of a group, or its exception, is the result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes.grants import Grants
from rocstar.engine.nodes.node import GroupOrder, Node, NodeError
from rocstar.engine.nodes.wire import can_travel
from rocstar.engine.progress.progress import count_remote_group
from rocstar.engine.running_time import RunningClock, RunningLimit, running_timeout
from rocstar.engine.types import Failed, Group
from rocstar.engine.waits import waiting

HOME = "0"
"""The name of the node that grants."""
GRACE_S = 60.0
"""A group ends by the limits of its trajectories; a node that is so much later hangs."""
FIRST_LOADS_S = 2.0
"""The time a node has to say its load before the first groups of a step are granted."""
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 60.0

Home = Callable[[GroupOrder], Awaitable[Group]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """load_period_s: between two questions for the load, each of which may take `load_timeout_s`.
    silent_s: without an answer for so long a node is down, with all that it has. All of it counts only while
    our own loop runs."""

    load_period_s: float = 1.0
    load_timeout_s: float = 10.0
    silent_s: float = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    """A request for a part, with the means to end it. Its time runs from its reported placement."""

    cut: asyncio.Timeout
    limit_s: float
    clock: RunningLimit = field(init=False)

    def __post_init__(self) -> None:
        self.clock = RunningLimit(self.limit_s, self.end)

    def begin(self) -> None:
        """The first one counts."""
        if not self.cut.expired():
            self.clock.start()

    def end(self) -> None:
        """Now, at the latest."""
        self.clock.stop()
        if not self.cut.expired():
            self.cut.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True, kw_only=True, eq=False)
class _Remote:
    """Another node's place. `running` can cut off, by group, the requests that wait for it."""

    node: Node
    clock: RunningClock
    heard_at: float = 0.0
    """On `clock`."""
    rests_until: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    running: dict[str, _Running] = field(default_factory=dict)


class Nodes:
    """Invariant: `roll_out` returns the group of its order once, each sibling from one node, or raises what
    home raised or that it was cancelled; however many nodes fail on the way, no order is lost.
    """

    def __init__(
        self,
        others: Sequence[Node],
        *,
        home_load: Callable[[], KvLoad],
        max_groups: int | None = None,
        part: int | None = None,
        fill: float = 1.0,
        limits: NodeLimits | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """part: siblings that go to a node together; None: all of a group."""
        self._home_load, self._note, self._part = home_load, note, part
        self._limits = limits or NodeLimits()
        self._grants = Grants(HOME, home_tokens=home_load().total, max_groups=max_groups, fill=fill)
        self._nodes = others
        self._others: dict[str, _Remote] = {}
        self._clocks = contextlib.ExitStack()
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._watching: list[asyncio.Future[Any]] = []
        self._reporting: asyncio.Future[Any] | None = None
        self._regranted = 0
        self._rolled_out: defaultdict[str, float] = defaultdict(float)

    async def __aenter__(self) -> Nodes:
        """Asks every node for its load once, so that the first groups find all that answer."""
        clock = self._clocks.enter_context(RunningClock())
        self._others.update({node.name: _Remote(node=node, clock=clock) for node in self._nodes})
        await self._read_loads()
        self._watching = [
            asyncio.create_task(self._watch(remote), name=f"load of node {name}")
            for name, remote in self._others.items()
        ]
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._reporting is not None:
            self._watching.append(self._reporting)
        self._clocks.close()
        for task in self._watching:
            task.cancel()
        for result in await asyncio.gather(*self._watching, return_exceptions=True):
            if isinstance(result, Exception) and error is None:  # a bug: no other caller awaits these tasks
                raise result

    @property
    def num_up(self) -> int:
        return sum(node.is_up for node in self._grants.nodes.values())

    @property
    def total_tokens(self) -> int:
        """KV capacity of the nodes that are up."""
        return sum(node.total_tokens for node in self._grants.nodes.values() if node.is_up)

    def counts(self) -> dict[str, float]:
        """Counts since the last call, as metric names."""
        counts = {"nodes/up": float(self.num_up), "nodes/regranted": float(self._regranted)}
        for name in (HOME, *self._others):
            counts[f"nodes/groups/{name}"] = self._rolled_out[name]
        self._regranted = 0
        self._rolled_out.clear()
        return counts

    async def roll_out(self, order: GroupOrder, home: Home) -> Group:
        """The group of an order, from whichever nodes; `home` rolls out an order in this process.

        No order of the same key may be under way.
        """
        # With nothing in flight a new step begins, and older load reports of nodes may be wrong: servers that
        # were away, or KV that they still held. The groups of a step are submitted together.
        if not self._grants.groups:
            if self._reporting is None or self._reporting.done():
                self._reporting = asyncio.ensure_future(self._read_loads())
            await asyncio.wait([self._reporting], timeout=FIRST_LOADS_S)
        parts = order.parts(self._part or order.size)
        running = [asyncio.ensure_future(self._one(part, home, part.size / order.size)) for part in parts]
        try:
            found = await asyncio.gather(*running)
        finally:  # what one of them raised, or a cancellation, ends the others
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return Group(task=order.task, trajectories=tuple(t for part in found for t in part.trajectories))

    async def _one(self, order: GroupOrder, home: Home, share: float) -> Group:
        """The siblings of an order, from one node. share: of their group that they are."""
        key = order.key
        limit_tokens = order.limits.max_response_tokens
        self._grants.submit(key, size=order.size, limit_tokens=limit_tokens, away=can_travel(order.task))
        try:
            while True:
                granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._waiting[key] = granted
                self._decide()
                async with waiting(f"group {key}", "a node with room", kind="grant", deadline=None):
                    name = await granted
                group: Group | None
                if name == HOME:
                    async with waiting(f"group {key}", f"node {HOME}, this one", kind="node", deadline=None):
                        group = await home(order)
                else:
                    group = await self._away(name, order)
                if group is not None:
                    self._rolled_out[name] += share
                    self._grants.ended(key, [len(t.ids) for t in group.trajectories])
                    return group
        finally:
            self._waiting.pop(key, None)
            if key in self._grants.groups:
                self._grants.withdraw(key)
            self._decide()

    def _decide(self) -> None:
        load = self._home_load()
        self._grants.up(HOME, load.total)
        self._grants.seen(HOME, load.used)
        for key, name in self._grants.grants():
            granted = self._waiting.pop(key)
            if not granted.done():  # cancelled, and not withdrawn yet
                granted.set_result(name)

    async def _away(self, name: str, order: GroupOrder) -> Group | None:
        """None: the node failed it, and it waits for another."""
        remote, key, timeout_s = self._others[name], order.key, order.limits.timeout_s + GRACE_S
        home_only = False
        try:
            async with (
                asyncio.timeout(None) as cut,
                waiting(f"group {key}", f"node {name}", kind="node", deadline=None, may_expire=True),
            ):
                # The node's own limit passes first.
                remote.running[key] = _Running(cut=cut, limit_s=timeout_s + GRACE_S)
                group = await remote.node.roll_out(order, timeout_s=timeout_s)
            if not all(isinstance(t.outcome, Failed) for t in group.trajectories):
                remote.backoff_s = FIRST_BACKOFF_S
                count_remote_group(group)
                return group
            outcome = group.trajectories[0].outcome
            why, home_only = f"all trajectories failed: {outcome}", True
        except NodeError as error:
            why = str(error)
        except TimeoutError:
            why = "no answer in time"
        finally:
            if (running := remote.running.pop(key, None)) is not None:
                running.clock.stop()
        self._regranted += 1
        self._grants.failed(key, home_only=home_only)
        # Pause the node until its next load report, longer with each failure in a row.
        remote.rests_until = asyncio.get_running_loop().time() + remote.backoff_s
        remote.backoff_s = min(2 * remote.backoff_s, LAST_BACKOFF_S)
        self._down(remote, f"it failed group {key}, which is granted again: {why}")
        return None

    async def _read_loads(self) -> None:
        await asyncio.gather(*(self._read_load(remote) for remote in self._others.values()))

    async def _watch(self, remote: _Remote) -> None:
        """Ask a node for its load, for ever."""
        while True:
            await asyncio.sleep(self._limits.load_period_s)
            await self._read_load(remote)

    async def _read_load(self, remote: _Remote) -> None:
        """An answer brings the node up, a long silence takes it down."""
        loop, name = asyncio.get_running_loop(), remote.node.name
        try:
            async with running_timeout(self._limits.load_timeout_s):
                load = await remote.node.load()
        except (NodeError, TimeoutError) as error:
            if remote.clock.time() - remote.heard_at >= self._limits.silent_s:
                self._down(remote, f"it has been silent for {self._limits.silent_s:g} s: {error}")
                for running in remote.running.values():  # its groups go to others at once
                    running.end()
            return
        remote.heard_at = remote.clock.time()
        if loop.time() >= remote.rests_until:
            self._grants.up(name, load.kv.total)
        if name in self._grants.nodes:
            self._grants.seen(name, load.kv.used)
        for key in load.granted & remote.running.keys():
            remote.running[key].begin()
        self._decide()

    def _down(self, remote: _Remote, why: str) -> None:
        name = remote.node.name
        if name in self._grants.nodes and self._grants.nodes[name].is_up:
            self._grants.down(name)
            self._note(f"node {name} gets no more groups until it answers again: {why}")
