"""After kill -9 and --resume the final weights are equal to those of an undisturbed run."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import kill_resume

from rocstar.train.record.manifest import read_manifest

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
