"""The order of a run and of a stage, the filter between stages, resuming. Whole runs: tests/integration."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.types import FinishReason, Group, Scored, Task, Trajectory, TrajectoryKey
from rocstar.train import between_steps, checkpoint, loop
from rocstar.train.checkpoint_writer import Order
from rocstar.train.config import (
    CheckpointConfig,
    ConfigError,
    EvalConfig,
    Recipe,
    StageConfig,
    TrainingStopped,
)
from rocstar.train.evaluate import Evaluation, summarise
from rocstar.train.metrics import MetricsWriter, read_metrics
from rocstar.train.run import Live, Run
from rocstar.train.source import Batch, Source
from rocstar.train.time_budget import TimeBudget

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]


def stage(**changes: Any) -> StageConfig:
    return StageConfig(**({"name": "one", "steps": 4, "max_response_tokens": 9, "max_turns": 2} | changes))


class Silent:
    """Stands in for the console and the publisher."""

    version = 0

    def step(self, row: object) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def attempt(task: Task, sibling: int, reward: float) -> Trajectory:
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=sibling),
        task=task,
        ids=(0, 1),
        logprobs=(None, -0.5),
        segments=(),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=reward, method="strict"),
    )


def write_checkpoint(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / checkpoint.COMPLETE).touch()


class Counting:
    """A source whose place is the number of batches it gave."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken

    async def take(self, step: int) -> Batch:
        self.taken += 1
        return Batch(groups=[], staleness=0)

    def state(self) -> dict[str, Any]:
        return {"taken": self.taken}


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


def build_run(directory: Path, recipe: Recipe) -> Run:
    limits = RolloutLimits(max_response_tokens=1, max_turns=1, max_tool_tokens=1, timeout_s=1.0)
    nothing = cast(Any, None)
    agent = Agent(
        inference=nothing, chat=nothing, tools=nothing, judge=nothing, limits=limits, sampling=nothing
    )
    ticks = itertools.count()
    return Run(
        recipe=recipe,
        directory=directory,
        live=Live(agent=agent, heldout=[]),
        publisher=cast(Any, Silent()),
        team=cast(Any, SavingTeam(directory / "metrics.jsonl")),
        decode=str,
        metrics=MetricsWriter(directory / "metrics.jsonl"),
        console=cast(Any, Silent()),
        trackers=[],
        budget=TimeBudget(clock=lambda: float(next(ticks))),
    )


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """A run at tmp_path, or in a folder of it."""
    runs: list[Run] = []

    def make(recipe: Recipe | None = None, folder: str = ".") -> Run:
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

    async def train_step(run: Run, stage: StageConfig, source: Source) -> dict[str, float]:
        await source.take(run.step + 1)
        run.step += 1
        events.append(f"step {run.step}")
        return {"reward/mean": 0.5}

    async def run_evaluation(run: Run) -> None:
        events.append(f"eval {run.step}")
        run.log({"eval/heldout/avg@4": 0.5}, stage="eval", phase="eval")

    async def save(run: Run, *args: Any, **options: Any) -> None:
        events.append(f"save {run.step}")
        await real_save(run, *args, **options)

    async def note(event: str) -> None:
        events.append(event)

    real_save = loop.save
    monkeypatch.setattr(SavingTeam, "use", lambda self, spec: note("use"), raising=False)
    monkeypatch.setattr(SavingTeam, "load_optimizer", lambda self, path: note("load"), raising=False)
    monkeypatch.setattr(Silent, "publish", lambda self, version: note(f"publish {version}"), raising=False)
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
    await loop.run_stage(run, stage(), Counting(), first_step=0)
    assert scripted == expected
    for name, progress, rows in cast(Any, run.team).saved:
        position = expected.index(f"save {name.removeprefix('step_')}")
        assert rows == sum(not event.startswith("save") for event in expected[:position])
        assert progress["step"] == int(name.removeprefix("step_")) and progress["stage"] == "one"


async def test_time_before_a_stage_is_not_its_first_steps_time(
    make_run: MakeRun, scripted: list[str]
) -> None:
    run = make_run()
    with run.budget.phase("eval"):
        pass
    await loop.run_stage(run, stage(steps=1), Counting(), first_step=0)
    assert read_metrics(run.metrics.path)[0]["time/eval"] == 0


# ---- the difficulty filter ----


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[float]]], None]:
    """Evaluation that answers from a table: rewards by task id."""

    def script(table: dict[str, list[float]]) -> None:
        async def evaluate(
            agent: Agent, tasks: Sequence[Task], *, what: str, **_: Any
        ) -> tuple[Evaluation, list[Group]]:
            assert what.endswith(": difficulty filter"), "who watches must not take it for an evaluation"
            await asyncio.sleep(0)
            groups = [
                Group(task=t, trajectories=tuple(attempt(t, k, r) for k, r in enumerate(table[t.id])))
                for t in tasks
            ]
            return summarise(groups, k=2), groups

        monkeypatch.setattr(between_steps, "evaluate", evaluate)

    return script


async def test_only_tasks_solved_every_time_are_dropped(
    make_run: MakeRun, attempts: Callable[[dict[str, list[float]]], None]
) -> None:
    run = make_run()
    run.dropped_tasks = ["before"]
    attempts({"task0": [1, 1], "task1": [1, 0], "task2": [0, 0], "task3": [1], "task4": [1, 1]})
    left = await between_steps.filter_by_difficulty(run, stage(filter_rollouts=2), TASKS)
    assert [task.id for task in left] == ["task1", "task2", "task3"], "one attempt of task3 failed: it stays"
    assert run.dropped_tasks == ["before", "task0", "task4"]
    row = read_metrics(run.metrics.path)[0]
    assert (row["difficulty/tasks_seen"], row["difficulty/tasks_dropped"], row["phase"]) == (5, 2, "eval")


async def test_without_rollouts_nothing_is_filtered(make_run: MakeRun) -> None:
    run = make_run()
    assert await between_steps.filter_by_difficulty(run, stage(), TASKS) == TASKS
    assert read_metrics(run.metrics.path) == []


async def test_a_run_that_stays_paused_is_saved_and_ends(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    async def bad_step(run: Run, stage: StageConfig, source: Source) -> dict[str, float]:
        run.step += 1
        run.bad_steps += 1
        return {"gate/paused": float(run.bad_steps >= 3)}

    monkeypatch.setattr(loop, "train_step", bad_step)
    with pytest.raises(TrainingStopped, match=r"paused for 20 steps.*--resume"):
        await loop.run_stage(run, stage(steps=100), Counting(), first_step=0)
    assert [row["gate/paused"] for row in read_metrics(run.metrics.path)] == [0, 0] + [1] * 20
    name, progress, rows = cast(Any, run.team).saved[-1]
    assert (name, progress["bad_steps"], rows) == ("step_22", 22, 22)


# ---- stage after stage, and resuming ----


class Opened:
    """Opens counting sources and remembers how: stage, task ids, state."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], Any]] = []

    def __call__(self, stage: StageConfig, tasks: Sequence[Task], state: Any) -> Any:
        self.calls.append((stage.name, [task.id for task in tasks], state))
        return nullcontext(Counting(state["taken"] if state else 0))


TWO_STAGES = Recipe.model_construct(
    **dict(Recipe()) | {"stages": [stage(), stage(name="two", reset_optimizer=True)]}
)


async def resumed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, progress: dict[str, Any]
) -> Opened:
    monkeypatch.setattr(checkpoint, "load_progress", lambda _: progress)
    opened = Opened()
    await loop.run_stages(run, [TASKS, TASKS[:3]], opened, tmp_path / "step")
    return opened


def progress_at(step: int, **changes: Any) -> dict[str, Any]:
    told = {"step": step, "version": step, "dropped_tasks": ["task1"], "bad_steps": 2, "source": "live"}
    return told | {"stage": "one", "first_step": 0, "cursor": {"taken": step}} | changes


async def test_a_run_goes_through_its_stages(make_run: MakeRun, scripted: list[str]) -> None:
    run, opened = make_run(TWO_STAGES), Opened()
    await loop.run_stages(run, [TASKS, TASKS[:3]], opened, None)
    assert scripted == [
        "eval 0", "use", "save 0", *[f"step {k}" for k in (1, 2, 3, 4)], "save 4",
        "use", *[f"step {k}" for k in (5, 6, 7, 8)], "save 8", "eval 8",
    ]  # fmt: skip
    ids = [task.id for task in TASKS]
    assert opened.calls == [("one", ids, None), ("two", ids[:3], None)]


async def test_it_goes_on_inside_a_stage_where_the_source_stood(
    make_run: MakeRun, scripted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(TWO_STAGES)
    opened = await resumed(run, monkeypatch, tmp_path, progress_at(3))
    assert scripted[:5] == ["publish 3", "use", "load", "step 4", "save 4"]
    assert scripted[5:7] == ["use", "step 5"], "the second stage begins with a fresh optimizer"
    left = ["task0", "task2", "task3", "task4"]
    assert opened.calls == [("one", left, {"taken": 3}), ("two", ["task0", "task2"], None)]
    assert run.bad_steps == 2
    assert [progress["cursor"] for _, progress, _ in cast(Any, run.team).saved] == [{"taken": 4}] * 2


async def test_it_keeps_the_optimizer_of_the_stage_it_is_in(
    make_run: MakeRun, scripted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    progress = progress_at(6, stage="two", first_step=4)
    opened = await resumed(make_run(TWO_STAGES), monkeypatch, tmp_path, progress)
    assert scripted[:4] == ["publish 6", "use", "load", "step 7"]
    assert opened.calls == [("two", ["task0", "task2"], {"taken": 6})]


async def test_it_goes_on_between_two_stages(
    make_run: MakeRun, scripted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = await resumed(make_run(TWO_STAGES), monkeypatch, tmp_path, progress_at(4))
    assert scripted[:5] == ["publish 4", "use", "load", "use", "step 5"]
    assert opened.calls == [("two", ["task0", "task2"], None)]


@pytest.mark.parametrize("began", ["live", "records"])
def test_a_run_is_resumed_the_way_it_began(began: str) -> None:
    progress = progress_at(1, source=began)
    between_steps.check_same_kind(progress, live=began == "live")
    with pytest.raises(ConfigError, match=r"--from-rollouts.*--output-dir"):
        between_steps.check_same_kind(progress, live=began != "live")
    del progress["source"]  # of a run before records could be learned
    between_steps.check_same_kind(progress, live=True)


async def test_a_run_from_records_neither_evaluates_nor_filters(make_run: MakeRun) -> None:
    run = make_run()
    run.live = None
    assert await between_steps.run_evaluation(run) is None
    assert await between_steps.filter_by_difficulty(run, stage(filter_rollouts=2), TASKS) == TASKS
    await between_steps.save(run, stage(), Counting(), first_step=0)
    assert cast(Any, run.team).saved[0][1]["source"] == "records"
