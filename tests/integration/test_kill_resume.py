"""After kill -9 and --resume the final weights are equal to those of an undisturbed run."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import kill_resume

from rocstar.engine.record.step_file import complete_frames
from rocstar.train.record.manifest import read_manifest
from rocstar.train.record.run_directory import records_file

from ..warm_python import warm

STEPS = 6
OPTIONS = (
    "--sft.steps=0",
    f"--stages.0.steps={STEPS}",
    "--stages.1.steps=0",
    "--engine.deterministic=true",
    "--rl.rollouts_per_task=4",
    "--rl.refill=2",
    "--rl.entropy_target=9",
    "--rl.entropy_step=0.01",
    "--tool.wall_s=60.0",  # the machine may be busy: a timeout would be another rollout
    "--checkpoint.keep_last=1",
    "--checkpoint.keep_every=4",
)
EARLY_ENDS = (
    "--rl.refill=0",
    "--rl.end_early=true",
    "--rl.rollouts_per_task=16",
    "--rl.group_size=2",
    "--rl.roc_min_each=1",
)
KILLED = """
import os, signal, sys
from rocstar.engine.rollout.rollout import Draft
from rocstar.train.cli import main

END, tasks = Draft.end, {}
async def end(draft):
    begun = tasks.setdefault(draft.key.step, set())
    begun.add(draft.key.task_id)
    if draft.key.step > 2 and len(begun) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await END(draft)
Draft.end = end
sys.exit(main())
"""
"""It ends when a sibling of a later step's second group is to end early: the first group, with its own, is on disk."""


@pytest.fixture
def alive() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that must not outlive the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_kills_at_any_moment_change_no_bit(
    workshop: Any, finished: Path, alive: list[subprocess.Popen[str]], read_rows: Any
) -> None:
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    whole, killed = workshop.directory / "never_killed", workshop.directory / "often_killed"
    workshop.succeed("train", "coin.toml", "--output-dir", str(whole), model, *OPTIONS)

    def start(resume: bool) -> subprocess.Popen[str]:
        more = ["--resume"] if resume else []
        command = ["train", "coin.toml", "--output-dir", str(killed), model, *OPTIONS, *more]
        process: subprocess.Popen[str] = workshop.start(*command)
        alive.append(process)
        return process

    rng = random.Random(5)
    kills = list(kill_resume.run_killed(start, killed, steps=STEPS, kills=3, in_write=1, span_s=6.0, rng=rng))
    assert any(kill["inside_write"] for kill in kills), kills
    assert alive[-1].returncode == 0, alive[-1].communicate()[1]
    *before, last = (start["status"] for start in read_manifest(killed))
    assert set(before) == {"interrupted"} and last == "complete"
    found = kill_resume.differences(killed, whole, STEPS)
    assert (found["weights"], found["rows"]) == ([], []), kills
    assert found["num_rows"][0] == found["num_rows"][1]
    assert found["num_updates"] > 0, "without one there is nothing to lose"
    assert any(row["groups/refilled"] for row in read_rows(whole, "rl")), "no kill is between rounds"
    for directory in (whole, killed):
        names = sorted(path.name for path in (directory / "checkpoints").iterdir())
        assert names == ["step_0", "step_4", "step_6"], "and nothing half-written is left"


def test_a_kill_in_a_step_with_early_ends_changes_no_bit(workshop: Any, finished: Path, read_rows: Any) -> None:
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    whole, killed = workshop.directory / "never_killed_early", workshop.directory / "killed_early"
    workshop.succeed("train", "coin.toml", "--output-dir", str(whole), model, *OPTIONS, *EARLY_ENDS)
    command = ["train", "coin.toml", "--output-dir", str(killed), model, *OPTIONS, *EARLY_ENDS]
    ended = subprocess.run(
        [str(warm().executable), "-c", KILLED, *command],
        **{"cwd": workshop.directory, "env": workshop.environment(), "capture_output": True, "text": True},
        timeout=300.0,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    step = read_rows(killed, "rl")[-1]["step"] + 1
    assert len(list(complete_frames(records_file(killed, step)))) == 16, "one of two groups"
    workshop.succeed(*command, "--resume")
    found = kill_resume.differences(killed, whole, STEPS)
    assert (found["weights"], found["rows"]) == ([], [])
    assert found["num_updates"] == STEPS
    assert all(row["ledger/ended_early"] for row in read_rows(killed, "rl"))
