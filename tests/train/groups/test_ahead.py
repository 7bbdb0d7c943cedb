"""The asynchronous source: bounded staleness in versions, every task of the supply, a state to go on from."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.engine.progress.progress import ProgressBoard, attempting
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task, TrajectoryKey, VersionSpan
from rocstar.train.groups import source
from rocstar.train.groups.ahead import AheadGroups, Tickets, tickets_from
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.time_budget import TimeBudget
from tests.fakes.scripted_policy import run_virtual
from tests.fakes.trajectories import make_group

from .batches import AGENT, FakeJournal

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(7)]


class World:
    """An engine with versions, and groups of two trajectories that remember the versions they saw. A group
    of a key in `dead` has no signal."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.dead: Callable[[str], bool] = lambda key: False
        self.engine = SimpleNamespace(version=0, busy_s=0.0, starved_s=0.0)
        self.keys: list[str] = []

    async def run_group(
        self, agent: Agent, task: Task, *, size: int, seed: int, step: int, first: int, **_: Any
    ) -> Group:
        key = TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=0)
        self.keys.append(str(key))
        first = self.engine.version
        await asyncio.sleep(self.rng.expovariate(0.3))
        spans = [VersionSpan(start=0, end=1, version=first)]
        if self.engine.version > first:
            spans.append(VersionSpan(start=1, end=2, version=self.engine.version))
        rewards = (1.0, 1.0) if self.dead(str(key)) else (1.0, 0.0)
        return make_group(task, *rewards, seed=seed, step=step, version_spans=tuple(spans))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(seed=0)
    monkeypatch.setattr(source, "run_group", made.run_group)
    return made


@contextlib.asynccontextmanager
async def opened(
    world: World, tickets: Tickets, bound: int, journal: Any = None, refill: int = 0, rl: RlConfig | None = None
) -> AsyncIterator[AheadGroups]:
    rl = (rl or RlConfig(tasks_per_step=tickets.batch)).model_copy(update={"max_staleness": bound, "refill": refill})
    budget = TimeBudget(asyncio.get_running_loop().time)
    async with AheadGroups(
        AGENT, world.engine, tickets, rl, seed=0, budget=budget, tasks=TASKS, journal=journal
    ) as source:
        yield source


def supply(steps: int, batch: int = 3, rl: RlConfig | None = None) -> Tickets:
    return Tickets(TaskCursor(TASKS, seed=0, rl=rl), batch=batch, planned=steps * batch, next_step=1)


ADAPTIVE = RlConfig(tasks_per_step=3, retire_above=0.8, difficulty_floor=0.3)
"""Which tasks come depends on the outcomes."""


def half(key: str) -> bool:
    """Half of all keys."""
    return random.Random(key).random() < 0.5


def keys_of(batches: Iterable[list[Group]]) -> list[str]:
    return [str(group.trajectories[0].key) for groups in batches for group in groups]


def first_keys(count: int) -> list[str]:
    """The keys of the first groups that a stage of any length begins."""
    return [f"{ticket.key}/0" for ticket in islice(supply(count), count)]


@pytest.mark.parametrize("bound", [0, 1, 2])
@pytest.mark.parametrize("refill", [0, 1, 3])
def test_a_step_without_signal_takes_further_groups_within_the_bound(world: World, bound: int, refill: int) -> None:
    """All that was rolled out is in some batch, and the supply ends with the stage."""

    async def main() -> None:
        batches, worst, world.dead = list[list[Group]](), 0, half
        async with opened(world, supply(30), bound, refill=refill) as source:
            for step in range(1, 31):
                batch = await source.take(step)
                batches.append(batch.groups)
                used = sum(not half(key) for key in keys_of([batch.groups]))
                assert used <= 3 <= len(batch.groups) <= 3 * (1 + refill)
                assert batch.metrics == ({"groups/refilled": len(batch.groups) - 3.0} if refill else {})
                assert used == 3 or len(batch.groups) >= 3 + refill, "a round was left out"
                assert batch.staleness is not None
                worst = max(worst, batch.staleness)
                await asyncio.sleep(2.0)
                world.engine.version += step % 5 != 0  # some steps have no update
        seen = keys_of(batches)
        assert worst == bound and (len(seen) > 90 if refill else len(seen) == 90)
        assert sorted(seen) == sorted(world.keys) == sorted(first_keys(len(seen)))

    run_virtual(main())


def test_after_a_resume_what_was_in_flight_comes_again_and_nothing_is_lost(world: World) -> None:
    async def main() -> None:
        seen: list[str] = []
        async with opened(world, supply(8), 1) as source:
            for step in (1, 2, 3):
                seen += keys_of([(await source.take(step)).groups])
            state = source.state()
        assert state["again"] and state["left"] == 15
        tickets = tickets_from(state, TaskCursor(TASKS, seed=0), TASKS, 3, planned=24)
        async with opened(world, tickets, 1) as source:
            for step in (4, 5, 6, 7, 8):
                seen += keys_of([(await source.take(step)).groups])
        assert sorted(seen) == sorted(first_keys(24))

    run_virtual(main())


@pytest.mark.parametrize(("saved", "died"), [(0, 1), (0, 4), (2, 3), (2, 6), (3, 4)])
@pytest.mark.parametrize(("bound", "refill"), [(1, 0), (2, 0), (1, 2), (2, 2)])
@pytest.mark.parametrize("rl", [None, ADAPTIVE])
def test_a_killed_process_costs_no_group_that_had_ended(
    world: World, bound: int, refill: int, saved: int, died: int, rl: RlConfig | None
) -> None:
    """Killed in the wait for batch `died`: what was learned behind the checkpoint comes as it was."""

    async def main() -> None:
        journal, learned, world.dead = FakeJournal(), dict[int, list[Group]](), half
        tickets = supply(9, rl=rl)
        state, version = {}, 0
        async with opened(world, tickets, bound, journal, refill, rl) as source:
            for step in range(1, died):
                if step == saved + 1:
                    state, version = source.state(), world.engine.version
                learned[step] = journal.batches[step] = (await source.take(step)).groups
                await asyncio.sleep(2.0)
                world.engine.version += 1
            if died == saved + 1:
                state, version = source.state(), world.engine.version
            await asyncio.sleep(1.0)
            had_ended = set(keys_of([[*journal.groups.values()]]))
        begun, world.keys, world.engine.version = len(world.keys), [], version
        assert begun > len(had_ended) - 1
        again = tickets_from(state, TaskCursor(TASKS, seed=0, rl=rl), TASKS, 3, planned=27)
        async with opened(world, again, bound, journal, refill, rl) as source:
            for step in range(saved + 1, 10):
                batch = await source.take(step)
                assert step >= died or batch.groups == learned[step]
                assert batch.metrics.get("groups/refilled", 0.0) == len(batch.groups) - 3.0
                learned[step] = batch.groups
                assert batch.staleness is not None and 0 <= batch.staleness <= bound
                await asyncio.sleep(2.0)
                world.engine.version += 1
        twice = had_ended & set(world.keys)
        assert not twice, "rolled out again"
        seen = keys_of(learned.values())
        assert len(set(seen)) == len(seen) and (len(seen) == 27) == (not refill)
        assert rl is not None or sorted(seen) == sorted(first_keys(len(seen)))

    run_virtual(main())


@pytest.mark.parametrize("dies_at", range(2, 12))
def test_a_process_killed_while_it_refills_costs_no_group_that_had_ended(world: World, dies_at: int) -> None:
    async def main() -> None:
        journal, world.dead = FakeJournal(), lambda key: True
        async with opened(world, supply(2), 1, journal, 2) as source:
            state = source.state()
            taking = asyncio.ensure_future(source.take(1))
            await asyncio.sleep(dies_at)
            taking.cancel()
            had_ended = set(keys_of([[*journal.groups.values()]]))
        world.keys = []
        again = tickets_from(state, TaskCursor(TASKS, seed=0), TASKS, 3, planned=6)
        async with opened(world, again, 1, journal, 2) as source:
            batches = [(await source.take(1)).groups]
            assert len(batches[0]) == 9
            world.engine.version += 1
            batches.append((await source.take(2)).groups)
        assert not had_ended & set(world.keys), "rolled out again"
        assert sorted(keys_of(batches)) == sorted(first_keys(18))

    run_virtual(main())


def test_a_stage_that_had_ended_goes_on_when_it_is_made_longer(world: World) -> None:
    async def main() -> None:
        async with opened(world, supply(2), 1) as source:
            for step in (1, 2):
                await source.take(step)
            state = source.state()
        assert (state["left"], state["planned"]) == (0, 6)
        tickets = tickets_from(state, TaskCursor(TASKS, seed=0), TASKS, 3, planned=9)
        async with opened(world, tickets, 1) as source:
            groups = (await source.take(3)).groups
        assert sorted(keys_of([groups])) == sorted(first_keys(9)[6:])

    run_virtual(main())


def test_who_watches_sees_the_batch_and_what_is_in_flight_of_any_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that are started while a batch is waited for outlive that wait, and are counted still."""
    made = world.run_group

    async def run_group(agent: Agent, task: Task, *, step: int, **options: Any) -> Group:
        with attempting(f"s{step}/{task.id}/0"):
            return await made(agent, task, step=step, **options)

    monkeypatch.setattr(source, "run_group", run_group)

    async def main() -> None:
        board = ProgressBoard(asyncio.get_running_loop().time)
        seen: list[tuple[str, int, int, int]] = []
        with board.installed():
            async with opened(world, supply(4), 1) as ahead:
                for step in (1, 2, 3, 4):
                    taking = asyncio.ensure_future(ahead.take(step))
                    await asyncio.sleep(0)
                    if not taking.done():
                        (work,) = board.works
                        (done, total), attempts = work.counts(), work.attempts
                        assert attempts is not None and total == 3
                        seen.append((work.what, done, len(attempts.running), attempts.ended))
                    await taking
                    assert not board.works
        assert seen[0] == ("step 1", 0, 6, 0), "two batches are in flight"
        for what, done, running, ended in seen:
            taken = 3 * (int(what.removeprefix("step ")) - 1)
            assert done == min(3, ended - taken) and running <= 6 and running + ended <= 12
        assert len(seen) > 1 and seen[-1][3] > 3

    run_virtual(main())


def test_a_batch_that_never_comes_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Group:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(source, "run_group", never)

    async def main() -> None:
        async with opened(world, supply(2), 1) as source:
            with pytest.raises(TimeoutError):
                await source.take(1)
        assert asyncio.get_running_loop().time() == 4000.0

    run_virtual(main())
