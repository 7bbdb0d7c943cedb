"""`train --resume` of a run that is complete, nearly complete, changed, or interrupted again."""

import contextlib
import datetime
import hashlib
import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.chat.boundaries import load_template
from rocstar.engine.record.reading import read_records
from rocstar.sandbox.extras import shell_command
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.manifest import read_manifest
from rocstar.train.record.run_directory import cold_start_of, records_file

Rows = Callable[..., list[dict[str, Any]]]


def state_of(directory: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of every file but the lock."""
    files = [p for p in directory.rglob("*") if p.is_file() and p.name != "lock"]
    return {
        str(p.relative_to(directory)): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
        for p in files
    }


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of a whole run."""
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    return directory


@pytest.fixture
def resume(workshop: Any, run_dir: Path) -> Callable[..., Any]:
    def run(*options: str) -> Any:
        return workshop.main("train", "coin.toml", "--output-dir", str(run_dir), "--resume", *options)

    return run


def places(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(row["phase"], row["stage"], row["step"]) for row in rows]


def test_a_complete_run_is_left_as_it_is(resume: Callable[..., Any], run_dir: Path) -> None:
    before = state_of(run_dir)
    for options in ([], ["--rl.lr=0.5"]):
        ended = resume(*options)
        assert ended.returncode == 0, ended.stderr
        assert "is complete; nothing to do: 4 RL steps" in ended.stderr and "step_4" in ended.stderr
        with contextlib.chdir(run_dir):  # as the command did not run beside its environment either
            view, chat = (
                f"{what} it: {shell_command(verb, run_dir)}"
                for what, verb in (("look into", "view"), ("talk with", "chat"))
            )
        assert ended.stdout == f"report: {run_dir / 'report.html'}\n{view}\n{chat}\n"
        assert state_of(run_dir) == before
    assert "; not applied: rl.lr: was 0.001, now 0.5" in ended.stderr
    planned = resume("--rl.lr=0.5", "--dry-run")
    assert (planned.returncode, planned.stdout) == (0, ended.stderr.splitlines()[-1] + "\n")
    (run_dir / "report.html").unlink()
    assert resume().returncode == 0
    after = state_of(run_dir)
    assert after.pop("report.html") and before.pop("report.html")
    assert after == before


def test_a_run_without_its_last_evaluation_does_just_that(
    resume: Callable[..., Any], run_dir: Path, read_rows: Rows
) -> None:
    whole, before = read_rows(run_dir), state_of(run_dir)
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    ended = resume()
    assert ended.returncode == 0, ended.stderr
    assert (run_dir / "metrics.jsonl").read_bytes().startswith(b"".join(lines[:-1]))
    assert places(read_rows(run_dir)) == places(whole)
    kept = [name for name in before if name.startswith(("checkpoints", "trajectories", "config"))]
    after = state_of(run_dir)
    assert kept and all(after[name] == before[name] for name in kept)


def test_more_steps_extend_a_complete_run(
    resume: Callable[..., Any], run_dir: Path, read_rows: Rows, workshop: Any
) -> None:
    whole = read_rows(run_dir)
    ended = resume("--stages.1.steps=3", "--rl.lr=2e-3")
    assert ended.returncode == 0, ended.stderr
    assert "stages.1.steps: was 2, now 3" in ended.stderr and "rl.lr: was 0.001, now 0.002" in ended.stderr
    rows = read_rows(run_dir)
    assert rows[: len(whole)] == whole, "what was measured stays"
    assert places(rows[len(whole) :]) == [("rl", "two", 5), ("eval", "eval", 5)]
    assert load_recipe(run_dir / "config.1.toml") == load_recipe(workshop.recipe)
    assert load_recipe(run_dir / "config.toml").rl.lr == 2e-3
    replayed = workshop.main("replay", str(run_dir), "--step", "5", "--json")
    assert json.loads(replayed.stdout)["agrees"], replayed.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.template=rstar2"], ["model.template is part of what the policy reads"]),
        (["--run.seed=9", "--tool.text=plain"], ["run.seed orders", "tool.text is part", "was 'brief', now"]),
        (["--stages.0.data.source=heldout.jsonl"], ["stages.0.data.source belongs to a stage that"]),
        (["--stages.0.steps=5"], ["stages.0.steps is behind the run"]),
    ],
)
def test_what_would_rewrite_the_run_is_refused(
    resume: Callable[..., Any], run_dir: Path, options: list[str], words: list[str]
) -> None:
    before = state_of(run_dir)
    ended = resume(*options)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert ended.stderr.startswith("rocstar: --resume cannot go on in")
    assert all(word in ended.stderr for word in words), ended.stderr
    planned = resume(*options, "--dry-run")
    assert (planned.returncode, planned.stderr) == (2, ended.stderr), "the dry run says the same"
    assert state_of(run_dir) == before


def test_a_run_keeps_the_date_of_its_start(workshop: Any, tmp_path: Path) -> None:
    """A resume, an evaluation and a rollout on other days show the day that the run began."""
    dated = tmp_path / "dated.jinja"
    compact = load_template("compact", None)
    dated.write_text(compact.replace("{{- 'Solve it", "{{- strftime_now('%d %b %Y. ') -}}{{- 'Solve it"))
    directory, config = tmp_path / "run", tmp_path / "run" / "config.toml"
    command = ["train", "coin.toml", "--output-dir", str(directory), f"--model.template={dated}"]
    command += ["--sft.steps=20", "--stages.1.steps=0", "--stages.1.filter_rollouts=0"]
    ended = workshop.main(*command, "--stages.0.steps=1")
    today = load_recipe(config).model.date
    assert ended.returncode == 0, ended.stderr
    assert datetime.date.fromisoformat(today) and ended.stderr.count(f"the date; {today} is used") == 1
    config.write_text(config.read_text().replace(today, "2020-01-02"))  # as if it had begun then

    again = workshop.succeed(*command, "--stages.0.steps=2", "--resume")
    assert "the date; 2020-01-02 is used" in again.stderr and load_recipe(config).model.date == "2020-01-02"
    records = list(read_records(records_file(directory, 2)))
    assert records and all("02 Jan 2020. Solve it" in r["segments"][0]["text"] for r in records)

    made, model = tmp_path / "made", str(directory / "checkpoints" / "step_2")
    told = ["coin.toml", "--model", model, "--out", str(made), f"--model.template={dated}"]
    for verb, options in (("eval", ["--limit=1"]), ("rollout", ["--steps=1"])):
        workshop.succeed(verb, *told, *options)
        assert load_recipe(made / "config.toml").model.date == "2020-01-02"
        shutil.rmtree(made)


def test_ctrl_c_tells_the_command_that_goes_on(workshop: Any, finished: Path, read_rows: Rows) -> None:
    directory = workshop.directory / "stopped here"
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    options = ["--sft.steps=0", "--stages.0.steps=100", model]
    command = ["train", "coin.toml", "--output-dir", str(directory), *options]
    code, messages = workshop.interrupt("step 2/102", signal.SIGINT, *command)
    assert code == 130 and "Traceback" not in messages
    last = messages.splitlines()[-1]
    saved = checkpoint.latest(directory)
    assert saved is not None and str(saved) in last and "go on with --resume" in last
    assert last.endswith(f"rocstar train coin.toml {' '.join(options)} --output-dir '{directory}' --resume")
    assert [start["status"] for start in read_manifest(directory)] == ["interrupted"]
    # The same command goes on, and a second Ctrl-C costs no row.
    before = read_rows(directory)
    code, messages = workshop.interrupt("resuming from", signal.SIGINT, *command, "--resume")
    assert code == 130 and messages.splitlines()[-1] == last
    after = read_rows(directory)
    assert places(after)[: len(before)] == places(before)


def test_ctrl_c_in_the_cold_start_has_nothing_to_resume(workshop: Any, read_rows: Rows) -> None:
    directory = workshop.directory / "stopped_early"
    command = ["train", "coin.toml", "--output-dir", str(directory)]
    code, messages = workshop.interrupt("sft 20/200", signal.SIGINT, *command, "--sft.steps=200")
    last = messages.splitlines()[-1]
    assert code == 130 and "Traceback" not in messages and directory.exists()
    assert "before the first checkpoint: nothing can be resumed; this begins again" in last
    assert last.endswith(f"--sft.steps=200 --output-dir {directory} --resume")
    assert checkpoint.latest(directory) is None and read_rows(directory, "sft")
    short = ("--sft.steps=24", "--stages.0.steps=0", "--stages.1.steps=0")
    workshop.succeed(*command, *short, "--resume")
    assert [row["step"] for row in read_rows(directory, "sft")] == list(range(1, 25))


def test_ctrl_c_in_the_cold_start_goes_on_from_its_checkpoint(workshop: Any, read_rows: Rows) -> None:
    directory = workshop.directory / "stopped_in_sft"
    options = ["--sft.steps=200", "--checkpoint.sft_every=15"]
    command = ["train", "coin.toml", "--output-dir", str(directory), *options]
    code, messages = workshop.interrupt("sft 20/200", signal.SIGINT, *command)
    saved = checkpoint.latest(cold_start_of(directory))
    assert code == 130 and saved is not None
    assert f"the checkpoint {saved} is whole, go on with --resume" in messages.splitlines()[-1]
    before = read_rows(directory, "sft")
    code, messages = workshop.interrupt("resuming from", signal.SIGINT, *command, "--resume")
    assert code == 130 and f"resuming from {saved}" in messages
    kept = [row["step"] for row in before if row["step"] <= checkpoint.step_of(saved)]
    assert [row["step"] for row in read_rows(directory, "sft")][: len(kept)] == kept


def test_ctrl_c_before_anything_was_done_removes_the_directory(workshop: Any) -> None:
    recipe, directory = workshop.directory / "many.toml", workshop.directory / "stopped_first"
    tasks = '[sft.demonstration_tasks]\nsource = "reasoning_gym"\nsize = 40\nseed = 5\n'
    tasks += "families = { gcd = { min_value = 2, max_value = 20 } }\n[rl]\n"
    text = workshop.recipe.read_text().replace('data = "chat.jsonl"', "num_demonstrations = 2500")
    recipe.write_text(text.replace("[rl]\n", tasks))
    command = ["train", "many.toml", "--output-dir", str(directory)]
    code, messages = workshop.interrupt("cold start:", signal.SIGINT, *command)
    last = messages.splitlines()[-1]
    assert code == 130 and "Traceback" not in messages
    assert f"nothing can be resumed, and {directory} was removed" in last and "--resume" not in last
    assert not directory.exists()
