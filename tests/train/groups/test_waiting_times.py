"""Time in which nothing was decoding belongs to the tools, or to the judge where it was alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.types import Attempt, Outcome, Scored, Task, ToolCall, ToolResult
from rocstar.train.groups.waiting_times import WaitingTimes
from rocstar.train.record.time_budget import TimeBudget

from .batches import AGENT


@dataclass
class World:
    """A clock and an engine in one; `pass_` lets time go by, with or without decoding."""

    now: float = 0.0
    busy_s: float = 0.0
    starved_s: float = 0.0

    def pass_(self, seconds: float, *, decoding: bool = False) -> None:
        self.now += seconds
        self.busy_s += seconds if decoding else 0.0


@pytest.fixture
def world() -> World:
    return World()


def times(world: World, budget: TimeBudget) -> dict[str, float]:
    found = budget.finish()
    return {name: found[f"time/{name}"] for name in ("generate", "tool_wait", "reward")}


def test_the_judge_alone_is_reward_and_everything_else_is_tool_wait(world: World) -> None:
    budget = TimeBudget(clock=lambda: world.now)
    idle = WaitingTimes(world, clock=lambda: world.now)
    with idle.divided(budget):
        world.pass_(1.0, decoding=True)
        with idle.working("tools"):
            world.pass_(2.0)
            with idle.working("judge"):
                world.pass_(4.0)  # a tool runs too
        with idle.working("judge"):
            world.pass_(8.0)
            world.pass_(16.0, decoding=True)  # others decode meanwhile
        world.pass_(32.0)  # nothing known to be in flight
    assert times(world, budget) == {"generate": 17.0, "tool_wait": 38.0, "reward": 8.0}


def test_decoding_while_others_find_no_room_is_kv_wait(world: World) -> None:
    budget = TimeBudget(clock=lambda: world.now)
    idle = WaitingTimes(world, clock=lambda: world.now)
    world.starved_s = 100.0  # before
    with idle.divided(budget):
        world.pass_(3.0, decoding=True)
        world.starved_s += 2.0
        world.pass_(4.0)
    found = budget.finish()
    assert (found["time/generate"], found["time/kv_wait"], found["time/tool_wait"]) == (1.0, 2.0, 4.0)


def test_what_was_judged_between_two_waits_is_in_neither(world: World) -> None:
    """Rollouts that go on while the learner works: their judge costs no step any time."""
    budget = TimeBudget(clock=lambda: world.now)
    idle = WaitingTimes(world, clock=lambda: world.now)
    with idle.working("judge"):
        world.pass_(5.0)
        with idle.divided(budget):
            world.pass_(1.0)
            with idle.working("tools"):
                world.pass_(3.0)
        world.pass_(7.0)
    assert times(world, budget) == {"generate": 0.0, "tool_wait": 3.0, "reward": 1.0}


events = st.tuples(st.sampled_from(["tools", "judge", "decode", "pass"]), st.integers(1, 9), st.booleans())


@given(script=st.lists(events, max_size=12), late_s=st.sampled_from([0.0, 3.0]))
def test_the_parts_sum_to_the_wait(script: Sequence[tuple[str, int, bool]], late_s: float) -> None:
    """However things overlap, and also where a burst of decoding is counted late."""
    world = World()
    budget = TimeBudget(clock=lambda: world.now)
    idle = WaitingTimes(world, clock=lambda: world.now)
    with contextlib.ExitStack() as stack, idle.divided(budget):
        for what, seconds, stays in script:
            if what in ("tools", "judge"):
                with contextlib.ExitStack() as own:
                    (stack if stays else own).enter_context(idle.working(what))
                    world.pass_(seconds)
            else:
                world.pass_(seconds, decoding=what == "decode")
                world.busy_s -= late_s if what == "decode" and seconds > late_s else 0.0
    found = times(world, budget)
    assert sum(found.values()) == pytest.approx(world.now) and min(found.values()) >= 0
    if not any(what == "judge" for what, _, _ in script):
        assert found["reward"] == 0


async def test_the_agent_is_the_same_but_watched(world: World) -> None:
    class Box:
        @contextlib.asynccontextmanager
        async def open(self, *, seed: int) -> AsyncIterator[Any]:
            yield self
            closed.append(seed)

        async def execute(
            self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
        ) -> tuple[ToolResult, ...]:
            world.pass_(2.0)
            return (ToolResult(status="ok", is_error=False, text=f"{turn} {deadline} {len(calls)}"),)

    class Judge:
        async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
            world.pass_(3.0)
            return Scored(reward=1.0, method=f"{attempt.task.id} {attempt.is_truncated} {deadline}")

    closed: list[int] = []
    budget = TimeBudget(clock=lambda: world.now)
    idle = WaitingTimes(world, clock=lambda: world.now)
    watched = idle.watching(replace(AGENT, tools=Box(), judge=Judge()))
    assert watched.limits is AGENT.limits
    with idle.divided(budget):
        async with watched.tools.open(seed=7) as tools:
            (result,) = await tools.execute([], turn=2, deadline=4.0)
        task = Task(id="t", source="s", question="q", answer="a")
        outcome = await watched.judge.score(Attempt(task=task, turns=(), is_truncated=False), deadline=5.0)
    assert result.text == "2 4.0 0" and closed == [7]
    assert outcome == Scored(reward=1.0, method="t False 5.0")
    assert times(world, budget) == {"generate": 0.0, "tool_wait": 2.0, "reward": 3.0}
