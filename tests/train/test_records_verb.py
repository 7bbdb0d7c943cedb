"""`rocstar records` writes the stored columns of a run as JSON Lines, without hidden tasks."""

import dataclasses
import json
from pathlib import Path

import pytest

from rocstar.engine.record.json_record import Verdict, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import HIDDEN, Group
from rocstar.train.cli import main
from rocstar.train.groups.journal import Journal
from tests.fakes.trajectories import plain_trajectory

KEPT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)


def group(name: str, step: int, *, hidden: bool = False) -> Group:
    made = plain_trajectory(logprobs=[-0.1, -1 / 3], task=name, step=step)
    task = dataclasses.replace(made.task, meta={HIDDEN: True} if hidden else {})
    return Group(task=task, trajectories=(dataclasses.replace(made, task=task),))


async def run_of_two_steps(directory: Path) -> list[Group]:
    groups = [group("a", 1), group("b", 2), group("c", 2, hidden=True)]
    async with Journal(directory, {}, decode=lambda ids: "text", goes_on=False) as journal:
        for step in (1, 2):
            chosen = [one for one in groups if one.trajectories[0].key.step == step]
            verdicts = [(t, KEPT) for one in chosen for t in one.trajectories]
            await journal.seal(step, verdicts, stage="one")
    return groups


async def test_lines_are_what_was_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, _ = await run_of_two_steps(tmp_path / "run")
    out = tmp_path / "out"
    assert main(["records", str(tmp_path / "run"), f"--out={out}"]) == 0
    files = [out / f"step_00000{step}.jsonl" for step in (1, 2)]
    assert capsys.readouterr().out.split() == list(map(str, files)) and sorted(out.iterdir()) == files
    assert [from_record(r) for path in files for r in read_records(path)] == [*a.trajectories, *b.trajectories]
    (record,) = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert record["v"] == 1 and record["segments"][0]["text"] == "text"


async def test_what_cannot_be_given_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await run_of_two_steps(tmp_path / "run")
    out = f"--out={tmp_path / 'out'}"
    for arguments, words in (
        (["--step=3"], "no records of step 3; it has steps 1, 2"),
        (["--fast"], "'--fast' is not known"),
    ):
        assert main(["records", str(tmp_path / "run"), out, *arguments]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["records", str(tmp_path / "empty"), out]) == 2
    assert "no records of a finished step; give a run directory" in capsys.readouterr().err
    (tmp_path / "empty" / "step_000001.columns").touch()  # as of a server that has not ended
    assert main(["records", str(tmp_path / "empty"), out]) == 2
    assert "has not ended: wait for it" in capsys.readouterr().err
    assert main(["records", str(tmp_path / "run"), out, "--step=2"]) == 0
    assert main(["records", str(tmp_path / "run"), out]) == 2
    assert "not empty" in capsys.readouterr().err
