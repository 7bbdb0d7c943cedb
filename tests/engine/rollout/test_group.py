"""Siblings and groups: concurrent, bounded, cancelled together; a failure is data, a bug is raised."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.rollout.group import all_groups, run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Failed, Group, Task, Trajectory, TrajectoryKey
from rocstar.sandbox.types import ExecRequest, ExecResult
from tests.fakes.agents import TASK, TOKENIZER, make_agent, python_tools, tool_call
from tests.fakes.sandbox import ok
from tests.fakes.scripted_policy import Reply, Request, ScriptedPolicy, check_trajectory, on_virtual_time


class Sandbox:
    """Takes `delay_s` for every program."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s, self.running, self.most, self.runs = delay_s, 0, 0, 0

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.running -= 1
        return ok(request.code)


def agent(
    script: Callable[[Request], str | Reply], *, sandbox: Any = None, max_running: int = 1 << 30
) -> tuple[Agent, ScriptedPolicy]:
    policy = ScriptedPolicy(script, TOKENIZER, max_running=max_running)
    return make_agent(policy, tools=python_tools(sandbox)), policy


def tasks(n: int) -> list[Task]:
    return [dataclasses.replace(TASK, id=f"t{k}") for k in range(n)]


def all_released(policy: ScriptedPolicy) -> bool:
    load = policy.load()
    started = {request.request_id for request in policy.requests}
    return started <= set(policy.released) and (load.used, load.running, load.waiting) == (0, 0, 0)


@on_virtual_time
async def test_siblings_run_together_in_order() -> None:
    made, policy = agent(lambda r: Reply(text=str(r.sibling), delay_s=100.0 - r.sibling))
    group = await run_group(made, TASK, size=8, seed=1, step=2)
    assert asyncio.get_running_loop().time() == 100.0
    assert [t.key.sibling for t in group.trajectories] == list(range(8))
    assert [t.turns[0].text for t in group.trajectories] == [str(k) for k in range(8)]
    assert {(t.key.seed, t.key.step, t.key.task_id) for t in group.trajectories} == {(1, 2, "t")}
    assert len({request.seed for request in policy.requests}) == 8


@on_virtual_time
async def test_failed_sibling_is_data() -> None:
    lost = InferenceError("engine_stopped", "x", retryable=True)
    made, policy = agent(lambda r: Reply(text="4", error=lost if r.sibling == 1 else None))
    group = await run_group(made, TASK, size=3, seed=0, step=0)
    assert [isinstance(t.outcome, Failed) for t in group.trajectories] == [False, True, False]
    assert group.scored == (group.trajectories[0], group.trajectories[2])
    assert all_released(policy)


@on_virtual_time
async def test_bug_of_one_sibling_cancels_the_others() -> None:
    made, policy = agent(lambda r: "bug" if r.sibling == 2 else Reply(text="4", delay_s=1e5))
    with pytest.raises(ExceptionGroup) as caught:
        await run_group(made, TASK, size=4, seed=0, step=0)
    assert caught.group_contains(KeyError, match="a bug")
    assert all_released(policy) and len(policy.released) == 4


@on_virtual_time
async def test_cancelled_group_cancels_its_siblings() -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=1e5))
    running = asyncio.create_task(run_group(made, TASK, size=4, seed=0, step=0))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all_released(policy) and len(policy.released) == 4


@on_virtual_time
async def test_siblings_that_are_unneeded_end_with_what_they_wrote() -> None:
    """The first answer makes those unneeded that write, whose tool works, and that wait for a slot."""

    def script(request: Request) -> Reply:
        call = request.sibling == 2 and request.turn == 1
        return Reply(text=tool_call("1") if call else "4" * (200 if request.sibling == 1 else 150))

    asked: list[tuple[list[int], list[int]]] = []

    def unneeded(ended: Sequence[Trajectory], running: Sequence[TrajectoryKey]) -> list[TrajectoryKey]:
        asked.append(([t.key.sibling for t in ended], [key.sibling for key in running]))
        return [key for key in running if key.sibling in (1, 2, 3)]

    policy = ScriptedPolicy(script, TOKENIZER, token_s=1.0, max_running=3)
    made = make_agent(policy, tools=python_tools(Sandbox(100.0)))
    group = await run_group(made, TASK, size=5, seed=1, step=2, unneeded=unneeded)
    assert asked[0] == ([0], [1, 2, 3, 4]) and asked[-1][1] == []
    kinds = [t.outcome.kind if isinstance(t.outcome, Failed) else "scored" for t in group.trajectories]
    assert kinds == ["scored", "ended_early", "ended_early", "ended_early", "scored"]
    assert [t.finish_reason.value for t in group.trajectories[1:4]] == ["ended_early"] * 3
    assert 0 < group.trajectories[1].num_policy_tokens < 200, "its tokens of the turn so far"
    (turn,) = group.trajectories[2].turns
    assert turn.results, "its tool ended first"
    assert not group.trajectories[3].turns, "it waited for a slot"
    assert asyncio.get_running_loop().time() == 302.0 and all_released(policy)


async def collect(made: Agent, todo: list[Task], *, size: int) -> list[Group]:
    return await all_groups(lambda task: run_group(made, task, size=size, seed=0, step=0), todo)


@on_virtual_time
async def test_groups_run_together_and_come_in_the_order_of_their_tasks() -> None:
    made, _ = agent(lambda r: Reply(text="4", delay_s=10.0 - int(r.task_id[1:])))
    groups = await collect(made, tasks(5), size=2)
    assert [group.task.id for group in groups] == ["t0", "t1", "t2", "t3", "t4"]
    assert asyncio.get_running_loop().time() == 10.0
    assert await collect(made, [], size=2) == []


@on_virtual_time
async def test_bug_in_one_group_is_raised_as_itself_and_cancels_the_others() -> None:
    made, policy = agent(lambda r: Reply(text="bug", delay_s=5.0) if r.task_id == "t1" else Reply(delay_s=1e5))

    with pytest.raises(ExceptionGroup) as caught:
        await collect(made, tasks(3), size=2)
    assert caught.group_contains(KeyError, depth=1)
    assert asyncio.get_running_loop().time() == 5.0 and len(asyncio.all_tasks()) == 1
    assert all_released(policy)


@on_virtual_time
async def test_who_leaves_cancels_all_groups() -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=float(r.task_id[1:]) * 1e4))

    waiting = asyncio.create_task(collect(made, tasks(4), size=2))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() and len(asyncio.all_tasks()) == 1
    assert asyncio.get_running_loop().time() == 1.0
    assert all_released(policy)


@on_virtual_time
async def test_two_thousand_trajectories_in_one_loop() -> None:
    """More than slots, thoughts of many lengths, tools that take their time, some failures: all end."""
    lost = InferenceError("engine_stopped", "x", retryable=True)

    def script(request: Request) -> Reply:
        k = request.sibling + 7 * request.turn
        if request.turn <= request.sibling % 4:
            return Reply(text=tool_call(str(k)) * (1 + k % 2), delay_s=k % 11)
        error = lost if (request.sibling, request.turn) == (9, 2) else None
        return Reply(text="4" if k % 3 else "5", delay_s=k % 5, error=error)

    sandbox = Sandbox(delay_s=3.0)
    made, policy = agent(script, sandbox=sandbox, max_running=2000)
    groups = await collect(made, tasks(125), size=16)
    trajectories = [t for group in groups for t in group.trajectories]
    assert len(trajectories) == 2000 and len({str(t.key) for t in trajectories}) == 2000
    assert all_released(policy) and len(policy.released) == 2000
    assert sum(isinstance(t.outcome, Failed) for t in trajectories) == 125
    assert sandbox.most > 500 and sandbox.runs == sum(len(t.results) for t in trajectories)
    for t in trajectories[::50]:
        check_trajectory(t)


@on_virtual_time
async def test_few_slots_serve_many_trajectories() -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=1.0), max_running=7)
    await collect(made, tasks(20), size=8)
    assert asyncio.get_running_loop().time() == 23.0, "160 trajectories, 7 at a time, one second each"
    assert all_released(policy)
