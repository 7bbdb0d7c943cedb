"""The order of a run and of a stage, the filter between stages, resuming. Whole runs: tests/integration."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.types import FinishReason, Group, Task, Trajectory, Turn
from rocstar.train import loop
from rocstar.train.evaluation import during_training
from rocstar.train.groups.source import Batch, Roller, Source
from rocstar.train.learner import checkpoint
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.commands import LoadStart
from rocstar.train.learner.settings import EntropyControl
from rocstar.train.plan.resume import check_same_kind
from rocstar.train.recipe.config import AgentConfig, CheckpointConfig, EvalConfig, Recipe, RewardConfig, SftConfig
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.environment_config import EnvironmentConfig
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig, StageConfig
from rocstar.train.record.callbacks import Callback, Listeners, StopRun
from rocstar.train.record.metrics import MetricsWriter, read_metrics
from rocstar.train.record.time_budget import LoopLag, TimeBudget
from rocstar.train.run import Live, Run
from tests.fakes.trajectories import make_group, make_trajectory

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]


def stage(**changes: Any) -> StageConfig:
    return StageConfig(**({"name": "one", "steps": 4, "max_response_tokens": 9, "max_turns": 2} | changes))


class Silent:
    """Stands in for the publisher."""

    version = 0


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
        self.writer = SimpleNamespace(check=lambda: None)

    async def save(self, order: Order) -> None:
        write_checkpoint(order.directory)
        self.saved.append((order.directory.name, order.progress, len(read_metrics(self.metrics))))

    async def finish_saving(self) -> None:
        pass


class SettledJournal:
    """Of a run that rolls nothing out."""

    goes_on = False

    async def settled(self) -> None:
        pass


def build_run(directory: Path, recipe: Recipe) -> Run:
    limits = RolloutLimits(max_response_tokens=1, max_turns=1, max_tool_tokens=1, timeout_s=1.0)
    nothing = cast(Any, None)
    agent = Agent(
        inference=cast(Any, SimpleNamespace(load=None)),
        chat=nothing,
        tools=nothing,
        judge=nothing,
        limits=limits,
        sampling=Sampling(temperature=1.0),
    )
    ticks = itertools.count()
    return Run(
        recipe=recipe,
        directory=directory,
        live=Live(agent=agent, heldout={}),
        evaluation=during_training,
        publisher=cast(Any, Silent()),
        team=cast(Any, SavingTeam(directory / "metrics.jsonl")),
        decode=str,
        bodies=nothing,
        metrics=MetricsWriter(directory / "metrics.jsonl"),
        listeners=Listeners(Callback()),
        budget=TimeBudget(clock=lambda: float(next(ticks))),
        journal=cast(Any, SettledJournal()),
        lag=LoopLag(),
        write_eval_page=lambda folder: None,
        open_source=nothing,
        tasks=[TASKS, TASKS[:3]],
    )


MakeRun = Callable[..., Run]


def own_set(*, every: int) -> list[EvalConfig]:
    """The sets of an evaluation: one that is asked so often."""
    return [EvalConfig(data=DataConfig(source="held.jsonl"), every=every)]


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
        run.metrics.__exit__(None, None, None)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps and evaluations that only note that they happened."""
    events: list[str] = []

    async def train_step(run: Run, stage: StageConfig, source: Source) -> dict[str, float]:
        await source.take(run.step + 1)
        run.step += 1
        events.append(f"step {run.step}")
        return {"reward/mean": 0.5}

    async def run_evaluation(run: Run, *, between: bool = False) -> None:
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
    monkeypatch.setattr(during_training, "run_evaluation", run_evaluation)
    monkeypatch.setattr(loop, "save", save)
    return events


@pytest.mark.parametrize(
    ("save_every", "eval_every", "expected"),
    [
        (0, 0, ["step 1", "step 2", "step 3", "step 4", "save 4"]),
        (2, 0, ["step 1", "step 2", "save 2", "step 3", "step 4", "save 4"]),
        (3, 2, ["step 1", "step 2", "eval 2", "step 3", "save 3", "step 4", "save 4"]),
        (1, 1, [f"{what} {k}" for k in (1, 2, 3, 4) for what in ("step", "eval", "save") if (what, k) != ("eval", 4)]),
    ],
)
async def test_a_step_is_logged_then_evaluated_then_saved(
    make_run: MakeRun, scripted: list[str], save_every: int, eval_every: int, expected: list[str]
) -> None:
    """So a checkpoint has the rows of all that came before it, and nothing is done twice after a resume."""
    recipe = Recipe(checkpoint=CheckpointConfig(every=save_every), eval=own_set(every=eval_every))
    run = make_run(recipe)
    await loop.run_stage(run, stage(), Counting(), first_step=0)
    assert scripted == expected
    for name, progress, rows in cast(Any, run.team).saved:
        position = expected.index(f"save {name.removeprefix('step_')}")
        assert rows == sum(not event.startswith("save") for event in expected[:position])
        assert progress["step"] == int(name.removeprefix("step_")) and progress["stage"] == "one"


class Stopper(Callback):
    """Ends a run at one of its events, and remembers the checkpoints."""

    def __init__(self, event: str, at: int) -> None:
        self.event, self.at = event, at
        self.saved: list[tuple[int, str]] = []

    def _look(self, event: str, row: Mapping[str, Any]) -> None:
        if (event, row["step"]) == (self.event, self.at):
            raise StopRun("enough")

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._look("on_step", row)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._look("on_evaluation", row)

    def on_checkpoint(self, step: int, directory: Path) -> None:
        assert (directory / checkpoint.COMPLETE).exists()
        self.saved.append((step, directory.name))


@pytest.mark.parametrize(
    ("event", "at", "expected"),
    [
        ("on_step", 1, ["step 1", "save 1", "eval 1"]),
        ("on_step", 3, ["step 1", "step 2", "eval 2", "step 3", "save 3", "eval 3"]),
        ("on_evaluation", 2, ["step 1", "step 2", "eval 2", "save 2", "eval 2"]),
        ("on_evaluation", 0, ["eval 0"]),
    ],
)
async def test_a_run_that_a_callback_ends_is_saved_and_evaluated(
    make_run: MakeRun, scripted: list[str], event: str, at: int, expected: list[str]
) -> None:
    """Behind the step, whatever stages are left; the listeners hear of each checkpoint once."""
    data = DataConfig(source="tasks.jsonl")
    recipe = Recipe(stages=[stage(data=data), stage(name="two")], eval=own_set(every=2))
    run, stopper = make_run(recipe), Stopper(event, at)
    run.listeners.add(stopper)

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[Counting]:
        yield Counting()

    run.open_source = opened
    await loop.run_stages(run)
    loop.tell_saved(run)
    assert scripted == ["eval 0", "use", "save 0", *expected]
    assert run.listeners.stop == "Stopper: enough"
    assert stopper.saved == [(step, f"step_{step}") for step in sorted({0, run.step})]


def test_listeners_hear_of_a_checkpoint_once_it_is_whole(make_run: MakeRun) -> None:
    run, stopper = make_run(), Stopper("never", 0)
    run.listeners.add(stopper)
    order = Order(run_dir=run.directory, step=3, progress={}, keep_last=1, keep_every=0)
    run.saving = order
    loop.tell_saved(run)
    assert stopper.saved == [] and run.saving is order, "it is still being written"
    write_checkpoint(order.directory)
    for _ in range(2):
        loop.tell_saved(run)
    assert stopper.saved == [(3, "step_3")] and run.saving is None


async def test_time_before_a_stage_is_not_its_first_steps_time(make_run: MakeRun, scripted: list[str]) -> None:
    run = make_run()
    with run.budget.phase("eval"):
        pass
    await loop.run_stage(run, stage(steps=1), Counting(), first_step=0)
    assert read_metrics(run.metrics.path)[0]["time/eval"] == 0


# ---- the difficulty filter ----


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[float | None]]], None]:
    """Attempts that answer from a table: rewards by task id, None for one that failed."""

    def script(table: dict[str, list[float | None]]) -> None:
        async def run_attempts(
            roller: Roller,
            tasks: Sequence[Task],
            *_: Any,
            what: str,
            on_group: Callable[[Group], Awaitable[None]],
            **__: Any,
        ) -> None:
            assert what.endswith(": difficulty filter"), "who watches must not take it for an evaluation"
            await asyncio.sleep(0)
            for task in tasks:
                await on_group(make_group(task, *table[task.id]))

        monkeypatch.setattr(during_training, "run_attempts", run_attempts)

    return script


async def test_only_tasks_solved_every_time_are_dropped(
    make_run: MakeRun, attempts: Callable[[dict[str, list[float | None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.dropped_tasks = ["before"]
    notes: list[str] = []
    monkeypatch.setattr(run.listeners, "note", notes.append)
    attempts({"task0": [1, 1], "task1": [1, 0], "task2": [0, 0], "task3": [1, None], "task4": [1, 1]})
    left = await during_training.filter_by_difficulty(run, stage(filter_rollouts=2), TASKS)
    assert [task.id for task in left] == ["task1", "task2", "task3"], "one attempt of task3 failed: it stays"
    assert run.dropped_tasks == ["before", "task0", "task4"]
    row = read_metrics(run.metrics.path)[0]
    assert (row["difficulty/tasks_seen"], row["difficulty/tasks_dropped"], row["phase"]) == (5, 2, "eval")
    assert row["difficulty/failed"] == 1
    (note,) = notes
    assert "3 of 5 tasks" in note and "1 of 10 attempts have no score (" in note


async def test_without_rollouts_nothing_is_filtered(make_run: MakeRun) -> None:
    run = make_run()
    assert await during_training.filter_by_difficulty(run, stage(), TASKS) == TASKS
    assert read_metrics(run.metrics.path) == []


# ---- the measure after the cold start ----


Answers = Callable[[Sequence[str | None]], list[Any]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Script the answers to the tasks in order, None for a failed attempt; return the calls."""

    def script(texts: Sequence[str | None]) -> list[Any]:
        asked: list[Any] = []

        async def roll_out(road: Any, share: Sequence[Task], k: int, seed: int, step: int, what: str) -> list[Group]:
            asked.append((road.agent, [task.id for task in share], k, seed))
            return [
                Group(task=task, trajectories=(saying(task, text),)) for task, text in zip(share, texts, strict=True)
            ]

        monkeypatch.setattr(during_training, "run_share", roll_out)
        return asked

    return script


def saying(task: Task, text: str | None) -> Trajectory:
    cut = text is not None and text.endswith("CUT")
    return make_trajectory(
        task=task,
        reward=None if text is None else 0.0,
        turns=(Turn(start=1, end=2, text=text or "", stopped=not cut),),
        finish_reason=FinishReason.max_tokens if cut else FinishReason.answered,
    )


BOXED = "<answer>\\boxed{7}</answer>"
COLD = SftConfig(steps=9, data="chat.jsonl")


@pytest.mark.parametrize(
    ("texts", "share", "warns"),
    [
        ([BOXED, BOXED, "\\boxed{7}", f"{BOXED}CUT", None], 0.5, False),
        ([BOXED, "7", "<answer>7</answer>", f"{BOXED}CUT", ""], 0.2, True),
    ],
)
async def test_readable_answers_after_the_cold_start_are_counted(
    make_run: MakeRun,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    texts: Sequence[str | None],
    share: float,
    warns: bool,
) -> None:
    """An attempt that a limit cut has no answer; one that failed counts neither way."""
    run, notes, asked = make_run(Recipe(sft=COLD)), list[str](), answers(texts)
    monkeypatch.setattr(run.listeners, "note", notes.append)
    await during_training.measure_cold_start(run, stage(), TASKS)
    ((agent, ids, k, seed),) = asked
    assert (agent.sampling.temperature, agent.limits.max_response_tokens, k) == (0.0, 9, 1)
    assert ids == [task.id for task in TASKS] and seed != run.recipe.run.seed
    (row,) = read_metrics(run.metrics.path)
    assert (row["sft/boxed"], row["step"], row["stage"], row["phase"]) == (share, 0, "sft", "eval")
    (note,) = notes
    assert ("sft.steps" in note) == warns and note.startswith("cold start: ")


async def test_of_many_tasks_the_first_32_are_measured(make_run: MakeRun, answers: Answers) -> None:
    """No more at a time than the engine runs: with others the answers might round otherwise."""
    asked = answers([BOXED] * 16)
    run = make_run(Recipe(sft=COLD, engine=EngineConfig(max_running=16)))
    many = [dataclasses.replace(TASKS[0], id=f"task{k}") for k in range(40)]
    await during_training.measure_cold_start(run, stage(), many)
    assert [name for _, ids, _, _ in asked for name in ids] == [f"task{k}" for k in range(32)]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(sft=COLD, reward=RewardConfig(kind="own:score")),
        Recipe(sft=COLD, reward=RewardConfig(mode="fused")),
        Recipe(sft=COLD, agent=AgentConfig(kind="own:agent", reward="program")),
        Recipe(sft=COLD, environments=[EnvironmentConfig(kind="textarena")]),
    ],
    ids=["no cold start", "own reward", "the original's graders", "reward of an agent", "reward of an environment"],
)
async def test_where_no_box_is_read_nothing_is_measured(make_run: MakeRun, answers: Answers, recipe: Recipe) -> None:
    run, asked = make_run(recipe), answers([])
    meta = {"environment": "textarena", "row": {}} if recipe.environments else {}
    await during_training.measure_cold_start(run, stage(), [dataclasses.replace(task, meta=meta) for task in TASKS])
    assert asked == [] and read_metrics(run.metrics.path) == []


async def test_the_first_checkpoint_has_the_measure_after_the_cold_start(
    make_run: MakeRun, scripted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that goes on from a checkpoint has measured."""
    measured: list[str] = []

    async def measure(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> None:
        measured.append(f"{stage.name}, {len(tasks)} tasks")
        run.log({"sft/boxed": 1.0}, stage="sft", phase="eval")

    monkeypatch.setattr(during_training, "measure_cold_start", measure)
    run = make_run(TWO_STAGES)
    run.open_source = Opened()
    await loop.run_stages(run)
    assert cast(Any, run.team).saved[0][::2] == ("step_0", 2), "its row and the evaluation's"
    await resumed(make_run(TWO_STAGES, "again"), monkeypatch, tmp_path, progress_at(0))
    assert measured == ["one, 5 tasks"]


async def test_a_run_that_stays_paused_is_saved_and_ends(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
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


TWO_STAGES = Recipe.model_construct(**dict(Recipe()) | {"stages": [stage(), stage(name="two", reset_optimizer=True)]})


async def resumed(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, progress: dict[str, Any]) -> Opened:
    monkeypatch.setattr(checkpoint, "load_progress", lambda _: progress)
    run.saved, run.open_source = tmp_path / "step", Opened()
    await loop.run_stages(run)
    return cast(Opened, run.open_source)


def progress_at(step: int, **changes: Any) -> dict[str, Any]:
    progress = {"step": step, "version": step, "dropped_tasks": ["task1"], "bad_steps": 2, "source": "live"}
    progress["entropy"] = {"c": 0.25, "alpha": 0.0}
    return progress | {"stage": "one", "first_step": 0, "cursor": {"taken": step}} | changes


async def test_a_run_goes_through_its_stages(make_run: MakeRun, scripted: list[str]) -> None:
    run, opened = make_run(TWO_STAGES), Opened()
    run.open_source = opened
    await loop.run_stages(run)
    assert scripted == [
        "eval 0", "use", "save 0", *[f"step {k}" for k in (1, 2, 3, 4)], "save 4",
        "use", *[f"step {k}" for k in (5, 6, 7, 8)], "save 8", "eval 8",
    ]  # fmt: skip
    ids = [task.id for task in TASKS]
    assert opened.calls == [("one", ids, None), ("two", ids[:3], None)]


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_the_start_policy_is_that_of_step_0_also_when_resumed(
    make_run: MakeRun, scripted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_resumed: bool
) -> None:
    async def run_command(team: SavingTeam, command: LoadStart) -> None:
        scripted.append(f"start of {command.directory.name}")

    monkeypatch.setattr(SavingTeam, "run", run_command, raising=False)
    rl = RlConfig(start_kl_every=2)
    run = make_run(Recipe.model_construct(**dict(TWO_STAGES) | {"rl": rl}))
    if is_resumed:
        await resumed(run, monkeypatch, tmp_path, progress_at(3))
    else:
        run.open_source = Opened()
        await loop.run_stages(run)
    assert [event for event in scripted if "start" in event] == ["start of step_0"]
    assert scripted.index("start of step_0") < scripted.index("step 4" if is_resumed else "step 1")


LEFT = ["task0", "task2", "task3", "task4"]


@pytest.mark.parametrize(
    ("progress", "events", "calls"),
    [
        (
            {"step": 3},
            ["publish 3", "use", "load", "step 4", "save 4", "use", "step 5"],
            [("one", LEFT, {"taken": 3}), ("two", ["task0", "task2"], None)],
        ),
        (
            {"step": 6, "stage": "two", "first_step": 4},
            ["publish 6", "use", "load", "step 7"],
            [("two", ["task0", "task2"], {"taken": 6})],
        ),
        ({"step": 4}, ["publish 4", "use", "load", "use", "step 5"], [("two", ["task0", "task2"], None)]),
    ],
    ids=["inside a stage", "inside the last stage", "between two stages"],
)
async def test_it_goes_on_where_the_source_stood(
    make_run: MakeRun,
    scripted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    progress: dict[str, Any],
    events: list[str],
    calls: list[Any],
) -> None:
    """The stage's optimizer is loaded; the second stage begins with a fresh one."""
    run = make_run(TWO_STAGES)
    opened = await resumed(run, monkeypatch, tmp_path, progress_at(**progress))
    assert scripted[: len(events)] == events and opened.calls == calls and run.bad_steps == 2
    assert run.entropy == EntropyControl(c=0.25)
    assert cast(Any, run.team).saved[-1][1]["entropy"] == progress_at(0)["entropy"]


@pytest.mark.parametrize("began", ["live", "records"])
def test_a_run_is_resumed_the_way_it_began(began: str) -> None:
    progress = progress_at(1, source=began)
    check_same_kind(progress, live=began == "live")
    with pytest.raises(ConfigError, match=r"--from-rollouts.*--output-dir"):
        check_same_kind(progress, live=began != "live")
    del progress["source"]  # of a run before records could be learned
    check_same_kind(progress, live=True)


async def test_a_run_from_records_neither_evaluates_nor_filters(make_run: MakeRun) -> None:
    run = make_run()
    run.live = None
    assert await during_training.run_evaluation(run) is None
    assert await during_training.filter_by_difficulty(run, stage(filter_rollouts=2), TASKS) == TASKS
    await loop.save(run, stage(), Counting(), first_step=0)
    assert cast(Any, run.team).saved[0][1]["source"] == "records"
