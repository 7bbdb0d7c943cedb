"""kill -9 while a step is rolled out ahead of the learner, --resume, and nothing is done twice or otherwise.

Which version wrote a token depends on timing here, so the run is held against its own records: what lay there
at the kill is there at the end, and another learner makes the same weights of them.
"""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from rocstar.engine.record.columns import frame_key
from rocstar.engine.record.step_file import complete_frames
from rocstar.train.learner import checkpoint
from rocstar.train.record.run_directory import TRAJECTORIES

Rows = Callable[..., list[dict[str, Any]]]
KILLED = Path(__file__).with_name("killed_ahead.py")
STEPS, TASKS, SIBLINGS = 5, 2, 4
OPTIONS = (
    "--sft.steps=0",
    "--rl.max_staleness=1",
    f"--rl.tasks_per_step={TASKS}",
    f"--rl.rollouts_per_task={SIBLINGS}",
    f"--stages.0.steps={STEPS}",
    "--stages.1.steps=0",
    "--checkpoint.every=2",
    "--checkpoint.keep_every=1",
    "--eval.samples_per_task=1",
    "--eval.data.limit=1",
    "--tool.wall_s=60.0",  # the machine may be busy: a timeout would be another rollout
)


def frames(directory: Path) -> dict[str, set[bytes]]:
    """Every trajectory that lies in the records, by key: one, or as many as it was rolled out. A group
    that is learned in a later step than it was meant for lies in the files of both."""
    found: dict[str, set[bytes]] = {}
    for path in sorted((directory / TRAJECTORIES).glob("step_*.columns")):
        for place in complete_frames(path):
            frame = place.read()
            found.setdefault(str(frame_key(frame)), set()).add(frame)
    return found


def test_a_run_ahead_that_is_killed_learns_what_its_records_say(
    workshop: Any, finished: Path, read_rows: Rows
) -> None:
    from ..warm_python import warm  # killed_ahead.py imports this file by its name alone

    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    directory, again = workshop.directory / "killed_ahead", workshop.directory / "killed_ahead_learned"
    command = ["train", "coin.toml", "--output-dir", str(directory), model, *OPTIONS]
    ended = subprocess.run(
        [str(warm().executable), str(KILLED), str(directory), str(SIBLINGS), *command],
        cwd=workshop.directory,
        env=workshop.environment(),
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr

    before, rows = frames(directory), read_rows(directory, "rl")
    assert rows[-1]["step"] < STEPS
    ended = workshop.succeed(*command, "--resume")

    after, resumed = frames(directory), read_rows(directory, "rl")
    assert all(len(found) == 1 for found in after.values()), "nothing was rolled out twice"
    assert len(after) == STEPS * TASKS * SIBLINGS
    whole = Counter(key.rpartition("/")[0] for key in before)
    kept = {key for key in before if whole[key.rpartition("/")[0]] == SIBLINGS}
    assert len(kept) > rows[-1]["step"] * TASKS * SIBLINGS, "a group of a later step among them"
    assert all(after[key] == before[key] for key in kept), "nothing that had ended is rolled out again"
    for row, later in zip(rows, resumed, strict=False):
        assert (row.get("loss/policy"), row.get("optim/grad_norm")) == (
            later.get("loss/policy"),
            later.get("optim/grad_norm"),
        )
    assert [row["step"] for row in resumed] == list(range(1, STEPS + 1))

    learns = ["train", "coin.toml", "--output-dir", str(again), "--from-rollouts", str(directory), model]
    ended = workshop.succeed(*learns, *OPTIONS)
    weights, expected = (
        load_file(checkpoint.step_directory(run, STEPS) / "model.safetensors") for run in (again, directory)
    )
    assert all(weight.equal(expected[name]) for name, weight in weights.items())
