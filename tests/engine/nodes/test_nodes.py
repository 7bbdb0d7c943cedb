"""Groups over several nodes are those of one, whatever the nodes do. Time is virtual."""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes import nodes as nodes_module
from rocstar.engine.nodes.node import GroupOrder, NodeLoad, run_order
from rocstar.engine.nodes.nodes import FIRST_LOADS_S, GRACE_S, NodeLimits, Nodes
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group
from rocstar.engine.waits import WaitBoard
from tests.fakes.fake_node import FakeNode, Fault
from tests.fakes.scripted_policy import ByteTokenizer, Reply, ScriptedPolicy, VirtualClockLoop, on_virtual_time

LOAD = KvLoad(total=1 << 20, used=0, running=0, waiting=0)
Orders = list[GroupOrder]


class Cluster:
    """A home and others that are fakes over agents of one script."""

    def __init__(self, agent_of: Callable[..., Agent], count: int, script: Any = None) -> None:
        self._make_agent = agent_of if script is None else partial(agent_of, script)
        self.home_agent = self._make_agent()
        self.others = [FakeNode(str(k + 1), self._make_agent()) for k in range(count)]
        self.at_home: list[str] = []
        self.notes: list[str] = []

    def opened(self, **options: Any) -> Nodes:
        options = {"home_load": lambda: LOAD, "note": self.notes.append} | options
        return Nodes(self.others, **options)

    async def home(self, order: GroupOrder) -> Group:
        self.at_home.append(order.key)
        return await run_order(self.home_agent, order)

    async def alone(self, orders: Orders) -> list[Group]:
        """Return the groups that one node rolls out."""
        agent = self._make_agent()
        return [await run_order(agent, order) for order in orders]

    async def roll_out(self, nodes: Nodes, orders: Orders) -> list[Group]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(nodes.roll_out(order, self.home)) for order in orders]
        return [task.result() for task in running]


Clusters = Callable[..., Cluster]


@pytest.fixture
def cluster_of(agent_of: Any) -> Clusters:
    return lambda count, script=None: Cluster(agent_of, count, script)


@pytest.fixture
def cluster(cluster_of: Clusters) -> Cluster:
    """A home and one other node."""
    return cluster_of(1)


@pytest.fixture
def orders(order_of: Any) -> Orders:
    return [order_of(f"t{k}") for k in range(12)]


@pytest.mark.parametrize("count", [1, 3])
@on_virtual_time
async def test_several_nodes_make_the_groups_of_one(cluster_of: Clusters, orders: Orders, count: int) -> None:
    cluster = cluster_of(count)

    async with cluster.opened() as nodes:
        groups = await cluster.roll_out(nodes, orders)
        share = len(orders) // (count + 1)
        assert nodes.counts() == {
            "nodes/up": count + 1,
            "nodes/regranted": 0,
            **{f"nodes/groups/{k}": share for k in range(count + 1)},
        }
        assert groups == await cluster.alone(orders)
    assert sorted(cluster.at_home + [key for node in cluster.others for key in node.ended]) == sorted(
        order.key for order in orders
    )


@on_virtual_time
async def test_what_another_node_rolled_out_is_counted_once(
    cluster: Cluster, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Group] = []
    monkeypatch.setattr(nodes_module, "count_remote_group", counted.append)

    async with cluster.opened() as nodes:
        await cluster.roll_out(nodes, orders)
    assert len(counted) == len(cluster.others[0].ended) == len(orders) - len(cluster.at_home) > 0


@pytest.mark.parametrize("fault", list(Fault))
@on_virtual_time
async def test_what_a_node_fails_another_rolls_out(cluster: Cluster, orders: Orders, fault: Fault) -> None:
    cluster.others[0].faults = {order.key: fault for order in orders}

    async with cluster.opened() as nodes:
        groups = await cluster.roll_out(nodes, orders)
        counts = nodes.counts()
        assert counts["nodes/groups/1"] == 0 and counts["nodes/groups/0"] == 12
        assert counts["nodes/regranted"] == len(cluster.others[0].asked) >= 6
        assert groups == await cluster.alone(orders)
    assert "gets no more groups until it answers again" in cluster.notes[0]


@on_virtual_time
async def test_a_node_that_dies_loses_nothing_and_comes_back(cluster: Cluster, orders: Orders) -> None:
    node = cluster.others[0]

    async with cluster.opened() as nodes:
        asyncio.get_running_loop().call_later(1.5, setattr, node, "is_dead", True)
        groups = await cluster.roll_out(nodes, orders)
        assert nodes.num_up == 1 and nodes.counts()["nodes/regranted"] == 6
        node.is_dead = False
        await asyncio.sleep(100.0)
        assert nodes.num_up == 2
        later = [dataclasses.replace(order, step=2) for order in orders]
        await cluster.roll_out(nodes, later)
        assert nodes.counts()["nodes/groups/1"] == 6
        assert groups == await cluster.alone(orders)


@on_virtual_time
async def test_a_silent_node_is_given_up_long_before_its_groups_are_due(cluster: Cluster, orders: Orders) -> None:
    node = cluster.others[0]
    orders = [dataclasses.replace(order, limits=dataclasses.replace(order.limits, timeout_s=1e6)) for order in orders]

    async with cluster.opened(limits=NodeLimits(silent_s=30.0, load_timeout_s=10.0)) as nodes:
        asyncio.get_running_loop().call_later(1.5, setattr, node, "is_silent", True)
        groups = await cluster.roll_out(nodes, orders)
        assert 30.0 < asyncio.get_running_loop().time() < 80.0
        assert node.running == set(), "cut off there too"
        assert groups == await cluster.alone(orders)


@on_virtual_time
async def test_a_node_is_not_silent_because_our_own_loop_was(
    cluster: Cluster, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocked for longer than its silence, while it was being asked: it keeps its groups."""
    node = cluster.others[0]
    load = type(node).load

    async def slow(self: FakeNode) -> NodeLoad:
        await asyncio.sleep(0.5)
        return await load(self)

    monkeypatch.setattr(type(node), "load", slow)

    loop = cast(VirtualClockLoop, asyncio.get_running_loop())
    limits = NodeLimits(silent_s=30.0, load_timeout_s=10.0)
    async with cluster.opened(limits=limits) as nodes:
        at, rng = 0.0, random.Random(0)
        for _ in range(20):  # in every phase of the question
            at += rng.uniform(46.0, 56.0)
            loop.call_later(at, loop.stand_still, 45.0)
        groups = await cluster.roll_out(nodes, orders)
        await asyncio.sleep(1100.0)
        assert nodes.counts()["nodes/regranted"] == 0.0
        assert groups == await cluster.alone(orders)
    assert not cluster.notes


@on_virtual_time
async def test_a_group_that_hangs_while_its_node_answers_has_a_deadline(cluster: Cluster, order_of: Any) -> None:
    orders = [order_of("t0"), order_of("t1")]
    cluster.others[0].faults = {orders[1].key: Fault.hang}

    async with cluster.opened() as nodes:
        groups = await cluster.roll_out(nodes, orders)
        assert 100.0 < asyncio.get_running_loop().time() <= 100.0 + 2 * GRACE_S + 20.0
        assert groups == await cluster.alone(orders)


@on_virtual_time
async def test_a_part_that_waits_for_its_places_has_no_deadline(cluster_of: Clusters, order_of: Any) -> None:
    """Six orders of three behind two slots there: the last begins eight limits late, and none moves."""
    cluster = cluster_of(1, lambda _: Reply(text="4", delay_s=90.0))
    cluster.others[0] = FakeNode("1", two_slots(cluster.others[0]))
    orders = [order_of(f"t{k}") for k in range(12)]

    async with cluster.opened() as nodes:
        await cluster.roll_out(nodes, orders)
        assert asyncio.get_running_loop().time() > 6 * 100.0 + 2 * GRACE_S
        assert nodes.counts()["nodes/regranted"] == 0 and len(cluster.others[0].ended) == 6


def two_slots(node: FakeNode) -> Agent:
    policy = ScriptedPolicy(lambda _: Reply(text="4", delay_s=90.0), ByteTokenizer(), max_running=2)
    return dataclasses.replace(node._agent, inference=policy)


@on_virtual_time
async def test_a_group_that_fails_every_node_fails_at_home(cluster_of: Clusters, order_of: Any) -> None:
    cluster = cluster_of(1, lambda _: Reply(text="a bug"))

    async with cluster.opened() as nodes:
        with pytest.raises(ExceptionGroup) as caught:
            await nodes.roll_out(order_of("t0"), cluster.home)
        assert caught.group_contains(KeyError, match="a bug")


@on_virtual_time
async def test_a_node_that_was_never_there_gets_nothing(cluster_of: Clusters, orders: Orders) -> None:
    cluster = cluster_of(2)
    cluster.others[0].is_silent = True
    cluster.others[1].is_dead = True

    async with cluster.opened() as nodes:
        await cluster.roll_out(nodes, orders)
        assert nodes.counts()["nodes/groups/0"] == 12 and nodes.num_up == 1
    assert not any(node.asked for node in cluster.others)


@on_virtual_time
async def test_a_task_that_cannot_travel_stays_at_home(cluster: Cluster, order_of: Any) -> None:
    orders = [order_of(f"t{k}", meta={"x": object()}) for k in range(4)]

    async with cluster.opened() as nodes:
        await cluster.roll_out(nodes, orders)
    assert len(cluster.at_home) == 4


@on_virtual_time
async def test_in_turns_where_asked(cluster: Cluster, orders: Orders) -> None:

    async with cluster.opened(max_groups=1) as nodes:
        running = asyncio.create_task(cluster.roll_out(nodes, orders))
        while not running.done():
            assert len(cluster.others[0].running) <= 1
            await asyncio.sleep(0.1)
        assert await running == await cluster.alone(orders)


@on_virtual_time
async def test_cancelling_ends_the_group_wherever_it_is(cluster: Cluster, orders: Orders) -> None:

    async with cluster.opened(max_groups=3) as nodes:  # some are at home, some away, some wait
        running = asyncio.create_task(cluster.roll_out(nodes, orders))
        await asyncio.sleep(1.0)
        assert cluster.others[0].running
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() and not cluster.others[0].running
        again = [dataclasses.replace(order, step=2) for order in orders]
        assert len(await cluster.roll_out(nodes, again)) == 12


@on_virtual_time
async def test_the_board_says_which_group_waits_for_which_node(cluster: Cluster, orders: Orders) -> None:

    board = WaitBoard(asyncio.get_running_loop().time)
    with board.installed():
        async with cluster.opened(max_groups=1) as nodes:
            running = asyncio.create_task(cluster.roll_out(nodes, orders[:3]))
            await asyncio.sleep(0.5)
            table = board.table()
            assert "group s1/t0 waits for node 0, this one (node)" in table
            assert "group s1/t1 waits for node 1 (node)" in table
            assert "group s1/t2 waits for a node with room (grant)" in table
            (wait,) = [wait for wait in board.entries if wait.whom == "node 1"]
            assert wait.expire(), "the watchdog's remedy: the group goes elsewhere"
            assert len(await running) == 3
            assert nodes.counts()["nodes/regranted"] == 1


@pytest.mark.parametrize("seed", range(5))
@on_virtual_time
async def test_random_faults_change_no_group(cluster_of: Clusters, order_of: Any, seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of(3)
    orders = [order_of(f"t{k}", timeout_s=1e4) for k in range(30)]
    for node in cluster.others:
        node.faults = {order.key: rng.choice(list(Fault)) for order in orders if rng.random() < 0.3}

    async def trouble() -> None:
        while True:
            await asyncio.sleep(rng.expovariate(0.2))
            node = rng.choice(cluster.others)
            node.is_dead = rng.random() < 0.5

    troubling = asyncio.create_task(trouble())
    async with cluster.opened(max_groups=rng.choice([None, 2])) as nodes:
        groups = await cluster.roll_out(nodes, orders)
    troubling.cancel()
    assert groups == await cluster.alone(orders)


@on_virtual_time
async def test_a_group_that_is_granted_when_nobody_wants_it_any_more(order_of: Any) -> None:
    go_on = asyncio.Event()

    async def home(order: GroupOrder) -> Group:
        await go_on.wait()
        return Group(task=order.task, trajectories=())

    async with Nodes([], home_load=lambda: LOAD, max_groups=1) as nodes:
        first, second, third = (asyncio.create_task(nodes.roll_out(order_of(f"t{k}"), home)) for k in range(3))
        await asyncio.sleep(1.0)
        go_on.set()
        second.cancel()  # `first` ends before it is told
        assert [(await one).task.id for one in (first, third)] == ["t0", "t2"]
        assert second.cancelled()


@on_virtual_time
async def test_the_first_groups_of_a_step_go_by_what_nodes_are_then(cluster: Cluster, orders: Orders) -> None:
    """Servers that were away while the learner worked are back before the next second's question."""
    node = cluster.others[0]

    async with cluster.opened() as nodes:
        node.total_tokens = 0
        await asyncio.sleep(2.0)  # the node has said so
        node.total_tokens = LOAD.total
        await cluster.roll_out(nodes, orders)
        assert nodes.counts()["nodes/groups/1"] == 6


@on_virtual_time
async def test_a_silent_node_delays_a_step_by_no_more_than_a_look(cluster: Cluster, orders: Orders) -> None:

    async with cluster.opened() as nodes:
        cluster.others[0].is_silent = True
        loop = asyncio.get_running_loop()
        asked, granted = loop.time(), loop.create_future()

        async def home(order: GroupOrder) -> Group:
            granted.set_result(loop.time())
            return await cluster.home(orders[0])

        await nodes.roll_out(orders[0], home)
        assert granted.result() - asked == FIRST_LOADS_S


@pytest.mark.parametrize("part", [1, 2, 3, 7])
@on_virtual_time
async def test_siblings_of_a_group_may_be_rolled_out_apart(cluster_of: Clusters, order_of: Any, part: int) -> None:
    """The group is the same, whatever node made which of them; what fails goes elsewhere part by part."""
    cluster, orders = cluster_of(2), [order_of(f"t{k}", size=7) for k in range(6)]
    cluster.others[0].faults = {orders[1].key: Fault.error}

    async with cluster.opened(part=part) as nodes:
        groups = await cluster.roll_out(nodes, orders)
        counts = nodes.counts()
        assert sum(counts[f"nodes/groups/{k}"] for k in range(3)) == pytest.approx(6.0)
        assert groups == await cluster.alone(orders)
    for node in cluster.others:
        assert len(node.ended) == len(set(node.ended)), "no part twice"
    if part < 7:
        apart = {key.partition("~")[0] for node in cluster.others for key in node.ended}
        assert len(apart) == 6, "every group has siblings elsewhere"


@on_virtual_time
async def test_a_bug_in_one_part_ends_the_others(cluster: Cluster, order_of: Any) -> None:

    async def home(order: GroupOrder) -> Group:
        raise KeyError("a bug")

    async with cluster.opened(part=2) as nodes:
        with pytest.raises(KeyError, match="a bug"):
            await nodes.roll_out(order_of("t0", size=8), home)
        assert not cluster.others[0].running
