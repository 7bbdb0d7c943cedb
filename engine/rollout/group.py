"""Sibling trajectories of one task, rolled out concurrently.

The group waits for all its siblings. A failed sibling is data, not an exception; any other exception is a
bug and cancels the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rocstar.engine.progress.progress import attempting
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.types import Group, Task, Trajectory, TrajectoryKey

Asked = TypeVar("Asked")


async def run_group(
    agent: Agent,
    task: Task,
    *,
    size: int,
    seed: int,
    step: int,
    first: int = 0,
    granted: Callable[[], None] = lambda: None,
) -> Group:
    """Roll out `size` siblings of `task`, from number `first` on. granted: as of each trajectory."""
    keys = [
        TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=k) for k in range(first, first + size)
    ]
    agent.inference.join([str(key) for key in keys])

    async def counted(key: TrajectoryKey) -> Trajectory:
        with attempting(str(key)):
            return await run_trajectory(agent, task, key, granted=granted)

    async with asyncio.TaskGroup() as siblings:
        running = [siblings.create_task(counted(key)) for key in keys]
    return Group(task=task, trajectories=tuple(sibling.result() for sibling in running))


async def all_groups(roll_out: Callable[[Asked], Awaitable[Group]], asked: Sequence[Asked]) -> list[Group]:
    """Groups of all that is asked for, in that order, rolled out at once; a bug in one cancels the others.

    Args:
        roll_out: makes one of `asked` a group.
        asked: tasks, or tickets.

    Raises:
        Exception: the bug, as itself: unlike a TaskGroup this raises the first alone.
    """
    running = [asyncio.ensure_future(roll_out(one)) for one in asked]
    try:
        for done in asyncio.as_completed(running):
            await done
    finally:
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [group.result() for group in running]
