"""What an evaluation leaves: every attempt, and a file that was there until the new one is whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.engine.inference.base import Sampling
from rocstar.engine.record import from_record, read_records
from rocstar.engine.rollout import RolloutLimits
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
)
from rocstar.train import between_steps, evaluate
from rocstar.train.config import EvalConfig, Recipe, RunConfig, TrainingStopped
from rocstar.train.evaluation_files import evaluation_files, write_attempts
from rocstar.train.time_budget import TimeBudget

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(4)]


@dataclass(frozen=True)
class _Agent:
    limits: RolloutLimits
    sampling: Sampling


LOST = Failed(kind="deadline", retryable=True, detail="too late")


def attempt(task: Task, sibling: int, outcome: Scored | Failed) -> Trajectory:
    return Trajectory(
        key=TrajectoryKey(seed=7, step=3, task_id=task.id, sibling=sibling),
        task=task,
        ids=(1, 2),
        logprobs=(None, -0.25),
        segments=(
            Segment(start=0, end=1, origin=Origin.prompt),
            Segment(start=1, end=2, origin=Origin.policy),
        ),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.answered,
        outcome=outcome,
    )


def group(task: Task, *outcomes: Scored | Failed) -> Group:
    return Group(
        task=task, trajectories=tuple(attempt(task, k, outcome) for k, outcome in enumerate(outcomes))
    )


def scored(reward: float) -> Scored:
    return Scored(reward=reward, method="strict")


def plain(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run at step 3 with held-out tasks; its agent is never asked anything."""

    limits = RolloutLimits(max_response_tokens=8, max_turns=1, max_tool_tokens=8, timeout_s=1.0)
    sampling = Sampling(temperature=1.0)
    logged: list[dict[str, float]] = []
    agent = _Agent(limits=limits, sampling=sampling)
    return SimpleNamespace(
        recipe=Recipe(run=RunConfig(seed=11), eval=EvalConfig(samples_per_task=2)),
        directory=tmp_path,
        live=SimpleNamespace(agent=agent, heldout=TASKS),
        decode=plain,
        budget=TimeBudget(),
        step=3,
        log=lambda metrics, **_: logged.append(metrics),
        logged=logged,
    )


def finishing(monkeypatch: pytest.MonkeyPatch, groups: Sequence[Group]) -> None:
    """Groups end in this order."""

    async def run_groups(*_: Any, **__: Any) -> AsyncIterator[Group]:
        for found in groups:
            await asyncio.sleep(0)
            yield found

    monkeypatch.setattr(evaluate, "run_groups", run_groups)


GROUPS = [
    group(TASKS[0], scored(1.0), scored(0.0)),
    group(TASKS[1], LOST, scored(1.0)),
    group(TASKS[2], LOST, LOST),
    group(TASKS[3], scored(0.0), scored(0.0)),
]


async def test_every_attempt_and_how_it_failed_is_kept(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finishing(monkeypatch, GROUPS)
    await between_steps.run_evaluation(run)
    attempts, numbers = evaluation_files(run.directory, 3)
    assert sorted(path.name for path in attempts.parent.iterdir()) == [
        "step_000003.json",
        "step_000003.jsonl",
    ]
    records = list(read_records(attempts))
    assert [from_record(r) for r in records] == [t for g in GROUPS for t in g.trajectories]
    assert [r["decision"]["reason"] for r in records] == (
        ["evaluated"] * 2 + ["failed", "evaluated"] + ["failed"] * 2 + ["evaluated"] * 2
    )
    told = json.loads(numbers.read_text())
    assert (told["seed"], told["step"], told["k"]) == (11, 3, 2)
    assert (told["failed"], told["failures"], told["num_tasks"]) == (3, {"deadline": 3}, 3)
    assert told["avg"] == pytest.approx(0.5) and told["interval"][0] <= 0.5 <= told["interval"][1]
    assert told["rewards"] == {"task0": [1.0, 0.0], "task1": [1.0], "task3": [0.0, 0.0]}
    assert run.logged[0]["eval/heldout/avg@2"] == told["avg"]


async def test_who_finishes_first_changes_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstrap draws by place: in another order of the tasks the interval would be another one."""
    written = []
    for order in (GROUPS, GROUPS[::-1]):
        finishing(monkeypatch, order)
        await between_steps.run_evaluation(run)
        written.append([path.read_bytes() for path in evaluation_files(run.directory, 3)])
    assert written[0] == written[1] and run.logged[0] == run.logged[1]


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """A resumed run repeats an evaluation; it may be killed in the middle of it."""
    path, _ = evaluation_files(tmp_path, 3)
    write_attempts(path, GROUPS, plain)
    before, left = path.read_bytes(), [3]

    def dying(ids: tuple[int, ...]) -> str:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return plain(ids)

    with pytest.raises(KeyboardInterrupt):
        write_attempts(path, GROUPS, dying)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]


async def test_attempts_of_which_none_was_scored_are_kept_too(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is they that tell why."""
    lost = [replace(g, trajectories=tuple(replace(t, outcome=LOST) for t in g.trajectories)) for g in GROUPS]
    finishing(monkeypatch, lost)
    with pytest.raises(TrainingStopped, match="8 deadline"):
        await between_steps.run_evaluation(run)
    attempts, numbers = evaluation_files(run.directory, 3)
    assert len(list(read_records(attempts))) == 8 and not numbers.exists()
