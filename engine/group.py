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
    async with asyncio.TaskGroup() as siblings:
        running = [siblings.create_task(run_trajectory(agent, task, key)) for key in keys]
    return Group(task=task, trajectories=tuple(task.result() for task in running))


async def run_groups(
    agent: Agent, tasks: Sequence[Task], *, size: int, seed: int, step: int, max_groups: int
) -> AsyncIterator[Group]:
    """Groups as they finish, at most `max_groups` of them in flight."""
    done: asyncio.Queue[Group] = asyncio.Queue(maxsize=len(tasks) or 1)
    room = asyncio.Semaphore(max_groups)

    async def one(task: Task) -> None:
        async with room:
            await done.put(await run_group(agent, task, size=size, seed=seed, step=step))

    async with asyncio.TaskGroup() as groups:
        for task in tasks:
            groups.create_task(one(task))
        for _ in tasks:
            yield await done.get()
