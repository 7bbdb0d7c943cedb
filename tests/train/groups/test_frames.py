"""How many functions of ours lie between a source of groups and the turn loop."""

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rocstar.train.groups.source import LiveGroups
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.time_budget import TimeBudget
from tests.engine.rollout.test_group import agent, tasks
from tests.fakes.scripted_policy import Reply, Request, run_virtual

ROOT = Path(inspect.getfile(LiveGroups)).parents[2]
ROOMS = {ROOT / "engine" / "rollout", ROOT / "engine" / "nodes", ROOT / "train" / "groups"}
MOST_FRAMES = 6


def frames_here() -> list[str]:
    """The functions of these rooms on the stack, the outermost first."""
    stack = [f.function for f in inspect.stack() if Path(f.filename).parent in ROOMS]
    return [name for name in stack[::-1] if not name.startswith("<")]


def test_a_group_is_rolled_out_within_six_frames() -> None:
    frames: dict[asyncio.Task[Any] | None, list[str]] = {None: []}

    def started(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        frames[task] = frames[asyncio.current_task(loop)] + frames_here()
        return task

    chains: list[list[str]] = []

    def reply(request: Request) -> Reply:
        chains.append(frames[asyncio.current_task()] + frames_here())
        return Reply(text="4")

    async def roll_out() -> None:
        frames[asyncio.current_task()] = []
        asyncio.get_running_loop().set_task_factory(started)
        made, _ = agent(reply)
        source = LiveGroups(
            agent=made,
            engine=cast(Any, SimpleNamespace(version=0, busy_s=0.0, starved_s=0.0)),
            cursor=TaskCursor(tasks(2), seed=0, stage=0),
            rl=RlConfig(tasks_per_step=2, rollouts_per_task=2, group_size=2),
            seed=0,
            budget=TimeBudget(),
        )
        await source.take(1)

    run_virtual(roll_out())
    assert len(chains) == 4
    assert chains[0][-1] == "sample" and chains[0][0] == "take"
    for chain in chains:
        way = chain[chain.index("take") + 1 : chain.index("sample") + 1]
        assert len(way) <= MOST_FRAMES, way
