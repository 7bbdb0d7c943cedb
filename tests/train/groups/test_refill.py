"""`rl.refill`: which groups a step takes in the place of those without signal, also after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocstar.engine.types import Group, Task
from rocstar.train.groups import source
from rocstar.train.groups.live_source import live_source
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import select
from rocstar.train.groups.source import Batch, LiveGroups
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig, StageConfig
from rocstar.train.record.time_budget import TimeBudget

from .batches import AGENT, ENGINE, FakeJournal, group

NAMES = [f"task{k:02}" for k in range(40)]
STAGE = StageConfig(steps=4, max_response_tokens=77, max_turns=5)
SIZE = 2


def open_live(rl: RlConfig, *, num_tasks: int = len(NAMES), state: Any = None, journal: Any = None) -> LiveGroups:
    tasks = [group(name, []).task for name in NAMES[:num_tasks]]
    recipe = Recipe(rl=rl)
    opened: Any = live_source(
        recipe, AGENT, ENGINE, STAGE, tasks, state, next_step=1, budget=TimeBudget(), journal=journal
    )
    made: LiveGroups = opened.enter_result
    return made


def refilled(rounds: int, tasks: int = 4) -> RlConfig:
    return RlConfig(tasks_per_step=tasks, rollouts_per_task=SIZE, group_size=SIZE, max_staleness=0, refill=rounds)


class Rollouts:
    """Groups by what each place in the order of the tasks gives; a task may be held back."""

    def __init__(self, dead: Callable[[int], bool]) -> None:
        drawn = open_live(refilled(0)).cursor.take(len(NAMES))
        self.place = {task.id: k for k, task in enumerate(drawn)}
        self.dead = dead
        self.asked: list[int] = []
        self.keys: list[tuple[int, int, int]] = []
        self.held: dict[int, asyncio.Event] = {}

    async def __call__(
        self, agent: Any, task: Task, *, size: int, seed: int, step: int, first: int, **_: Any
    ) -> Group:
        place = self.place[task.id]
        self.asked.append(place)
        self.keys.append((seed, step, place))
        if place in self.held:
            await self.held[place].wait()
        return self.group(place)

    def group(self, place: int) -> Group:
        name = next(name for name, k in self.place.items() if k == place)
        return group(name, [(1.0, 0, 0), (1.0 if self.dead(place) else 0.0, 0, 0)])

    def places(self, batch: Batch) -> list[int]:
        return [self.place[group.task.id] for group in batch.groups]


@pytest.fixture
def rollouts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rollouts]:
    def installed(dead: Callable[[int], bool]) -> Rollouts:
        made = Rollouts(dead)
        monkeypatch.setattr(source, "run_group", made)
        return made

    return installed


async def test_each_round_asks_for_what_is_missing(rollouts: Callable[..., Rollouts]) -> None:
    """Of the first four, two have no signal, and one of the two that replace them."""
    made, live = rollouts({0, 1, 5}.__contains__), open_live(refilled(2))
    batch = await live.take(1)
    assert made.places(batch) == made.asked == list(range(7))
    assert batch.metrics == {"groups/refilled": 3.0}
    selection = select(batch.groups, live.rl, seed=0)
    assert (selection.groups_used, selection.groups_no_signal) == (4, 3)
    assert (await live.take(2)).metrics == {"groups/refilled": 0.0}
    assert made.asked[7:] == [7, 8, 9, 10], "the next step goes on where the refill ended"
    assert len(set(made.keys)) == 11 and [step for _, step, _ in made.keys] == [1] * 7 + [2] * 4


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_rounds_are_bounded_and_all_that_was_generated_is_accounted_for(
    rollouts: Callable[..., Rollouts], rounds: int
) -> None:
    made, live = rollouts(lambda place: True), open_live(refilled(rounds))
    batch = await live.take(1)
    assert len(made.asked) == 4 * (1 + rounds)
    assert batch.metrics == ({"groups/refilled": 4.0 * rounds} if rounds else {})
    metrics = rollout_metrics(select(batch.groups, live.rl, seed=0))
    generated = SIZE * 4 * (1 + rounds)
    assert metrics["ledger/generated"] == metrics["ledger/no_signal"] == generated
    assert metrics["tokens/generated"] == 2 * generated


async def test_a_round_waits_for_its_last_group(rollouts: Callable[..., Rollouts]) -> None:
    """Whichever ends first: the batch, its order and what is asked next are the same."""
    made, live = rollouts({0, 1, 5}.__contains__), open_live(refilled(2))
    made.held = {place: asyncio.Event() for place in (0, 4)}
    taking = asyncio.ensure_future(live.take(1))

    async def settled() -> list[int]:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not taking.done()
        return made.asked

    assert await settled() == [0, 1, 2, 3]
    made.held[0].set()
    assert await settled() == [0, 1, 2, 3, 4, 5], "5 has ended without signal, and 4 is waited for"
    made.held[4].set()
    assert made.places(await taking) == list(range(7))


async def test_a_task_comes_once_in_a_step(rollouts: Callable[..., Rollouts]) -> None:
    """Of five tasks, three in the first round: the rounds have the other two and no third attempt."""
    made = rollouts(lambda place: True)
    batch = await open_live(refilled(3, tasks=3), num_tasks=5).take(1)
    assert len(batch.groups) == len(made.asked) == len(set(made.asked)) == 5


@pytest.mark.parametrize("hang", [2, 4, 5, 7])
async def test_a_step_killed_in_any_round_comes_as_if_it_was_not(rollouts: Callable[..., Rollouts], hang: int) -> None:
    """Rounds of the places 0 to 3, 4 to 6 and 7; nothing that had ended is rolled out again."""
    made = rollouts({0, 1, 3, 5, 9}.__contains__)
    whole = open_live(refilled(2))
    expected = [made.places(await whole.take(step)) for step in (1, 2)]
    journal = FakeJournal()
    killed = open_live(refilled(2), journal=journal)
    state, made.asked, made.held = killed.state(), [], {hang: asyncio.Event()}
    taking = asyncio.ensure_future(killed.take(1))
    for _ in range(50):
        await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    had_ended, made.held, made.keys = {place for place in made.asked if place != hang}, {}, []
    assert len(journal.groups) == len(had_ended)
    resumed = open_live(refilled(2), state=state, journal=journal)
    assert [made.places(await resumed.take(step)) for step in (1, 2)] == expected
    assert resumed.state() == whole.state()
    again = [place for _, step, place in made.keys if step == 1]
    assert hang in again and not had_ended & set(again)
