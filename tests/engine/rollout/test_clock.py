"""A trajectory's clock: from its first grant on, and only while our own loop runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.rollout.clock import TrajectoryClock
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.rollout.watchdog import watch
from rocstar.engine.running_time import BEATS, LATE_S, MAX_BEAT_S, RunningTime
from rocstar.engine.types import Failed, Group
from rocstar.engine.waits import WaitBoard
from tests.fakes.agents import TASK, TOKENIZER, make_agent
from tests.fakes.scripted_policy import Reply, ScriptedPolicy, VirtualClockLoop, on_virtual_time, run_virtual


def agent(delay_s: float, *, max_running: int = 1 << 30, timeout_s: float = 100.0) -> Agent:
    policy = ScriptedPolicy(lambda _: Reply(text="4", delay_s=delay_s), TOKENIZER, max_running=max_running)
    return make_agent(policy, max_response_tokens=50, max_turns=1, timeout_s=timeout_s)


def kinds(group: Group) -> list[str]:
    return [t.outcome.kind if isinstance(t.outcome, Failed) else "scored" for t in group.trajectories]


def test_waiting_for_a_first_slot_takes_nothing_from_the_limit() -> None:
    """Forty behind two slots: the last begins 19 limits late, and each has its own."""
    group = run_virtual(run_group(agent(90.0, max_running=2), TASK, size=40, seed=0, step=0))
    assert kinds(group) == ["scored"] * 40
    group = run_virtual(run_group(agent(110.0, max_running=2), TASK, size=4, seed=0, step=0))
    assert kinds(group) == ["trajectory_timeout"] * 4


@on_virtual_time
async def test_who_waits_for_a_first_slot_can_be_cancelled_and_is_seen_and_ended_by_the_watchdog() -> None:
    made = agent(1e9, max_running=1, timeout_s=1e8)
    board = WaitBoard(asyncio.get_running_loop().time)
    reports: list[str] = []

    async def end_last(stall: Any) -> str:
        assert [wait.whom for wait in stall.waits] == ["the policy"] * 2
        assert stall.waits[-1].expire()
        return "ended the one in the queue"

    with board.installed():
        running = asyncio.create_task(run_group(made, TASK, size=2, seed=0, step=0))
        dog = asyncio.create_task(watch(board, stall_s=10.0, remedies=[end_last], tell=reports.append))
        await asyncio.sleep(13.0)
        dog.cancel()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() and made.inference.load().waiting == 0
    assert reports


def blocked(made: Agent, *, at_s: float, for_s: float) -> tuple[list[str], float]:
    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        loop.call_later(at_s, loop.stand_still, for_s)
        return kinds(await run_group(made, TASK, size=2, seed=0, step=0)), loop.time()

    return run_virtual(main())


@pytest.mark.parametrize("at_s", [5.05, 50.0, 99.5])
def test_a_limit_that_passes_while_our_loop_stands_still_is_no_verdict(at_s: float) -> None:
    """The policy needs another two limits, but most of that time nobody could hear its answer."""
    assert blocked(agent(99.0 + at_s), at_s=at_s, for_s=150.0)[0] == ["scored"] * 2
    outcomes, ended = blocked(agent(1e6), at_s=at_s, for_s=150.0)
    assert outcomes == ["trajectory_timeout"] * 2
    assert 250.0 - MAX_BEAT_S <= ended <= 250.0 + 2 * MAX_BEAT_S, "moved by what the loop stood still"


@on_virtual_time
async def test_it_starts_once_and_tells_once_even_if_it_never_starts() -> None:
    grants: list[str] = []
    with TrajectoryClock(10.0, lambda: grants.append("never started")) as clock:
        assert clock.latest is None and not clock.is_over
    with TrajectoryClock(10.0, lambda: grants.append("started")) as clock:
        for _ in range(3):
            await asyncio.sleep(3.0)
            clock.start()
        assert clock.latest == pytest.approx(3.0 + 2 * 10.0, abs=10.0 / BEATS)
    assert grants == ["never started", "started"]


@on_virtual_time
async def test_a_wait_that_begins_when_it_is_over_ends_at_once() -> None:
    with TrajectoryClock(10.0) as clock:
        clock.start()
        await asyncio.sleep(50.0)
        with pytest.raises(TimeoutError):
            async with clock.waiting("a", "b", kind="tool"):
                await asyncio.sleep(1e9)
    assert asyncio.get_running_loop().time() == 50.0


beats = st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 50.0)), max_size=30)


@given(start=st.floats(0.0, 1e6), beats=beats)
def test_it_counts_what_passed_but_no_standstill(start: float, beats: list[tuple[float, float]]) -> None:
    time, now, expected = RunningTime(start), start, 0.0
    for due_s, late_s in beats:
        now += due_s + late_s
        time.beat(now, due_s)
        if late_s < LATE_S - 1e-6:
            expected += due_s + late_s
        elif late_s > LATE_S + 1e-6:
            expected += due_s
        else:
            return  # at the very edge the rounding of floats decides
    assert time.seconds == pytest.approx(expected, abs=1e-6)
