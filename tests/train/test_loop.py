"""The order of a stage, its batches, and the filter between stages. Whole runs: tests/integration."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.types import (
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
)
from rocstar.train import checkpoint, loop
from rocstar.train.checkpoint_writer import Order
from rocstar.train.config import CheckpointConfig, EvalConfig, Recipe, RlConfig, StageConfig, TrainingStopped
from rocstar.train.data import TaskCursor
from rocstar.train.evaluate import Evaluation, summarise
from rocstar.train.learner import LossStats, WorstToken
from rocstar.train.metrics import MetricsWriter, read_metrics
from rocstar.train.selection import Selection
from rocstar.train.time_budget import TimeBudget

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]


def stage(**changes: Any) -> StageConfig:
    return StageConfig(**({"name": "one", "steps": 4, "max_response_tokens": 9, "max_turns": 2} | changes))


class Silent:
    """Stands in for the console and the engine."""

    version = 0
    busy_s = 0.0

    def step(self, row: object) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def write_checkpoint(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / checkpoint.COMPLETE).touch()


class SavingTeam:
    """Writes only the directory and COMPLETE of a checkpoint, and what was in metrics.jsonl then."""

    def __init__(self, metrics: Path) -> None:
        self.metrics = metrics
        self.saved: list[tuple[str, dict[str, Any], int]] = []

    async def save(self, order: Order) -> None:
        write_checkpoint(order.directory)
        self.saved.append((order.directory.name, order.progress, len(read_metrics(self.metrics))))

    def check_saved(self) -> None:
        pass


def build_run(directory: Path, recipe: Recipe) -> loop.Run:
    limits = RolloutLimits(max_response_tokens=1, max_turns=1, max_tool_tokens=1, timeout_s=1.0)
    nothing = cast(Any, None)
    agent = Agent(
        inference=nothing, chat=nothing, tools=nothing, judge=nothing, limits=limits, sampling=nothing
    )
    ticks = itertools.count()
    return loop.Run(
        recipe=recipe,
        directory=directory,
        agent=agent,
        engine=cast(Any, Silent()),
        team=cast(Any, SavingTeam(directory / "metrics.jsonl")),
        heldout=[],
        metrics=MetricsWriter(directory / "metrics.jsonl"),
        console=cast(Any, Silent()),
        trackers=[],
        budget=TimeBudget(clock=lambda: float(next(ticks))),
        clock=lambda: 0.0,
    )


MakeRun = Callable[..., loop.Run]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """A run at tmp_path, or in a folder of it."""
    runs: list[loop.Run] = []

    def make(recipe: Recipe | None = None, folder: str = ".") -> loop.Run:
        (tmp_path / folder).mkdir(exist_ok=True)
        runs.append(build_run(tmp_path / folder, recipe or Recipe()))
        return runs[-1]

    yield make
    for run in runs:
        run.metrics.close()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps and evaluations that only note that they happened."""
    events: list[str] = []

    async def train_step(run: loop.Run, stage: StageConfig, cursor: TaskCursor) -> dict[str, float]:
        cursor.take(2)
        run.step += 1
        events.append(f"step {run.step}")
        return {"reward/mean": 0.5}

    async def run_evaluation(run: loop.Run) -> None:
        events.append(f"eval {run.step}")
        run.log({"eval/heldout/avg@4": 0.5}, stage="eval", phase="eval")

    async def save(run: loop.Run, *args: Any, **options: Any) -> None:
        events.append(f"save {run.step}")
        await real_save(run, *args, **options)

    real_save = loop.save
    monkeypatch.setattr(loop, "train_step", train_step)
    monkeypatch.setattr(loop, "run_evaluation", run_evaluation)
    monkeypatch.setattr(loop, "save", save)
    return events


@pytest.mark.parametrize(
    ("save_every", "eval_every", "expected"),
    [
        (0, 0, ["step 1", "step 2", "step 3", "step 4", "save 4"]),
        (2, 0, ["step 1", "step 2", "save 2", "step 3", "step 4", "save 4"]),
        (3, 2, ["step 1", "step 2", "eval 2", "step 3", "save 3", "step 4", "save 4"]),
        (
            1,
            1,
            [
                f"{what} {k}"
                for k in (1, 2, 3, 4)
                for what in ("step", "eval", "save")
                if (what, k) != ("eval", 4)
            ],
        ),
    ],
)
async def test_a_step_is_logged_then_evaluated_then_saved(
    make_run: MakeRun, scripted: list[str], save_every: int, eval_every: int, expected: list[str]
) -> None:
    """So a checkpoint has the rows of all that came before it, and nothing is done twice after a resume."""
    recipe = Recipe(checkpoint=CheckpointConfig(every=save_every), eval=EvalConfig(every=eval_every))
    run = make_run(recipe)
    await loop.run_stage(run, stage(), TASKS, first_step=0, cursor_state=None)
    assert scripted == expected
    for name, progress, rows in cast(Any, run.team).saved:
        position = expected.index(f"save {name.removeprefix('step_')}")
        assert rows == sum(not event.startswith("save") for event in expected[:position])
        assert progress["step"] == int(name.removeprefix("step_")) and progress["stage"] == "one"


async def test_a_stage_goes_on_with_its_cursor(make_run: MakeRun, scripted: list[str]) -> None:
    recipe = Recipe(checkpoint=CheckpointConfig(every=1, keep_last=9))
    whole, parts = make_run(recipe, "whole"), make_run(recipe, "parts")
    await loop.run_stage(whole, stage(), TASKS, first_step=0, cursor_state=None)
    await loop.run_stage(parts, stage(steps=2), TASKS, first_step=0, cursor_state=None)
    saved = cast(Any, parts.team).saved[-1][1]
    await loop.run_stage(parts, stage(), TASKS, first_step=0, cursor_state=saved["cursor"])
    last, expected = (cast(Any, run.team).saved[-1][1] for run in (parts, whole))
    assert last["cursor"] == expected["cursor"] and last["step"] == expected["step"] == 4


async def test_time_before_a_stage_is_not_its_first_steps_time(
    make_run: MakeRun, scripted: list[str]
) -> None:
    run = make_run()
    with run.budget.phase("eval"):
        pass
    await loop.run_stage(run, stage(steps=1), TASKS, first_step=0, cursor_state=None)
    assert read_metrics(run.metrics.path)[0]["time/eval"] == 0


# ---- batches ----


def trajectory(k: int, num_tokens: int, reward: float = 1.0) -> Trajectory:
    task = TASKS[k % len(TASKS)]
    length = num_tokens + 2
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=k),
        task=task,
        ids=tuple(range(length)),
        logprobs=(None, None, *[-0.5] * num_tokens),
        segments=(
            Segment(start=0, end=2, origin=Origin.prompt),
            Segment(start=2, end=length, origin=Origin.policy),
        ),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=reward, method="strict"),
    )


def selection(sizes: Sequence[int]) -> Selection:
    kept = [trajectory(k, n) for k, n in enumerate(sizes)]
    advantages = [float(k) for k in range(len(kept))]
    return Selection(kept=kept, advantages=advantages, verdicts=[], groups_used=1, groups_no_signal=0)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_each_update_has_its_share_and_weights_that_sum_to_one(updates: int) -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=updates, tokens_per_microbatch=16))
    made = loop.pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert len(made) == updates
    for micros in made:
        assert sum(float(micro.weights_T.sum()) for micro in micros) == pytest.approx(1.0)
    assert sum(micro.num_loss_tokens for micros in made for micro in micros) == 66
    again = loop.pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert [[m.lengths_S for m in micros] for micros in again] == [
        [m.lengths_S for m in micros] for micros in made
    ]


def test_fewer_trajectories_than_updates_make_fewer_updates() -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=4))
    assert len(loop.pack_updates(selection([3, 5]), recipe, step=1)) == 2
    assert loop.pack_updates(selection([]), recipe, step=1) == []


def test_the_warm_up_is_counted_in_steps_of_rollouts() -> None:
    spec = loop.stage_optimizer(Recipe(rl=RlConfig(warmup_steps=5, num_updates_per_batch=2, lr=1e-3)))
    assert (spec.kind, spec.lr, spec.warmup_steps, spec.decay_fraction) == ("adamw", 1e-3, 10, 0.0)
    assert [spec.rate(k) for k in (0, 9, 10_000)] == [0.1, 1.0, 1.0]


def test_a_stage_has_its_own_limits(make_run: MakeRun) -> None:
    run = make_run()
    limits = loop.agent_for(run, stage(max_response_tokens=77, max_turns=5)).limits
    assert (limits.max_response_tokens, limits.max_turns, limits.max_tool_tokens) == (77, 5, 1)


# ---- the difficulty filter ----


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[float]]], None]:
    """Evaluation that answers from a table: rewards by task id."""

    def script(table: dict[str, list[float]]) -> None:
        async def evaluate(agent: Agent, tasks: Sequence[Task], **_: Any) -> tuple[Evaluation, list[Group]]:
            await asyncio.sleep(0)
            groups = [
                Group(task=t, trajectories=tuple(trajectory(TASKS.index(t), 1, r) for r in table[t.id]))
                for t in tasks
            ]
            return summarise(groups, k=2), groups

        monkeypatch.setattr(loop, "evaluate", evaluate)

    return script


async def test_only_tasks_solved_every_time_are_dropped(
    make_run: MakeRun, attempts: Callable[[dict[str, list[float]]], None]
) -> None:
    run = make_run()
    run.dropped_tasks = ["before"]
    attempts({"task0": [1, 1], "task1": [1, 0], "task2": [0, 0], "task3": [1], "task4": [1, 1]})
    left = await loop.filter_by_difficulty(run, stage(filter_rollouts=2), TASKS)
    assert [task.id for task in left] == ["task1", "task2", "task3"], "one attempt of task3 failed: it stays"
    assert run.dropped_tasks == ["before", "task0", "task4"]
    row = read_metrics(run.metrics.path)[0]
    assert (row["difficulty/tasks_seen"], row["difficulty/tasks_dropped"], row["phase"]) == (5, 2, "eval")


async def test_without_rollouts_nothing_is_filtered(make_run: MakeRun) -> None:
    run = make_run()
    assert await loop.filter_by_difficulty(run, stage(), TASKS) == TASKS
    assert read_metrics(run.metrics.path) == []


# ---- the off-policy gate ----


def paused_stats(bad_steps: int) -> LossStats:
    token = WorstToken(
        trajectory="s1/task0/0",
        position=7,
        token=3,
        after_tool=True,
        rollout_logprob=-0.5,
        learner_logprob=-4.5,
    )
    return LossStats(worst=[token], bad_steps=bad_steps, is_paused=bad_steps >= 3)


async def test_a_paused_step_is_told_and_its_worst_tokens_are_dumped(make_run: MakeRun) -> None:
    run = make_run()
    notes: list[str] = []
    chat = SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")
    run.agent = dataclasses.replace(run.agent, chat=cast(Any, chat))
    run.console = cast(Any, SimpleNamespace(note=notes.append))
    loop.note_gate(run, 2, paused_stats(2))
    assert run.bad_steps == 2 and not notes and not (run.directory / "off_policy").exists()
    loop.note_gate(run, 3, paused_stats(3))
    path = run.directory / "off_policy" / "step_000003.json"
    assert run.bad_steps == 3 and "step 3: optimizer paused" in notes[0] and str(path) in notes[0]
    dumped = json.loads(path.read_text())
    assert dumped["bounds"] == {"kl": 0.05, "ratio_p99": 2.0, "steps": 3}
    assert dumped["worst"] == [
        {"trajectory": "s1/task0/0", "position": 7, "token": 3, "after_tool": True,
         "rollout_logprob": -0.5, "learner_logprob": -4.5, "text": "<3>"}
    ]  # fmt: skip


async def test_a_run_that_stays_paused_is_saved_and_ends(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    async def bad_step(run: loop.Run, stage: StageConfig, cursor: TaskCursor) -> dict[str, float]:
        run.step += 1
        run.bad_steps += 1
        return {"gate/paused": float(run.bad_steps >= 3)}

    monkeypatch.setattr(loop, "train_step", bad_step)
    with pytest.raises(TrainingStopped, match=r"paused for 20 steps.*--resume"):
        await loop.run_stage(run, stage(steps=100), TASKS, first_step=0, cursor_state=None)
    assert [row["gate/paused"] for row in read_metrics(run.metrics.path)] == [0, 0] + [1] * 20
    name, progress, rows = cast(Any, run.team).saved[-1]
    assert (name, progress["bad_steps"], rows) == ("step_22", 22, 22)


@pytest.mark.parametrize("tokens", [5, 6, 100])
def test_trajectories_over_the_token_budget_are_counted(tokens: int) -> None:
    """A row of n tokens has n - 1 inputs; one that does not fit is alone in a microbatch."""
    made = selection([5, 3, 2])
    over = loop.over_budget(made, tokens)
    assert over == sum(n + 1 > tokens for n in (5, 3, 2))
    recipe = Recipe(
        rl=RlConfig.model_construct(**RlConfig().model_dump() | {"tokens_per_microbatch": tokens})
    )
    micros = loop.pack_updates(made, recipe, step=1)[0]
    assert sum(sum(m.lengths_S) > tokens for m in micros) == over
