"""Training and evaluating in an event loop that runs already, as a notebook's does."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train import Callback, StopRun, TrainingRun, evaluate, load_recipe, train
from rocstar.train.learner.checkpoint import step_directory
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.console import Console

Rows = Callable[..., list[dict[str, Any]]]


def children() -> set[int]:
    """Processes that this one has started and that still live."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


async def test_a_run_that_is_cancelled_leaves_nobody_behind_and_goes_on(
    workshop: Any, finished: Path, tmp_path: Path, read_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, directory = children(), tmp_path / "run"
    model = f"--model.path={step_directory(finished, 0)}"
    recipe = load_recipe(workshop.recipe, ["--checkpoint.every=1", "--sft.steps=0", model])
    reached, show = asyncio.Event(), Console.on_step

    def step(console: Console, row: Any) -> None:
        show(console, row)
        if row["phase"] == "rl" and row["step"] == 2:
            reached.set()

    monkeypatch.setattr(Console, "on_step", step)
    cell = asyncio.create_task(train(recipe, directory))
    await asyncio.wait([cell, asyncio.create_task(reached.wait())], return_when=asyncio.FIRST_COMPLETED)
    cell.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cell
    assert cell.cancelled() and children() == before
    assert TrainingRun(directory).ended == "interrupted" and len(TrainingRun(directory).steps) == 2
    with pytest.raises(ConfigError, match="holds a run"):
        await train(recipe, directory)
    run = await train(recipe, directory, resume=True)
    assert run == TrainingRun(directory) and run.ended == "complete" and run.history == read_rows(directory)
    assert [row["step"] for row in run.steps] == [1, 2, 3, 4]
    assert [row["step"] for row in run.evaluations] == [0, 4]
    assert {record["step"] for record in run.trajectories(4)} == {4}
    assert (directory / "report.html").exists() and children() == before


class StopAfterOne(Callback):
    """Ends a run after its first step, and reads its folder at that moment."""

    def on_run_start(self, run: Any) -> None:
        self.run, self.seen = TrainingRun(run.directory), ""

    def on_step(self, row: Any) -> None:
        if row["phase"] == "rl":
            self.seen = f"{self.run.ended} after step {self.run.steps[-1]['step']}"
            raise StopRun("one is enough")


async def test_a_run_in_a_thread_of_its_own_is_stopped_by_its_callback(
    workshop: Any, finished: Path, tmp_path: Path
) -> None:
    """A notebook may train in a thread: nothing needs the main thread's signals."""
    model = f"--model.path={step_directory(finished, 0)}"
    recipe, stop = load_recipe(workshop.recipe, ["--sft.steps=0", model]), StopAfterOne()
    assert (TrainingRun(tmp_path).ended, TrainingRun(tmp_path).history) == ("", [])

    def work() -> TrainingRun:
        return asyncio.run(train(recipe, tmp_path / "run", callbacks=[stop]))

    run = await asyncio.to_thread(work)
    assert stop.seen == "running after step 1"
    assert run.ended == "stopped" and [row["step"] for row in run.steps] == [1]


async def test_a_model_is_evaluated(workshop: Any, finished: Path, tmp_path: Path) -> None:
    recipe, model = load_recipe(workshop.recipe), step_directory(finished, 4)
    found = await evaluate(recipe, model, limit=2, out=tmp_path / "evaluated")
    assert found.result.num_tasks == 2 and found.model == os.fspath(model)
    assert (tmp_path / "evaluated" / "attempts" / "heldout.jsonl").exists()
    with pytest.raises(ConfigError, match="nowhere"):
        await evaluate(recipe, tmp_path / "nowhere")
