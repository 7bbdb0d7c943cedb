"""Sibling trajectories of one task, rolled out concurrently.

Who waits: the group waits for all its siblings. A sibling that failed is data, not an exception; any other
exception is a bug and cancels the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rocstar.engine.rollout import Agent, run_trajectory
from rocstar.engine.types import Group, Task, TrajectoryKey


async def run_group(agent: Agent, task: Task, *, size: int, seed: int, step: int) -> Group:
    """Roll out `size` siblings of `task`."""
    keys = [TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=k) for k in range(size)]
    agent.inference.join([str(key) for key in keys])
    async with asyncio.TaskGroup() as siblings:
        running = [siblings.create_task(run_trajectory(agent, task, key)) for key in keys]
    return Group(task=task, trajectories=tuple(task.result() for task in running))


async def run_groups(
    agent: Agent, tasks: Sequence[Task], *, size: int, seed: int, step: int, max_groups: int
) -> AsyncIterator[Group]:
    """Groups as they finish, at most `max_groups` of them in flight.

    Plain tasks, not a TaskGroup: a TaskGroup around a `yield` would cancel the consumer, wherever it is,
    instead of raising the bug of a sibling out of this iterator.
    """
    if max_groups < 1:
        raise ValueError(f"max_groups must be at least 1, got {max_groups}")
    room = asyncio.Semaphore(max_groups)

    async def one(task: Task) -> Group:
        async with room:
            return await run_group(agent, task, size=size, seed=seed, step=step)

    running = [asyncio.create_task(one(task)) for task in tasks]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
