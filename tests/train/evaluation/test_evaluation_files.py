"""The files of an evaluation: all attempts, replaced atomically, independent of the order."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.engine.inference.base import Sampling
from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.types import Failed, Group, Scored, Task
from rocstar.train.evaluation import during_training, evaluate_sets
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder, run_folder
from rocstar.train.evaluation.provenance import file_digests
from rocstar.train.groups import source
from rocstar.train.reading.view.export_page import write_eval_report
from rocstar.train.recipe.config import EvalConfig, Recipe, RunConfig
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.record.learned_questions import Learned
from rocstar.train.record.manifest import read_manifest
from rocstar.train.record.time_budget import TimeBudget

from .eval_folders import short_group

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(4)]
LOST = Failed(kind="deadline", retryable=False, detail="too late")
OWN = DataConfig(source="held.jsonl")
LEARNED = Learned(tasks=frozenset({("heldout", "task0"), ("seldom", "task0")}), is_empty=False)


def scored(reward: float) -> Scored:
    return Scored(reward=reward, method="strict")


def plain(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run at step 3 with two sets of the same tasks; its agent is not called."""
    unused: Any = None
    agent = Agent(
        inference=SimpleNamespace(load=None),
        chat=SimpleNamespace(template="{}"),  # type: ignore[arg-type]
        tools=unused,
        judge=unused,
        limits=RolloutLimits(max_response_tokens=8, max_turns=1, max_tool_tokens=8, timeout_s=1.0),
        sampling=Sampling(temperature=1.0),
    )
    logged: list[dict[str, float]] = []
    sets = [
        EvalConfig(data=OWN, samples_per_task=2, every=3),
        EvalConfig(data=OWN, samples_per_task=2, name="seldom", limit=2),
    ]
    return SimpleNamespace(
        recipe=Recipe(run=RunConfig(seed=11), eval=sets),
        directory=tmp_path,
        live=SimpleNamespace(agent=agent, heldout={"heldout": TASKS, "seldom": TASKS}, learned=LEARNED, nodes=None),
        decode=plain,
        budget=TimeBudget(),
        step=3,
        team=SimpleNamespace(world=SimpleNamespace(size=1)),
        publisher=SimpleNamespace(version=5),
        log=lambda metrics, **_: logged.append(metrics),
        logged=logged,
        write_eval_page=write_eval_report,
    )


def finishing(monkeypatch: pytest.MonkeyPatch, groups: Sequence[Group], *, tolerant: bool = True) -> None:
    """Groups end in this order. tolerant: however many are lost."""

    order = [found.task.id for found in groups]
    by_task = {found.task.id: found for found in groups}

    async def run_group(_: Any, task: Task, **__: Any) -> Group:
        for _ in range(order.index(task.id)):
            await asyncio.sleep(0)
        return by_task[task.id]

    monkeypatch.setattr(source, "run_group", run_group)
    if tolerant:
        monkeypatch.setattr(evaluate_sets, "check_unscored", lambda *_, **__: None)


GROUPS = [
    short_group(TASKS[0], scored(1.0), scored(0.0)),
    short_group(TASKS[1], LOST, scored(1.0)),
    short_group(TASKS[2], LOST, LOST),
    short_group(TASKS[3], scored(0.0), scored(0.0)),
]


async def evaluated(run: Any, monkeypatch: pytest.MonkeyPatch, groups: Sequence[Group]) -> EvaluationFolder:
    """Evaluate with these groups; return the folder."""
    finishing(monkeypatch, groups)
    await during_training.run_evaluation(run)
    return EvaluationFolder(run_folder(run.directory, 3))


async def test_every_attempt_and_how_it_failed_is_kept(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await evaluated(run, monkeypatch, GROUPS)
    assert [path.name for path in folder.directory.parent.iterdir()] == ["step_000003"]
    files = ["attempts", "manifest.json", "report.html", "results.json"]
    assert sorted(p.name for p in folder.directory.iterdir()) == files
    records = list(read_records(folder.attempts("heldout")))
    assert [from_record(r) for r in records] == [t for g in GROUPS for t in g.trajectories]
    assert [r["decision"]["reason"] for r in records] == (
        ["evaluated"] * 2 + ["failed", "evaluated"] + ["failed"] * 2 + ["evaluated"] * 2
    )
    numbers = json.loads(folder.results.read_text())
    assert (numbers["seed"], numbers["step"]) == (11, 3) and list(numbers["sets"]) == ["heldout", "seldom"]
    mine = numbers["sets"]["heldout"]
    assert (mine["failed"], mine["failures"], mine["n_short"]) == (3, {"deadline": 3}, 2)
    assert mine["avg"] == pytest.approx(0.5), "failed attempts left out: 1/2, 1 and 0"
    assert mine["failed_as_wrong"]["avg"] == pytest.approx(0.25), "1/2, 1/2, 0 and 0"
    assert mine["interval"][0] <= 0.5 <= mine["interval"][1]
    assert mine["questions"]["task1"]["attempts"] == [None, True]
    assert mine["questions"]["task1"]["rewards"] == [None, 1.0]
    assert run.logged[0]["eval/heldout/avg@2"] == mine["avg"]
    assert run.logged[0]["eval/seldom/avg@2"] == numbers["sets"]["seldom"]["avg"] == 0.75, "its first two tasks"
    assert mine["contamination"]["overlap"] == 1 and mine["contamination"]["questions"] == [], "left out"
    (start,) = read_manifest(folder.directory)
    assert start["evaluation"]["model"]["version"] == 5 and start["status"] == "complete"
    assert start["files"] == file_digests(folder.directory, list(start["files"])) and len(start["files"]) == 3


async def test_between_two_steps_the_sets_that_are_due_are_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finishing(monkeypatch, GROUPS)
    found = await during_training.run_evaluation(run, between=True)
    assert found is not None and list(found) == ["heldout"]


async def test_who_finishes_first_changes_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and numbers are in the order of the tasks, to the byte."""
    written = []
    for order in (GROUPS, GROUPS[::-1]):
        folder = await evaluated(run, monkeypatch, order)
        written.append([folder.results.read_bytes(), folder.attempts("heldout").read_bytes()])
    assert written[0] == written[1] and run.logged[0] == run.logged[1]


async def test_a_folder_that_was_there_stays_until_the_new_one_is_whole(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run repeats an evaluation; it may be killed in the middle of it."""
    folder = (await evaluated(run, monkeypatch, GROUPS)).directory
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    async def dying(_: Any, task: Task, **__: Any) -> Group:
        if task is TASKS[3]:
            raise ZeroDivisionError
        return GROUPS[TASKS.index(task)]

    monkeypatch.setattr(source, "run_group", dying)
    with pytest.raises(ZeroDivisionError):
        await during_training.run_evaluation(run)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    await evaluated(run, monkeypatch, GROUPS)
    assert [path.name for path in folder.parent.iterdir()] == ["step_000003"], "no rest is left"


async def test_attempts_of_which_none_was_scored_are_kept_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They show the reason."""
    lost = [replace(g, trajectories=tuple(replace(t, outcome=LOST) for t in g.trajectories)) for g in GROUPS]
    finishing(monkeypatch, lost)
    with pytest.raises(TrainingStopped, match="8 deadline"):
        await during_training.run_evaluation(run)
    folder = EvaluationFolder(run_folder(run.directory, 3))
    assert len(list(read_records(folder.attempts("heldout")))) == 8 and not folder.results.exists()


async def test_more_lost_than_one_in_a_hundred_ends_the_run_with_all_of_it_kept(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean of those that were scored would pass for a mean of all."""
    finishing(monkeypatch, GROUPS, tolerant=False)
    with pytest.raises(TrainingStopped, match="3 of 8 attempts stayed without a score"):
        await during_training.run_evaluation(run)
    folder = EvaluationFolder(run_folder(run.directory, 3))
    assert len(list(read_records(folder.attempts("heldout")))) == 8
    assert json.loads(folder.results.read_text())["sets"]["heldout"]["failed"] == 3
    assert not run.logged, "no score of it is logged"
