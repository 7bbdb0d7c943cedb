"""A run with `rl.refill`; replay, `--from-rollouts` and `rollout --steps` of its steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import read_records
from rocstar.train.record.run_directory import records_file

Rows = Callable[..., list[dict[str, Any]]]
TASKS, SIBLINGS, ROUNDS, STEPS = 4, 2, 2, 3
OPTIONS = (
    "--sft.steps=0",
    f"--rl.tasks_per_step={TASKS}",
    f"--rl.rollouts_per_task={SIBLINGS}",
    f"--rl.group_size={SIBLINGS}",
    f"--rl.refill={ROUNDS}",
    f"--stages.0.steps={STEPS}",
    "--stages.1.steps=0",
    "--eval.samples_per_task=1",
    "--eval.data.limit=1",
)


def run(workshop: Any, finished: Path, name: str, *more: str) -> Path:
    directory: Path = workshop.directory / name
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    ended = workshop.succeed("train", "coin.toml", "--output-dir", str(directory), model, *OPTIONS, *more)
    assert ("rl.refill draws nothing" in ended.stderr) == ("--from-rollouts" in more)
    return directory


@pytest.fixture(scope="session")
def refilled(workshop: Any, finished: Path) -> Path:
    return run(workshop, finished, "refilled")


def test_a_step_takes_further_groups_and_accounts_for_all(refilled: Path, read_rows: Rows) -> None:
    rows = read_rows(refilled, "rl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        num_groups = row["groups/used"] + row["groups/no_signal"]
        assert num_groups == TASKS + row["groups/refilled"] <= TASKS * (1 + ROUNDS)
        assert row["groups/used"] <= TASKS
        assert row["ledger/generated"] == num_groups * SIBLINGS
        assert row["ledger/kept"] == row["groups/used"] * SIBLINGS
        records = list(read_records(records_file(refilled, row["step"])))
        assert len({r["id"] for r in records}) == len(records) == row["ledger/generated"]
    assert any(row["groups/refilled"] for row in rows), "every group had a signal: the run tests nothing"


def test_its_records_give_the_same_losses_again(
    workshop: Any, finished: Path, refilled: Path, read_rows: Rows
) -> None:
    directory = run(workshop, finished, "refilled_again", "--from-rollouts", str(refilled))
    names = ("loss/policy", "optim/grad_norm", "ledger/kept", "ledger/no_signal")
    live, again = ([{k: row.get(k) for k in names} for row in read_rows(d, "rl")] for d in (refilled, directory))
    assert live == again and any(row["loss/policy"] for row in live)
    ended = workshop.main("replay", str(refilled), f"--step={STEPS}", "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["agrees"], ended.stderr


def test_rollout_takes_the_same_groups_also_after_a_resume(workshop: Any, finished: Path, refilled: Path) -> None:
    model = f"--model={finished / 'checkpoints' / 'step_0'}"
    found = []
    for name, parts in (("refilled_whole", ["2"]), ("refilled_parts", ["1", "2"])):
        out = workshop.directory / name
        for k, steps in enumerate(parts):
            more = ["--resume"] if k else []
            command = ["rollout", "coin.toml", model, "--out", str(out), f"--steps={steps}", *OPTIONS, *more]
            workshop.succeed(*command)
        found.append([[r["id"] for r in read_records(records_file(out, step))] for step in (1, 2)])
    assert found[0] == found[1]
    assert found[0][0] == [r["id"] for r in read_records(records_file(refilled, 1))]
