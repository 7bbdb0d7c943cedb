"""Batches rolled out when they are asked for: which tasks, how stale, whose time."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstar.engine.inference.base import Sampling
from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.progress.progress import ProgressBoard, attempting
from rocstar.engine.types import Group, Task, VersionSpan
from rocstar.train.groups import source
from rocstar.train.groups.live_source import live_source, wave_of
from rocstar.train.groups.source import LiveGroups, staleness
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.rl_config import RlConfig, StageConfig
from rocstar.train.record.time_budget import TimeBudget
from tests.fakes.trajectories import make_group

from .batches import AGENT, LIMITS

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]
STAGE = StageConfig(steps=4, max_response_tokens=77, max_turns=5)


def group(task: Task, *versions: int) -> Group:
    spans = tuple(VersionSpan(start=k, end=k + 1, version=v) for k, v in enumerate(versions))
    return make_group(task, 1.0, version_spans=spans)


@pytest.fixture
def rolled_out(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked to be rolled out; every group is of version 3 and decodes for a second of two."""
    asked: list[dict[str, Any]] = []

    async def run_group(agent: Any, task: Task, **options: Any) -> Group:
        asked.append({"agent": agent, "task": task.id, **options})
        await asyncio.sleep(0)
        ENGINE.busy_s, ENGINE.now = ENGINE.busy_s + 1.0, ENGINE.now + 2.0
        return group(task, 3)

    monkeypatch.setattr(source, "run_group", run_group)
    return asked


ENGINE: Any = SimpleNamespace(version=3, busy_s=0.0, starved_s=0.0, now=0.0)


def open_live(tasks_per_step: int, state: dict[str, Any] | None = None) -> LiveGroups:
    recipe = Recipe(rl=RlConfig(tasks_per_step=tasks_per_step, max_staleness=0))
    opened: Any = live_source(recipe, AGENT, ENGINE, STAGE, TASKS, state, next_step=1, budget=TimeBudget())
    made: LiveGroups = opened.enter_result
    return made


async def test_a_source_goes_on_where_another_stood(rolled_out: list[dict[str, Any]]) -> None:
    whole, first = open_live(2), open_live(2)
    for step in range(1, 6):
        await whole.take(step)
    for step in (1, 2):
        await first.take(step)
    second = open_live(2, first.state())
    for step in (3, 4, 5):
        await second.take(step)
    tasks = [asked["task"] for asked in rolled_out]
    assert tasks[:10] == tasks[10:] and second.state() == whole.state()
    assert [asked["step"] for asked in rolled_out] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] * 2
    limits = rolled_out[0]["agent"].limits
    assert (limits.max_response_tokens, limits.max_turns, limits.max_tool_tokens) == (77, 5, 1)


async def test_a_task_comes_once_in_a_batch(rolled_out: list[dict[str, Any]]) -> None:
    """Two attempts of a task under one key would be the same attempt."""
    batch = await open_live(8).take(1)
    assert sorted(asked["task"] for asked in rolled_out) == [task.id for task in TASKS]
    assert len(batch.groups) == 5 and batch.staleness == 0


class Known:
    """A journal that has the groups of some tasks."""

    def __init__(self, *names: str) -> None:
        self.names, self.written, self.version = set(names), list[str](), 3

    async def found(self, step: int, task: Task, *, size: int) -> Group | None:
        await asyncio.sleep(0)
        return group(task, self.version) if task.id in self.names else None

    async def ended(self, step: int, group: Group) -> None:
        self.written.append(group.task.id)


@pytest.mark.parametrize(
    ("wave", "known", "again"),
    [
        (None, {0, 2, 4}, {1, 3}),
        (1, {0, 2, 4}, {1, 3}),
        (2, {0, 1, 2}, {2, 3, 4}),
        (5, {0, 1, 2, 3}, {0, 1, 2, 3, 4}),
        (5, {0, 1, 2, 3, 4}, set()),
    ],
)
async def test_what_shares_a_forward_is_taken_from_a_journal_together_or_not_at_all(
    rolled_out: list[dict[str, Any]], wave: int | None, known: set[int], again: set[int]
) -> None:
    order = [group.task.id for group in (await open_live(5).take(1)).groups]
    rolled_out.clear()
    journal = Known(*(order[k] for k in known))
    live = dataclasses.replace(open_live(5), wave=wave, journal=cast(Any, journal))
    batch = await live.take(1)
    assert [group.task.id for group in batch.groups] == order
    assert [asked["task"] for asked in rolled_out] == journal.written == [order[k] for k in sorted(again)]


async def test_a_group_of_weights_to_come_is_rolled_out_again(rolled_out: list[dict[str, Any]]) -> None:
    """A resumed run may have made an update less, where it is not computed to the last bit."""
    journal = Known(*(task.id for task in TASKS))
    journal.version = ENGINE.version + 1
    live = dataclasses.replace(open_live(5), journal=cast(Any, journal))
    assert (await live.take(1)).staleness == 0
    assert sorted(asked["task"] for asked in rolled_out) == [task.id for task in TASKS]


def test_a_wave_is_what_has_a_slot() -> None:
    def wave(**engine: Any) -> int | None:
        rl = RlConfig(max_staleness=0, rollouts_per_task=8, group_size=8)
        return wave_of(Recipe(rl=rl, engine=EngineConfig(**engine)), None)

    assert wave(max_running=32) is None
    assert (wave(max_running=32, deterministic=True), wave(max_running=7, deterministic=True)) == (4, 1)


async def test_who_watches_sees_the_groups_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    board, seen = ProgressBoard(), []
    turns = asyncio.Semaphore(1)

    async def run_group(agent: Any, task: Task, **_: Any) -> Group:
        async with turns:  # one after the other
            await asyncio.sleep(0)  # the end of the one before is counted in the next round of the loop
            with attempting(f"s7/{task.id}/0"):
                (work,) = board.works
                assert work.attempts is not None
                seen.append((work.what, work.done, work.total, work.attempts.ended, work.attempts.total))
                assert list(work.attempts.running) == [f"s7/{task.id}/0"]
                await asyncio.sleep(0)
        return group(task, 3)

    monkeypatch.setattr(source, "run_group", run_group)
    with board.installed():
        await open_live(3).take(7)
    size = RlConfig().rollouts_per_task
    assert seen == [("step 7", done, 3, done, 3 * size) for done in range(3)] and not board.works


async def test_time_without_decoding_is_tool_wait(rolled_out: list[dict[str, Any]]) -> None:
    """Each of three tasks decodes for a second of the two that pass."""
    made = LiveGroups(
        agent=AGENT,
        engine=ENGINE,
        cursor=TaskCursor(TASKS, seed=0),
        rl=RlConfig(tasks_per_step=3),
        seed=0,
        budget=TimeBudget(clock=lambda: ENGINE.now),
        clock=lambda: ENGINE.now,
    )
    await made.take(1)
    times = made.budget.finish()
    assert (times["time/generate"], times["time/tool_wait"], times["time/reward"]) == (3.0, 3.0, 0.0)


def test_staleness_is_that_of_the_oldest_token() -> None:
    assert staleness([group(TASKS[0], 4, 5), group(TASKS[1], 5)], 5) == 1
    assert staleness([group(TASKS[0])], 5) == 0, "a trajectory that wrote nothing is not stale"
    with pytest.raises(AssertionError, match="newer than the learner's 4"):
        staleness([group(TASKS[0], 5)], 4)


async def test_a_ticket_is_ordered_as_the_agent_would_roll_it_out(rolled_out: list[dict[str, Any]]) -> None:
    ordered: list[GroupOrder] = []

    class Nodes:
        async def roll_out(self, order: GroupOrder, home: Any) -> Group:
            ordered.append(order)
            made: Group = await home(order)
            return made

        def counts(self) -> dict[str, float]:
            return {"nodes/up": 2.0}

    agent = dataclasses.replace(AGENT, sampling=Sampling(temperature=0.7))
    made = LiveGroups(
        agent=agent,
        engine=ENGINE,
        cursor=TaskCursor(TASKS, seed=0),
        rl=RlConfig(tasks_per_step=2, rollouts_per_task=6, group_size=4),
        seed=9,
        budget=TimeBudget(),
        nodes=cast(Any, Nodes()),
    )
    batch = await made.take(4)
    assert batch.metrics == {"nodes/up": 2.0}
    for order, asked in zip(ordered, rolled_out, strict=True):
        assert (order.task.id, order.step, order.seed, order.size) == (asked["task"], 4, 9, 6)
        assert (asked["step"], asked["seed"], asked["size"]) == (4, 9, 6)
        assert (order.limits, order.temperature) == (LIMITS, 0.7)


async def test_a_later_stage_on_the_same_tasks_takes_them_in_its_own_order() -> None:
    """And each goes on where it stood."""
    stages = [StageConfig(name=name, steps=1, max_response_tokens=1, max_turns=1) for name in ("one", "two")]
    recipe, many = (
        Recipe(rl=RlConfig(max_staleness=0)).model_copy(update={"stages": stages}),
        [dataclasses.replace(TASKS[0], id=f"task{k}") for k in range(40)],
    )

    def opened(number: int, state: dict[str, Any] | None = None) -> Any:
        stage, budget = recipe.stages[number], TimeBudget()
        return live_source(recipe, AGENT, ENGINE, stage, many, state, next_step=1, budget=budget)

    orders = []
    for number in range(2):
        async with opened(number) as live:
            first = [task.id for task in live.cursor.take(30)]
            state = live.state()
            rest = [task.id for task in live.cursor.take(10)]
        async with opened(number, state) as live:
            assert [task.id for task in live.cursor.take(10)] == rest
        assert sorted(first + rest) == sorted(task.id for task in many)
        orders.append(first + rest)
    assert orders[0] != orders[1]
