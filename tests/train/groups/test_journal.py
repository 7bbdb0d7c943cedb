"""What a run has rolled out is on the disk, and a process that is killed costs no group that had ended."""

import asyncio
import dataclasses
import signal
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.learned import write_learned
from rocstar.engine.record.step_file import FrameFile, complete_frames
from rocstar.engine.types import Failed, Fork, Group, Task
from rocstar.train.groups import source
from rocstar.train.groups.journal import Journal, origin_of
from rocstar.train.groups.source import Roller
from rocstar.train.recipe.config import Recipe, RunConfig
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig, StageConfig
from rocstar.train.record.run_directory import records_file
from tests.fakes.json_lines import read_folder
from tests.fakes.trajectories import plain_trajectory

from ...patience import PATIENCE_S
from ...warm_python import warm

ABOUT = {"recipe": "r"}
ENGINE: Any = SimpleNamespace(version=0)
TASKS = {name: plain_trajectory(logprobs=[], task=name).task for name in ("a", "b", "c")}


def group(name: str, *, step: int = 1, size: int = 2) -> Group:
    made = [plain_trajectory(logprobs=[-0.5, -k], sibling=k, task=name, step=step) for k in range(size)]
    return Group(task=TASKS[name], trajectories=tuple(made))


def forked(turn: int, *, step: int = 1) -> Group:
    """Siblings of which each has a branch behind that turn."""
    roots = group("a", step=step).trajectories
    fork = Fork(parent="", turns=turn, start=1)
    pairs = [(root, dataclasses.replace(root, key=root.key.behind(turn, 1), fork=fork)) for root in roots]
    return Group(task=TASKS["a"], trajectories=tuple(t for pair in pairs for t in pair))


def judged(*groups: Group) -> list[tuple[Any, Verdict]]:
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)
    return [(t, verdict) for group in groups for t in group.trajectories]


def journal(directory: Path, *, goes_on: bool = True, about: Any = ABOUT, keep_steps: int = 0) -> Journal:
    return Journal(directory, about, decode=lambda ids: f"{len(ids)} tokens", goes_on=goes_on, keep_steps=keep_steps)


@pytest.fixture
def rolled_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the groups that were rolled out."""
    keys: list[str] = []

    async def run_group(agent: Any, task: Task, *, step: int, **options: Any) -> Group:
        keys.append(f"s{step}/{task.id}")
        return group(task.id, step=step)

    monkeypatch.setattr(source, "run_group", run_group)
    return keys


DIES = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.train.groups.test_journal import *

async def main():
    async with journal(Path({directory!r})) as records:
        await records.ended(1, group("a"))
        await records.ended(1, group("b"))
        await records.seal(1, judged(group("a"), group("b")), stage="one")
        await records.settled()
        await records.ended(2, group("a", step=2))
        print("written", flush=True)
        later = asyncio.ensure_future(records.ended(2, group("b", step=2)))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_process_costs_no_group_that_had_ended(tmp_path: Path, rolled_out: list[str]) -> None:
    code = DIES.format(tests=str(Path(__file__).parents[3]), directory=str(tmp_path))
    run = partial(subprocess.run, capture_output=True, timeout=PATIENCE_S, check=False)
    died = await asyncio.to_thread(run, [str(warm().executable), "-c", code])
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, b"written\n"), died.stderr
    async with journal(tmp_path) as records:
        roller = Roller(agent=cast(Any, None), journal=records, engine=ENGINE)
        for step in (1, 2):
            for name in ("a", "b"):
                found = await roller.roll_out(TASKS[name], size=2, seed=0, step=step)
                assert found == group(name, step=step)
    assert rolled_out in (["s2/b"], []), "at most what was being written was lost"
    assert record_files(tmp_path / "trajectories") == {1: records_file(tmp_path, 1)}


async def test_branches_are_found_with_their_roots(tmp_path: Path) -> None:
    async with journal(tmp_path) as records:
        await records.ended(1, forked(3))
        await records.ended(2, forked(12, step=2))
    async with journal(tmp_path) as records:
        assert await records.found(2, TASKS["a"], size=2) == forked(12, step=2)
        await records.seal(2, judged(forked(12, step=2), forked(3)), stage="one")
    async with journal(tmp_path) as records:
        assert await records.learned(2, TASKS) == [forked(12, step=2), forked(3)]


async def test_a_branch_that_a_killed_process_left_is_not_taken(tmp_path: Path) -> None:
    async with journal(tmp_path) as records:
        await records.ended(1, forked(3))
        path = records_file(tmp_path, 1)
        places = list(complete_frames(path))
    path.write_bytes(path.read_bytes()[: places[2].offset])  # the branches, and neither root
    async with journal(tmp_path) as records:
        assert await records.found(1, TASKS["a"], size=2) is None
        await records.ended(1, forked(4))
    async with journal(tmp_path) as records:
        assert await records.found(1, TASKS["a"], size=2) == forked(4)


async def test_only_what_was_written_under_the_same_recipe_is_taken(tmp_path: Path) -> None:
    async with journal(tmp_path) as records:
        await records.ended(1, group("a"))
    other = {"recipe": "other"}
    async with journal(tmp_path, about=other) as records:
        assert await records.found(1, TASKS["a"], size=2) is None
        await records.ended(1, group("b"))
    async with journal(tmp_path, about=other) as records:
        assert await records.found(1, TASKS["a"], size=2) is None
        assert await records.found(1, TASKS["b"], size=2) == group("b")
        assert await records.found(1, TASKS["b"], size=3) is None, "a sibling is missing"


async def test_a_beginning_that_no_checkpoint_has_is_not_gone_on_with(tmp_path: Path) -> None:
    async with journal(tmp_path) as records:
        await records.ended(1, group("a"))
        await records.seal(1, judged(group("a")), stage="one")
    write_learned(tmp_path / "trajectories", {}, step=1, rank=0, ranks=1)
    async with journal(tmp_path, goes_on=False) as records:
        assert await records.found(1, TASKS["a"], size=2) is None
    assert not list((tmp_path / "trajectories").iterdir())


async def test_a_failure_that_the_end_may_have_caused_is_tried_again(tmp_path: Path) -> None:
    outcome = Failed(kind="sandbox_lost", retryable=True, detail="gone")
    whole = group("a")
    lost = dataclasses.replace(whole.trajectories[0], outcome=outcome)
    broken = dataclasses.replace(whole, trajectories=(lost, whole.trajectories[1]))
    async with journal(tmp_path) as records:
        await records.ended(1, broken)
    async with journal(tmp_path) as records:
        assert await records.found(1, TASKS["a"], size=2) is None
        await records.ended(1, broken)
        await records.seal(1, judged(broken), stage="one")
    async with journal(tmp_path) as records:
        assert await records.found(1, TASKS["a"], size=2) == broken, "it was learned from as it is"


async def test_what_a_step_learned_stands_in_its_file_whenever_it_was_begun(tmp_path: Path) -> None:
    early, now = group("a", step=1), group("b", step=2)
    async with journal(tmp_path) as records:
        await records.ended(1, early)
        await records.ended(2, now)
        await records.seal(2, judged(now, early), stage="one")
        await records.seal(3, judged(group("c", step=7)), stage="one")  # rolled out by nobody here
    found = [(r["id"], r["segments"][0]["text"]) for r in read_folder(tmp_path / "trajectories")]
    names = ["s2/b/0", "s2/b/1", "s1/a/0", "s1/a/1", "s7/c/0", "s7/c/1"]
    assert found == [(name, "1 tokens") for name in names]
    assert not records_file(tmp_path, 1).exists(), "all of it lies in step 2"


async def test_a_file_of_a_step_to_come_stays_until_all_of_it_was_learned(tmp_path: Path) -> None:
    """A step that refills takes groups of numbers that no step of the run may ever have."""
    first, second = group("a", step=9), group("b", step=9)
    async with journal(tmp_path) as records:
        await records.ended(9, first)
        await records.ended(9, second)
        await records.seal(1, judged(first), stage="one")
        await records.settled()
        assert records_file(tmp_path, 9).exists()
        await records.seal(2, judged(second), stage="one")
    assert not records_file(tmp_path, 9).exists()
    assert [r["id"] for r in read_folder(tmp_path / "trajectories")] == [
        f"s9/{name}/{k}" for name in "ab" for k in range(2)
    ]


async def test_old_records_go_and_those_that_a_resume_needs_stay(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints" / "step_3"
    saved.mkdir(parents=True)
    async with journal(tmp_path, keep_steps=2) as records:
        for step in range(1, 4):
            await records.seal(step, judged(group("a", step=step)), stage="one")
            for rank in range(2):
                write_learned(tmp_path / "trajectories", {}, step=step, rank=rank, ranks=2)
        await records.settled()
        assert list(record_files(tmp_path / "trajectories")) == [1, 2, 3], "the checkpoint is not whole"
        (saved / "COMPLETE").touch()
        for step in range(4, 8):
            await records.seal(step, judged(group("a", step=step)), stage="one")
    assert list(record_files(tmp_path / "trajectories")) == [4, 5, 6, 7]
    assert not list((tmp_path / "trajectories").glob("*.learned")), "what was learned of them goes with them"


async def test_a_step_that_learned_nothing_has_nothing_of_a_former_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "trajectories"
    for step in (1, 2):
        write_learned(folder, {}, step=step, rank=0, ranks=1)
    async with journal(tmp_path) as records:
        assert records.folder == folder
        await records.unlearned(2)
    assert [path.name for path in folder.iterdir()] == ["step_000001.r000.learned"]


async def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FrameFile, "append", full)
    with pytest.raises(TrainingStopped, match=r"No space left on device.*--resume"):
        async with journal(tmp_path) as records:
            await records.ended(1, group("a"))
    with pytest.raises(TrainingStopped, match="No space left on device"):
        async with journal(tmp_path) as records:
            await records.seal(1, judged(group("a")), stage="one")


async def test_the_loop_goes_on_while_a_group_is_written(tmp_path: Path) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    async with journal(tmp_path) as records:
        await records.ended(1, group("a", size=8))
    beating.cancel()
    assert beats > 1


def test_what_does_not_change_rollouts_does_not_change_their_origin() -> None:
    data = DataConfig(source="tasks.jsonl")
    stage = StageConfig(steps=4, max_response_tokens=77, max_turns=5, data=data)
    recipe = Recipe(rl=RlConfig(max_staleness=0), stages=[stage])
    longer = recipe.model_copy(update={"stages": [stage.model_copy(update={"steps": 9})]})
    named = recipe.model_copy(update={"run": RunConfig(name="other", keep_records=3)})
    assert origin_of(recipe) == origin_of(longer) == origin_of(named)
    for other in (
        recipe.model_copy(update={"rl": RlConfig(max_staleness=0, lr=1.0)}),
        recipe.model_copy(update={"stages": [stage.model_copy(update={"max_turns": 6})]}),
        recipe.model_copy(update={"run": RunConfig(seed=1)}),
    ):
        assert origin_of(other) != origin_of(recipe)
