"""One group at a time, decoded in lockstep: the same bits from one node and from two, whichever had which."""

import asyncio
import dataclasses
from typing import Any

from rocstar.engine.nodes.node import GroupOrder, run_order
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group
from tests.fakes.fake_node import FakeNode


async def rolled_out(agents: list[Agent], orders: list[GroupOrder]) -> tuple[list[Group], dict[str, float]]:
    """By as many nodes as there are agents; the first is home."""
    home = agents[0]

    async def at_home(order: GroupOrder) -> Group:
        return await run_order(home, order)

    others = [FakeNode(str(k), agent) for k, agent in enumerate(agents[1:], 1)]
    async with Nodes(others, home_load=home.inference.load, max_groups=1) as nodes:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(nodes.roll_out(order, at_home)) for order in orders]
        return [task.result() for task in running], nodes.counts()


async def test_groups_have_the_same_bits_on_any_number_of_nodes(
    models: Any, embedded: Any, agent_of: Any, order_of: Any
) -> None:
    orders = [order_of(f"task {k}" * k, size=3 + k % 2) for k in range(1, 6)]
    orders = [
        dataclasses.replace(order, limits=dataclasses.replace(order.limits, max_response_tokens=24 + 8 * k))
        for k, order in enumerate(orders)
    ]
    options = {"max_running": 4, "lockstep": True}
    async with embedded(models("qwen3"), **options) as first, embedded(models("qwen3"), **options) as second:
        agents = [dataclasses.replace(agent_of(), inference=engine) for engine in (first, second)]
        alone, _ = await rolled_out(agents[:1], orders)
        together, counts = await rolled_out(agents, orders)
        swapped, _ = await rolled_out(agents[::-1], orders[::-1])
    assert together == alone and swapped[::-1] == alone
    assert counts["nodes/groups/0"] > 0 and counts["nodes/groups/1"] > 0
    assert sum(t.num_policy_tokens for group in alone for t in group.trajectories) > 200
