"""`rocstar doctor RUN` and the alarms of a run that goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.types import FinishReason, Group
from rocstar.train.cli import main
from rocstar.train.groups.journal import Journal
from rocstar.train.reading.diagnosis.diagnose import diagnose
from rocstar.train.reading.diagnosis.ringing import Watch
from rocstar.train.recipe.config import Recipe
from rocstar.train.record.callbacks import Callback, Listeners, RunStart
from rocstar.train.record.metrics import ROW_KEYS, MetricsWriter, read_metrics
from rocstar.train.record.run_directory import claim, write_json
from tests.fakes.trajectories import plain_trajectory

from .made_runs import Rows, healthy, planted

KEPT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)


def write_rows(run: Path, rows: Rows) -> Path:
    run.mkdir(exist_ok=True)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        for row in rows:
            metrics = {k: float("nan") if v is None else v for k, v in row.items() if k not in ROW_KEYS}
            writer.write(metrics, step=row["step"], stage=row["stage"], phase=row["phase"])
    return run


def write_evaluation(run: Path, step: int, attempts: list[bool]) -> dict[str, Any]:
    folder = run / "evaluations" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    questions = {f"q{k}": {"attempts": [right]} for k, right in enumerate(attempts)}
    write_json(folder / "results.json", {"sets": {"held": {"k": 2, "questions": questions}}})
    share = sum(attempts) / len(attempts)
    return {"step": step, "stage": "eval", "phase": "eval", "time_s": 0.0, "eval/held/avg@1": share}


async def sick_run(tmp_path: Path) -> Path:
    """A run that is cut from step 15 on, with records of its last step, one of them cut."""
    run = write_rows(tmp_path / "run", planted("truncation", first=15, steps=20))
    whole = plain_trajectory(logprobs=[-0.1], task="whole", step=20)
    cut = plain_trajectory(logprobs=[-0.1, -0.2], task="cut", step=20)
    object.__setattr__(cut, "finish_reason", FinishReason.max_tokens)
    async with Journal(run, {}, decode=lambda ids: "text", goes_on=False) as journal:
        groups = [Group(task=t.task, trajectories=(t,)) for t in (whole, cut)]
        verdicts = [(t, KEPT) for group in groups for t in group.trajectories]
        await journal.seal(20, verdicts, stage="one")
    return run


async def test_a_sick_run_is_told_with_what_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = await sick_run(tmp_path)
    assert main(["doctor", str(run), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (alarm,) = found["standing"]
    assert (alarm["alarm"], alarm["kind"], alarm["last_step"], found["ill"]) == ("truncation", "health", 20, True)
    place = {"file": "step_000020", "row": 1}
    assert alarm["trajectories"] == [{"step": 20, "task": "cut", "sibling": 0, "id": "s20/cut/0", **place}]
    assert 15 <= alarm["first_step"] < 20 and alarm["definition"] and alarm["todo"]
    assert main(["doctor", str(run)]) == 1
    text = capsys.readouterr().out
    assert "truncation, since step" in text and "s20/cut/0" in text and "liveness: no active alarms" in text


def test_a_healthy_run_has_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = healthy(12)
    for row in rows:
        del row["entropy/mean"]
    run = write_rows(tmp_path / "run", rows)
    assert main(["doctor", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["standing"], found["over"], found["steps"]) == ([], [], 12)
    assert found["not_looked_at"]["entropy_collapse"] == "entropy/mean"
    assert main(["doctor", str(run)]) == 0
    assert "entropy_collapse (no entropy/mean)" in capsys.readouterr().out


@pytest.mark.parametrize(("right", "code", "standing"), [(6, 1, ["held_out_fall"]), (30, 0, [])])
def test_held_out_questions_that_are_solved_less_often_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right: int, code: int, standing: list[str]
) -> None:
    run = tmp_path / "run"
    before, after = (write_evaluation(run, step, [k < n for k in range(60)]) for step, n in ((0, 30), (10, right)))
    write_rows(run, [before, *healthy(10), after])
    assert main(["doctor", str(run), "--json"]) == code
    assert [one["alarm"] for one in json.loads(capsys.readouterr().out)["standing"]] == standing
    assert main(["doctor", str(run)]) == code
    assert ("from step 0 to 10: held by -40.0%" in capsys.readouterr().out) == bool(standing)


def test_what_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    assert "no metrics.jsonl" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "not a row of metrics" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path), "--fast"]) == 2


def test_who_works_on_a_run_is_known(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "run", healthy(10))
    write_json(run / "manifest.json", {"v": 1, "starts": [{"status": "running"}]})
    assert diagnose(run).state == "killed" and diagnose(run).is_ill
    written = (run / "metrics.jsonl").stat().st_mtime
    with claim(run, resume=True):
        assert diagnose(run, clock=lambda: written + 5).state == "running"
        late = diagnose(run, clock=lambda: written + 300)
    assert late.state == "silent" and "300 s" in late.state_note and late.is_ill
    write_json(run / "manifest.json", {"v": 1, "starts": [{"status": "complete"}]})
    assert diagnose(run).state == "complete" and not diagnose(run).is_ill


class Told(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def live(run: Path, rows: Rows, told: Told, *, step: int = 0) -> Rows:
    """The rows as a run writes them, with what the alarms add; from behind `step` on."""
    watch, listeners = Watch(), Listeners(told)
    listeners.add(watch)
    watch.tell = listeners.note
    run.mkdir(exist_ok=True)
    listeners.start(RunStart(recipe=Recipe(), directory=run, total_steps=len(rows), step=step))
    with MetricsWriter(run / "metrics.jsonl") as writer:
        for row in rows[step:]:
            metrics = {k: v for k, v in row.items() if k not in ROW_KEYS}
            metrics |= watch.measured(row["step"], metrics)
            listeners.row(writer.write(metrics, step=row["step"], stage="one", phase="rl"))
    return read_metrics(run / "metrics.jsonl")


def test_a_run_tells_once_and_writes_the_alarm_down(tmp_path: Path) -> None:
    rows, told = planted("repetition", first=10, steps=20), Told()
    for row in rows[14:]:
        row["text/looping"] = 0.0
    written = live(tmp_path / "run", rows, told)
    (note,) = told.notes
    assert note.startswith("health alarm repetition at step 12: ") and "rocstar doctor" in note
    assert [row.get("alarm/repetition") for row in written] == [None] * 11 + [1.0] * 7 + [0.0] * 2


def test_an_evaluation_that_does_not_follow_is_told_when_it_is_there(tmp_path: Path) -> None:
    run, told = tmp_path / "run", Told()
    watch, listeners = Watch(), Listeners(told)
    listeners.add(watch)
    watch.tell = listeners.note
    listeners.start(RunStart(recipe=Recipe(), directory=run, total_steps=40, step=0))
    questions = [k % 2 == 0 for k in range(60)]
    listeners.row(write_evaluation(run, 0, questions))
    for row in healthy(40):
        watch.measured(row["step"], {k: v for k, v in row.items() if k not in ROW_KEYS})
        listeners.row(row)
    assert not told.notes
    listeners.row(write_evaluation(run, 40, questions))
    (note,) = told.notes
    assert "reward_without_held_out at step 40" in note


def test_a_resumed_run_has_the_alarms_of_one_that_went_on(tmp_path: Path) -> None:
    rows = planted("repetition", first=10, steps=16)
    whole = live(tmp_path / "whole", rows, Told())
    first, second = Told(), Told()
    live(tmp_path / "run", rows[:13], first)
    again = live(tmp_path / "run", rows, second, step=13)
    names = ("step", "alarm/repetition")
    assert [[r.get(n) for n in names] for r in again] == [[r.get(n) for n in names] for r in whole]
    assert len(first.notes) == 1 and not second.notes


def test_a_run_of_few_steps_is_too_short_to_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps, is_short in ((5, True), (6, False)):
        run = write_rows(tmp_path / f"of_{steps}", healthy(steps))
        assert main(["doctor", str(run)]) == 0
        text = capsys.readouterr().out
        assert ("health: too short to judge" in text, "need 6 RL steps" in text) == (is_short, is_short), text
        assert ("health: no active alarms" in text) != is_short
