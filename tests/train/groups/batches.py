"""Groups whose siblings differ in reward and in how their tool calls went, and batches of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import strategies as st

from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.types import Group, Task, ToolCall, ToolResult, Trajectory
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.trajectories import FakeTurn, make_trajectory

BUCKETS = {"kept", "dropped_positive", "dropped_negative", "no_signal", "failed"}
ANSWER = "<answer>\\boxed{1}</answer>"
NOTHING = cast(Any, None)
LIMITS = RolloutLimits(max_response_tokens=1, max_turns=1, max_tool_tokens=1, timeout_s=1000.0)
AGENT = Agent(inference=NOTHING, chat=NOTHING, tools=NOTHING, judge=NOTHING, limits=LIMITS, sampling=Sampling())
ENGINE: Any = SimpleNamespace(version=0, busy_s=0.0, starved_s=0.0)


class FakeJournal:
    """A journal in memory: a virtual clock does not wait for the thread of the real one."""

    def __init__(self) -> None:
        self.goes_on = True
        self.groups: dict[tuple[int, str], Group] = {}
        self.batches: dict[int, list[Group]] = {}

    async def found(self, step: int, task: Task, *, size: int) -> Group | None:
        return self.groups.get((step, task.id))

    async def learned(self, step: int, tasks: Any) -> list[Group] | None:
        return self.batches.get(step)

    async def ended(self, step: int, group: Group) -> None:
        self.groups[step, group.task.id] = group


def make(
    task: Task, sibling: int, reward: float | None, errors: int = 0, clean: int = 0, text: str = ANSWER
) -> Trajectory:
    """One turn with `errors` failing and `clean` working calls, then the text."""
    results = tuple(
        ToolResult(status="error" if k < errors else "ok", is_error=k < errors, text="") for k in range(errors + clean)
    )
    calls = (ToolCall(name="t", arguments={}),) * len(results)
    turns = [FakeTurn(text="call", calls=calls, results=results)] if results else []
    last = FakeTurn(ids=(3,) if results else (2, 3), text=text)
    return make_trajectory(*turns, last, task=task, sibling=sibling, reward=reward)


def group(name: str, outcomes: list[tuple[float | None, int, int]]) -> Group:
    task = Task(id=name, source="s", question="q", answer="1")
    members = [make(task, k, reward, errors, clean) for k, (reward, errors, clean) in enumerate(outcomes)]
    return Group(task=task, trajectories=tuple(members))


def config(group_size: int, rollouts: int, mode: str = "paper") -> RlConfig:
    return RlConfig(rollouts_per_task=rollouts, group_size=group_size, roc_mode=mode)  # type: ignore[arg-type]


outcomes = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 1.0, None]), st.integers(0, 2), st.integers(0, 2)), min_size=8, max_size=8
)
batches = st.lists(outcomes, min_size=1, max_size=4).map(
    lambda batch: [group(f"task{k}", members) for k, members in enumerate(batch)]
)
