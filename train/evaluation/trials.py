"""k attempts at each of many tasks: on every node, some groups at a time, and failures tried again.

    tasks ──Window──> found, or Roller: a group in flight ──> what failed retryably, again ──> on_group(group)

Who waits: `attempts` for the next group to end; a task for its place in the window. Only groups in flight are
in memory: what is kept of an ended one is `on_group`'s matter. A sibling that is tried again has the key, and
so the noise, of the one that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from rocstar.engine.nodes.window import Window
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.types import Group, Task, Trajectory
from rocstar.train.groups.journal import may_be_tried
from rocstar.train.groups.source import Roller

TRIES = 3
FIRST_REST_S = 1.0
"""Before a failed sibling is tried again; four times as long before the next try."""

Found = Callable[[Task], Awaitable[Sequence[Trajectory]]]
"""The attempts at a task that an earlier process made; they may be fewer than k."""


async def none_found(_: Task) -> Sequence[Trajectory]:
    return ()


async def attempts(
    roller: Roller,
    tasks: Sequence[Task],
    k: int,
    seed: int,
    step: int,
    *,
    in_flight: Window,
    on_group: Callable[[Group], Awaitable[None]],
    found: Found = none_found,
    what: str = "evaluation",
) -> None:
    """Roll out k attempts at each task; same (seed, step) = same noise.

    Args:
        roller: rolls out siblings, on whichever node.
        tasks: each once.
        k: attempts at a task.
        seed: with the step, names the noise.
        step: as it stands in the keys.
        in_flight: how many groups at a time.
        on_group: takes a group when it has ended, in no order, perhaps several at a time; nothing is kept.
        found: what is not rolled out again; with `roller.whole_groups` a group is found whole or not at all.
        what: as who watches knows it.
    """
    counted = Attempts(total=k * len(tasks))
    supply, running = iter(tasks), set[asyncio.Future[Group]]()
    with working(what, unit="tasks", total=len(tasks), attempts=counted) as work:

        async def group_of(task: Task) -> Group:
            known = {t.key.sibling: t for t in await found(task)}
            counted.total -= len(known)
            group = await _completed(roller, task, known, k, seed, step, counted)
            await on_group(group)
            return group

        make = work.counting(group_of)
        try:
            while True:
                room = max(0, in_flight.most - len(running))
                running |= {asyncio.ensure_future(make(task)) for task in islice(supply, room)}
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for group in await asyncio.gather(*done):
                    in_flight.ended(group)
        finally:  # a bug in one, or a cancellation, ends the others
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _completed(
    roller: Roller, task: Task, made: dict[int, Trajectory], k: int, seed: int, step: int, counted: Attempts
) -> Group:
    """The group of `made`, by sibling, and of what is missing; what fails retryably is tried again."""
    for number in range(TRIES):
        lost = [sibling for sibling in range(k) if sibling not in made or may_be_tried(made[sibling])]
        if not lost:
            break
        if roller.whole_groups:
            lost = list(range(k))
        if number:
            await asyncio.sleep(FIRST_REST_S * 4 ** (number - 1))
            counted.total += len(lost)
        made |= await _rolled_out(roller, task, lost, k, seed, step)
    return Group(task=task, trajectories=tuple(made[sibling] for sibling in range(k)))


async def _rolled_out(
    roller: Roller, task: Task, siblings: Sequence[int], k: int, seed: int, step: int
) -> dict[int, Trajectory]:
    """Attempts by sibling: all k as one group, some of them one by one."""
    if len(siblings) == k:
        groups = [await roller.roll_out(task, size=k, seed=seed, step=step)]
    else:
        async with asyncio.TaskGroup() as running:
            made = [
                running.create_task(roller.roll_out(task, size=1, seed=seed, step=step, first=sibling))
                for sibling in siblings
            ]
        groups = [one.result() for one in made]
    return {t.key.sibling: t for group in groups for t in group.trajectories}
