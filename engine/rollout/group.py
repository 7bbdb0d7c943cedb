"""Sibling trajectories of one task, rolled out concurrently, and their branches (forks.py).

The group waits for all of them. A failed sibling is data, not an exception; any other exception is a
bug and cancels the group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.rollout.forks import Branches, ForkRule
from rocstar.engine.rollout.rollout import Agent, Draft, run_trajectory
from rocstar.engine.types import Group, Task, Trajectory, TrajectoryKey
from rocstar.engine.waits import waiting

Asked = TypeVar("Asked")
Unneeded = Callable[[Sequence[Trajectory], Sequence[TrajectoryKey]], Collection[TrajectoryKey]]
"""Says, from the siblings that have ended, which of the running ones may end early."""
END_S = 30.0
"""The time in which an engine answers an `abort`."""


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
    unneeded: Unneeded | None = None,
) -> Group:
    """Roll out `size` siblings of `task`, from number `first` on.

    Args:
        granted: as of each sibling.
        attempt: rolls out one, with the arguments of `run_trajectory`.
        forks: where they fork; None: nowhere.
        unneeded: asked when a sibling ends; those that it names end early. Not with forks.
    """
    keys = [TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=k) for k in range(first, first + size)]
    agent.inference.join([str(key) for key in keys])
    run_one = partial(attempt, agent, task, granted=granted)
    if unneeded is not None:
        run_one = partial(_run_watched, run_one, unneeded, [], {}, keys)
    async with asyncio.TaskGroup() as siblings:
        branches = None if forks is None else Branches(forks, agent, siblings)
        more = {} if branches is None else {"answered": branches.answered}
        running = [siblings.create_task(run_one(key, **more)) for key in keys]
    running += [] if branches is None else branches.running
    trajectories = sorted((one.result() for one in running), key=lambda t: t.key.order)
    return Group(task=task, trajectories=tuple(trajectories))


async def _run_watched(
    run_one: Callable[..., Coroutine[Any, Any, Trajectory]],
    unneeded: Unneeded,
    ended: list[Trajectory],
    drafts: dict[TrajectoryKey, Draft],
    keys: Sequence[TrajectoryKey],
    key: TrajectoryKey,
) -> Trajectory:
    """Roll out one sibling, then let those end that its outcome makes unneeded.

    Nothing runs between its release and their end but this: an engine in lockstep sees both at once.
    """
    trajectory = await run_one(key, begun=partial(drafts.__setitem__, key))
    ended.append(trajectory)
    over = {one.key for one in ended} | {one for one, draft in drafts.items() if draft.is_unneeded}
    for other in unneeded(ended, [one for one in keys if one not in over]):
        if other not in drafts:
            continue  # it has not begun
        deadline = asyncio.get_running_loop().time() + END_S
        with contextlib.suppress(InferenceError, TimeoutError):  # then it ends with its turn
            async with waiting(str(other), "its end", kind="abort", deadline=deadline):
                await drafts[other].end()
    return trajectory


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
