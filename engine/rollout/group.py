"""Sibling trajectories of one task, rolled out concurrently, and their branches (forks.py).

The group waits for all of them. A failed sibling is data, not an exception; any other exception is a
bug and cancels the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rocstar.engine.rollout.forks import Branches, ForkRule
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
    attempt: Callable[..., Coroutine[Any, Any, Trajectory]] = run_trajectory,
    forks: ForkRule | None = None,
) -> Group:
    """Roll out `size` siblings of `task`, from number `first` on.

    Args:
        granted: as of each sibling.
        attempt: rolls out one, with the arguments of `run_trajectory`.
        forks: where they fork; None: nowhere.
    """
    keys = [TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=k) for k in range(first, first + size)]
    agent.inference.join([str(key) for key in keys])
    async with asyncio.TaskGroup() as siblings:
        branches = None if forks is None else Branches(forks, agent, siblings)
        more = {} if branches is None else {"answered": branches.answered}
        running = [siblings.create_task(attempt(agent, task, key, granted=granted, **more)) for key in keys]
    running += [] if branches is None else branches.running
    trajectories = sorted((one.result() for one in running), key=lambda t: t.key.order)
    return Group(task=task, trajectories=tuple(trajectories))


async def all_groups(
    roll_out: Callable[[Asked], Awaitable[Group]], asked: Sequence[Asked], on_end: Callable[[], None] = lambda: None
) -> list[Group]:
    """Return the groups of `asked`, in that order, rolled out at once; a bug in one cancels the others.

    Args:
        roll_out: rolls out the group of one of `asked`.
        asked: tasks, for example.
        on_end: called when a group ends.

    Raises:
        Exception: the bug, as itself: unlike a TaskGroup this raises the first alone.
    """
    running = [asyncio.ensure_future(roll_out(one)) for one in asked]
    for group in running:
        group.add_done_callback(lambda _: on_end())
    try:
        for done in asyncio.as_completed(running):
            await done
    finally:
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [group.result() for group in running]
