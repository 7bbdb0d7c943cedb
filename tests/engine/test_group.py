"""Siblings and groups: concurrent, bounded, cancelled together; a failure is data, a bug is raised."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocstar.engine.chat import ChatFormat, load_template
from rocstar.engine.group import SURPLUS, EarlyFinish, run_group, run_groups
from rocstar.engine.inference.base import InferenceError, Sampling
from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.testing import (
    ByteTokenizer,
    Reply,
    Request,
    ScriptedPolicy,
    check_trajectory,
    run_virtual,
)
from rocstar.engine.tools import PYTHON_SCHEMA, PYTHON_TOOL, PythonToolBox
from rocstar.engine.types import Failed, Group, Outcome, Scored, Task
from rocstar.sandbox.testing import ok
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

TOKENIZER = ByteTokenizer()
CHAT = ChatFormat(TOKENIZER, load_template("compact", None), [PYTHON_SCHEMA])


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


class Judge:
    async def score(self, text: str, task: Task, *, truncated: bool, deadline: float | None) -> Outcome:
        if "bug" in text:
            raise KeyError("a bug")
        return Scored(reward=float(task.answer in text), method="fake")


def agent(
    script: Callable[[Request], str | Reply], *, sandbox: Any = None, max_running: int = 1 << 30
) -> tuple[Agent, ScriptedPolicy]:
    policy = ScriptedPolicy(script, TOKENIZER, max_running=max_running)
    tools = PythonToolBox(
        sandbox=sandbox or Sandbox(), limits=Limits(), flavour="stdlib", style="brief", max_parallel_calls=2
    )
    limits = RolloutLimits(max_response_tokens=4000, max_turns=8, max_tool_tokens=64, timeout_s=1e6)
    made = Agent(inference=policy, chat=CHAT, tools=tools, judge=Judge(), limits=limits, sampling=Sampling())
    return made, policy


def task(name: str) -> Task:
    return Task(id=name, source="s", question="q", answer="4")


def tasks(n: int) -> list[Task]:
    return [task(f"t{k}") for k in range(n)]


def all_released(policy: ScriptedPolicy) -> bool:
    load = policy.load()
    started = {request.request_id for request in policy.requests}
    return started <= set(policy.released) and (load.used, load.running, load.waiting) == (0, 0, 0)


def test_siblings_run_together_in_order() -> None:
    made, policy = agent(lambda r: Reply(text=str(r.sibling), delay_s=100.0 - r.sibling))

    async def main() -> tuple[Group, float]:
        group = await run_group(made, task("a"), size=8, seed=1, step=2)
        return group, asyncio.get_running_loop().time()

    group, took_s = run_virtual(main())
    assert [t.key.sibling for t in group.trajectories] == list(range(8)) and took_s == 100.0
    assert [t.turns[0].text for t in group.trajectories] == [str(k) for k in range(8)]
    assert {(t.key.seed, t.key.step, t.key.task_id) for t in group.trajectories} == {(1, 2, "a")}
    assert len({request.seed for request in policy.requests}) == 8


def test_failed_sibling_is_data() -> None:
    lost = InferenceError("engine_stopped", "x", retryable=True)
    made, policy = agent(lambda r: Reply(text="4", error=lost if r.sibling == 1 else None))
    group = run_virtual(run_group(made, task("a"), size=3, seed=0, step=0))
    assert [isinstance(t.outcome, Failed) for t in group.trajectories] == [False, True, False]
    assert group.scored == (group.trajectories[0], group.trajectories[2])
    assert all_released(policy)


def test_bug_of_one_sibling_cancels_the_others() -> None:
    made, policy = agent(lambda r: "bug" if r.sibling == 2 else Reply(text="4", delay_s=1e5))
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(run_group(made, task("a"), size=4, seed=0, step=0))
    assert caught.group_contains(KeyError, match="a bug")
    assert all_released(policy) and len(policy.released) == 4


def test_cancelled_group_cancels_its_siblings() -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=1e5))

    async def main() -> None:
        running = asyncio.create_task(run_group(made, task("a"), size=4, seed=0, step=0))
        await asyncio.sleep(1)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        run_virtual(main())
    assert all_released(policy) and len(policy.released) == 4


async def collect(made: Agent, todo: list[Task], **options: Any) -> list[Group]:
    return [group async for group in run_groups(made, todo, seed=0, step=0, **options)]


def test_groups_come_as_they_finish() -> None:
    made, _ = agent(lambda r: Reply(text="4", delay_s=10.0 - int(r.task_id[1:])))
    groups = run_virtual(collect(made, tasks(5), size=2, max_groups=5))
    assert [group.task.id for group in groups] == ["t4", "t3", "t2", "t1", "t0"]


@pytest.mark.parametrize("max_groups", [1, 3, 7, 99])
def test_groups_in_flight_are_bounded(max_groups: int) -> None:
    most = 0

    def script(request: Request) -> Reply:
        nonlocal most
        most = max(most, len({r.task_id for r in policy.requests if r.request_id not in policy.released}))
        return Reply(text="4", delay_s=float(request.sibling))

    made, policy = agent(script)
    groups = run_virtual(collect(made, tasks(7), size=3, max_groups=max_groups))
    assert len(groups) == 7 and most == min(max_groups, 7)


def test_no_tasks_no_groups() -> None:
    made, _ = agent(lambda r: "4")
    assert run_virtual(collect(made, [], size=2, max_groups=1)) == []


def test_no_room_is_a_mistake() -> None:
    made, _ = agent(lambda r: "4")
    with pytest.raises(ValueError, match="max_groups must be at least 1, got 0"):
        run_virtual(collect(made, tasks(1), size=2, max_groups=0))


def test_bug_reaches_the_consumer_as_itself_even_while_it_does_something_else() -> None:
    """A TaskGroup around the yield would cancel the consumer in its own sleep, and lose the bug."""
    made, policy = agent(lambda r: "4" if r.task_id == "t0" else Reply(text="bug", delay_s=5.0))
    slept = False

    async def main() -> None:
        nonlocal slept
        async for _ in run_groups(made, tasks(3), size=2, seed=0, step=0, max_groups=3):
            await asyncio.sleep(10.0)
            slept = True

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main())
    assert caught.group_contains(KeyError) and slept and all_released(policy)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_consumer_that_leaves_cancels_the_rest(how: str) -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=float(r.task_id[1:]) * 1e4))

    async def main() -> None:
        groups = run_groups(made, tasks(4), size=2, seed=0, step=0, max_groups=4)

        async def consume() -> None:
            async for _ in groups:
                if how == "close":
                    break

        consumer = asyncio.create_task(consume())
        await asyncio.sleep(1)
        consumer.cancel()
        await asyncio.wait([consumer])
        await groups.aclose()  # type: ignore[attr-defined]
        assert len(asyncio.all_tasks()) == 1
        assert asyncio.get_running_loop().time() == 1.0

    run_virtual(main())
    assert all_released(policy)


def test_two_thousand_trajectories_in_one_loop() -> None:
    """More than slots, thoughts of many lengths, tools that take their time, some failures: all end."""
    lost = InferenceError("engine_stopped", "x", retryable=True)

    def script(request: Request) -> Reply:
        k = request.sibling + 7 * request.turn
        if request.turn <= request.sibling % 4:
            body = f'{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "{k}"}}}}'
            return Reply(text=f"<tool_call>{body}</tool_call>" * (1 + k % 2), delay_s=k % 11)
        error = lost if (request.sibling, request.turn) == (9, 2) else None
        return Reply(text="4" if k % 3 else "5", delay_s=k % 5, error=error)

    sandbox = Sandbox(delay_s=3.0)
    made, policy = agent(script, sandbox=sandbox, max_running=2000)
    groups = run_virtual(collect(made, tasks(125), size=16, max_groups=125))
    trajectories = [t for group in groups for t in group.trajectories]
    assert len(trajectories) == 2000 and len({str(t.key) for t in trajectories}) == 2000
    assert all_released(policy) and len(policy.released) == 2000
    assert sum(isinstance(t.outcome, Failed) for t in trajectories) == 125
    assert sandbox.most > 500 and sandbox.runs == sum(len(t.results) for t in trajectories)
    for t in trajectories[::50]:
        check_trajectory(t)


def test_few_slots_serve_many_trajectories() -> None:
    made, policy = agent(lambda r: Reply(text="4", delay_s=1.0), max_running=7)

    async def main() -> float:
        await collect(made, tasks(20), size=8, max_groups=20)
        return asyncio.get_running_loop().time()

    took_s = run_virtual(main())
    assert took_s == 23.0, "160 trajectories, 7 at a time, one second each"
    assert all_released(policy)


def early(enough: int, *, size: int, script: Callable[[Request], str | Reply]) -> tuple[Group, Any, Any]:
    made, policy = agent(script)
    option = EarlyFinish(enough=enough)
    group = run_virtual(run_group(made, task("a"), size=size, seed=0, step=0, early=option))
    for trajectory in group.trajectories:
        check_trajectory(trajectory)
    return group, option.counts, policy


def test_a_cancelled_sibling_has_the_prompt_of_the_others() -> None:
    """With the messages before the question."""
    made, _ = agent(lambda r: Reply(text="4", delay_s=10.0 * (r.sibling + 1)))
    asked = Task(id="a", source="s", question="q", answer="4", context=({"role": "system", "content": "p"},))
    first, second = run_virtual(
        run_group(made, asked, size=2, seed=0, step=0, early=EarlyFinish(enough=1))
    ).trajectories
    assert first.ids[: first.prompt_length] == second.ids == tuple(CHAT.prompt_ids("q", asked.context))


def test_early_finish_keeps_the_first_scored_and_counts_the_rest() -> None:
    group, counts, policy = early(
        2, size=5, script=lambda r: Reply(text="4" * (r.sibling + 1), delay_s=10.0 * (r.sibling + 1))
    )
    kinds = [t.outcome.kind if isinstance(t.outcome, Failed) else "scored" for t in group.trajectories]
    assert kinds == ["scored", "scored", SURPLUS, SURPLUS, SURPLUS] and len(group.scored) == 2
    assert (counts.groups, counts.kept, counts.cancelled) == (1, 2, 3) and all_released(policy)
    kept = sum(t.response_length for t in group.scored)
    assert (counts.kept_tokens, counts.cancelled_tokens) == (kept, 0)


def test_early_finish_reports_the_length_bias_from_below() -> None:
    """Sibling 2 has written a long turn and is thinking about its next one when the others are done."""
    call = f'<tool_call>{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "1"}}}}</tool_call>'

    def script(request: Request) -> Reply:
        if request.sibling == 2 and request.turn == 1:
            return Reply(text="x" * 400 + call, delay_s=1.0)
        return Reply(text="4", delay_s=1000.0 if request.sibling == 2 else 50.0)

    group, counts, _ = early(2, size=3, script=script)
    assert counts.cancelled == 1 and counts.cancelled_tokens > 400
    mean = (counts.kept_tokens + counts.cancelled_tokens) / 3
    assert counts.length_bias_tokens == mean - counts.kept_tokens / 2 > 100
    assert isinstance(group.trajectories[2].outcome, Failed)


def test_early_finish_waits_for_scored_ones_not_for_failures() -> None:
    lost = InferenceError("engine_stopped", "x", retryable=True)
    group, counts, _ = early(
        2,
        size=4,
        script=lambda r: Reply(text="4", delay_s=1.0 + r.sibling, error=lost if r.sibling < 2 else None),
    )
    assert [isinstance(t.outcome, Failed) for t in group.trajectories] == [True, True, False, False]
    assert counts.cancelled == 0 and counts.length_bias_tokens == 0.0


def test_early_finish_is_off_by_default_and_a_bug_still_cancels_the_group() -> None:
    made, _ = agent(lambda r: Reply(text="4", delay_s=float(r.sibling)))
    groups = run_virtual(collect(made, tasks(2), size=3, max_groups=2))
    assert all(len(group.scored) == 3 for group in groups)
    buggy, policy = agent(lambda r: "bug" if r.sibling == 2 else Reply(text="4", delay_s=1e5))
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(run_group(buggy, task("a"), size=4, seed=0, step=0, early=EarlyFinish(enough=1)))
    assert caught.group_contains(KeyError, match="a bug") and all_released(policy)
    with pytest.raises(ValueError, match="enough must be at least 1, got 0"):
        EarlyFinish(enough=0)
