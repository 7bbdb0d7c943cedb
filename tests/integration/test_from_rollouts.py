"""What one run rolled out another learns: from its records alone, without engine or sandbox."""

import json
import math
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rocstar.engine.record.reading import export_lines, read_records
from rocstar.train.learner import checkpoint
from rocstar.train.record.manifest import read_manifest
from rocstar.train.record.run_directory import records_file
from rocstar.train.serving import agent, embedded

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torchrun_parity

Rows = Callable[..., list[dict[str, Any]]]
NAMES = ("step", "loss/policy", "optim/grad_norm", "entropy/mean", "reward/mean", "ledger/kept", "tokens/loss")


@pytest.fixture
def no_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an engine nor a sandbox can be had."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a run that learns from records opened an engine or a sandbox")

    monkeypatch.setattr(agent, "SandboxPool", refuse)
    monkeypatch.setattr(embedded, "EmbeddedEngine", refuse)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The records, as lines, and the recipe of the finished run, to be spoiled."""
    directory = tmp_path / "copied"
    export_lines(finished / "trajectories", directory / "trajectories")
    shutil.copy(finished / "config.toml", directory)
    (directory / "checkpoints").symlink_to(finished / "checkpoints")
    return directory


def options_for(source: Path, directory: Path) -> list[str]:
    model = f"--model.path={source / 'checkpoints' / 'step_0'}"
    return ["train", "coin.toml", "--output-dir", str(directory), "--from-rollouts", str(source), model]


def logged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in NAMES} for row in rows]


def test_it_learns_what_the_live_run_learned(
    workshop: Any, finished: Path, copied: Path, no_rollouts: None, read_rows: Rows
) -> None:
    """From shuffled lines, ended after its third step and resumed: the weights are equal to the last bit."""
    directory = workshop.directory / "from_records"
    for path in (copied / "trajectories").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        random.Random(0).shuffle(lines)
        path.write_text("".join(lines))
    for more in (["--stages.1.steps=1"], ["--resume"]):
        ended = workshop.succeed(*options_for(copied, directory), *more)
    rows, live = read_rows(directory), read_rows(finished, "rl")
    assert [row["phase"] for row in rows] == ["rl"] * 4, "no cold start, no evaluation, no filter"
    assert logged(rows) == logged(live)
    assert any(row.get("loss/policy") for row in rows)
    assert all("policy/staleness_max" not in row for row in rows), "the records' versions are another run's"
    weights, expected, first = (
        load_file(checkpoint.step_directory(d, k) / "model.safetensors")
        for d, k in ((directory, 4), (finished, 4), (finished, 0))
    )
    assert all(weight.equal(expected[name]) for name, weight in weights.items())
    assert not all(weight.equal(first[name]) for name, weight in weights.items())
    assert (directory / "report.html").stat().st_size > 10_000
    ended = workshop.main("replay", str(directory), "--step=4", "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["agrees"]


def test_two_ranks_learn_from_records_too(workshop: Any, finished: Path, read_rows: Rows) -> None:
    """Small microbatches, so that each rank has some of every update: their gradients must be added up."""
    directory = workshop.directory / "from_records_on_two"
    arguments = options_for(finished, directory)[1:]
    ended = workshop.run(*arguments, "--rl.tokens_per_microbatch=32", ranks=2)
    assert ended.returncode == 0, ended.stderr
    assert torchrun_parity.fewest_microbatches(directory, 4) >= 2
    for row, live in zip(read_rows(directory), read_rows(finished, "rl"), strict=True):
        for name in NAMES:
            # Two ranks add up in another order, and Adam makes more of it at every step.
            assert row.get(name, 0.0) == pytest.approx(live.get(name, 0.0), rel=1e-4, abs=1e-5), name


# ---- rocstar rollout ----


def rollout(workshop: Any, finished: Path, out: Path, *options: str) -> Any:
    model = f"--model={finished / 'checkpoints' / 'step_0'}"
    return workshop.main("rollout", "coin.toml", model, "--out", str(out), "--json", *options)


@pytest.fixture(scope="session")
def rolled_out(workshop: Any, finished: Path) -> Path:
    """Two steps of `rocstar rollout`, the second of them after a resume."""
    out: Path = workshop.directory / "rolled_out"
    for steps, more in (("1", []), ("2", ["--resume"])):
        ended = rollout(workshop, finished, out, f"--steps={steps}", *more)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["ledger/generated"] == 16, "only the missing step was rolled out"
        assert f"step {steps}/{steps}" in ended.stderr
    return out


def test_a_step_is_rolled_out_as_a_run_would(rolled_out: Path, finished: Path) -> None:
    """Step 1 has the run's weights: the same tokens and verdicts. Step 2 has the same tasks."""
    names = ["config.toml", "lock", "logs", "manifest.json", "trajectories"]
    assert sorted(path.name for path in rolled_out.iterdir()) == names
    starts = read_manifest(rolled_out)
    assert [start["status"] for start in starts] == ["complete"] * 2, "a resume adds one, and loses none"
    for step in (1, 2):
        made, run = (list(read_records(records_file(d, step))) for d in (rolled_out, finished))
        if step == 1:
            for name in ("id", "ids", "turns", "outcome", "decision", "advantage", "seed"):
                assert [record[name] for record in made] == [record[name] for record in run], name
        assert {r["task"]["id"] for r in made} == {r["task"]["id"] for r in run}
        assert {r["policy_version"] for r in made} == {0}


def test_rollouts_of_a_fixed_model_are_learned_and_corrected(
    workshop: Any, rolled_out: Path, finished: Path, read_rows: Rows, no_rollouts: None
) -> None:
    directory = workshop.directory / "from_rollouts"
    arguments = options_for(rolled_out, directory)
    arguments[-1] = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    workshop.succeed(*arguments, "--stages.0.steps=1", "--stages.1.steps=1", "--rl.lr=1e-2")
    first, second = read_rows(directory)
    assert abs(first["mismatch_kl/mean"]) < 1e-4 < abs(second["mismatch_kl/mean"]), "the learner moved away"


def test_one_file_is_one_step(workshop: Any, finished: Path, tmp_path: Path, read_rows: Rows) -> None:
    ended = rollout(workshop, finished, tmp_path / "some.jsonl", "--limit=2")
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "some.jsonl").read_text()
    ended = rollout(workshop, finished, tmp_path / "some.jsonl", "--limit=1")
    assert ended.returncode == 2 and "--force" in ended.stderr and ended.stdout == ""
    assert (tmp_path / "some.jsonl").read_text() == text
    shutil.copy(tmp_path / "some.jsonl", tmp_path / "other.jsonl")
    ended = rollout(workshop, finished, tmp_path / "other.jsonl", "--limit=1", "--force")
    assert ended.returncode == 0 and len(list(read_records(tmp_path / "other.jsonl"))) == 8
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    source, out = ("--from-rollouts", str(tmp_path / "some.jsonl")), ("--output-dir", str(tmp_path / "out"))
    ended = workshop.succeed("train", "coin.toml", *source, *out, model, "--stages.0.steps=1", "--stages.1.steps=0")
    (row,) = read_rows(tmp_path / "out")
    assert row["ledger/generated"] == 16 and row["step"] == 1
    ended = workshop.main("train", "coin.toml", *source, "--output-dir", str(tmp_path / "more"), model)
    assert ended.returncode == 2 and "it has step 1" in ended.stderr


def test_rollouts_are_not_written_over(workshop: Any, rolled_out: Path, finished: Path) -> None:
    for options, words in (
        (["--steps=3"], "pass --resume"),
        (["--steps=3", "--resume", "--rl.temperature=0.5"], "another recipe, model or options"),
        (["--resume"], "needs --steps"),
    ):
        ended = rollout(workshop, finished, rolled_out, *options)
        assert ended.returncode == 2 and words in ended.stderr, ended.stderr
    ended = workshop.main("train", "coin.toml", "--output-dir", str(rolled_out))
    assert ended.returncode == 2 and "holds a run" in ended.stderr
    ended = rollout(workshop, finished, finished, "--steps=1", "--resume")
    assert ended.returncode == 2 and "holds a training run" in ended.stderr
    fresh = rolled_out.with_name("fresh")
    ended = rollout(workshop, finished, fresh, "--steps=1", "--resume")
    assert ended.returncode == 2 and "leave --resume out" in ended.stderr and not fresh.exists()


# ---- what cannot be learned: exit 2, one line, nothing written ----


def refused(workshop: Any, source: Path, *options: str) -> str:
    directory = workshop.directory / "refused_records"
    ended = workshop.main(*options_for(source, directory), *options)
    assert ended.returncode == 2, ended.stderr
    lines: list[str] = [line for line in ended.stderr.splitlines() if line.startswith("rocstar: ")]
    assert len(lines) == 1 and "Traceback" not in ended.stderr
    assert not directory.exists()
    return lines[0]


def spoil(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change every record of a file of lines."""
    records = list(read_records(path))
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


FAILED = {"failed": {"kind": "sandbox_lost", "retryable": True, "detail": "gone"}}


def fail_all(paths: Sequence[Path]) -> None:
    for path in paths:
        spoil(path, lambda record: record.update(outcome=FAILED))


def change_text(record: dict[str, Any]) -> None:
    record["segments"][0]["text"] = "<|begin_of_text|>Toss"


@pytest.mark.parametrize(
    ("damage", "options", "words"),
    [
        (lambda p: shutil.rmtree(p[0].parent), [], ["copied", "has no records", "a run directory"]),
        (fail_all, [], ["no trajectory of its 4 steps has a reward", "all of them failed"]),
        (
            lambda p: p[0].write_text(p[0].read_text().replace('"v":1', '"v":2')),
            [],
            ["step_000001.jsonl:1", "not a trajectory record of version 1"],
        ),
        (
            lambda p: spoil(p[1], change_text),
            [],
            ["step_000002.jsonl", "<|begin_of_text|>Toss", "another model", "--model.path="],
        ),
        (
            lambda p: spoil(p[0], lambda record: record["ids"].__setitem__(-1, 151_643)),
            [],
            ["token 151643", "knows 383", "another model"],
        ),
        (lambda p: p[2].unlink(), [], ["asks for 4 steps", "no records of step 3", "3 steps between 1 and 4"]),
        (lambda p: p[2].write_text(""), [], ["step_000003.jsonl", "holds no record"]),
        (None, ["--stages.1.steps=7"], ["asks for 9 steps", "has steps 1 to 4", "lower stages.*.steps"]),
        (None, ["--stages.0.steps=0", "--stages.1.steps=0"], ["no RL step", "add [[stages]]"]),
        (None, ["--model.path=scratch"], ["'scratch'", "checkpoints/step_0"]),
        (None, ["--model.path=./gone"], ["/gone' does not exist"]),
        (None, ["--rl.temperature=0.7"], ["rl.temperature = 0.7", "at 1.0", "--rl.temperature=1.0"]),
    ],
)
def test_records_that_cannot_be_learned(
    workshop: Any, copied: Path, damage: Callable[[Sequence[Path]], None] | None, options: list[str], words: list[str]
) -> None:
    if damage:
        damage(sorted((copied / "trajectories").iterdir()))
    message = refused(workshop, copied, *options)
    assert all(word in message for word in words), message


def test_a_run_does_not_learn_from_itself(workshop: Any, finished: Path) -> None:
    ended = workshop.main(*options_for(finished, finished))
    assert ended.returncode == 2 and "are the same run" in ended.stderr


def test_a_run_is_resumed_the_way_it_began(workshop: Any, finished: Path) -> None:
    directory = workshop.directory / "finished_again"
    shutil.copytree(finished, directory)
    rows = (directory / "metrics.jsonl").read_text()
    ended = workshop.main(*options_for(finished, directory), "--resume")
    assert ended.returncode == 2 and "cannot go on with --from-rollouts" in ended.stderr
    assert (directory / "metrics.jsonl").read_text() == rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["logprobs"].__setitem__(-1, None), "of the policy has no log-prob"),
        (lambda r: r["logprobs"].pop(), "log-probs"),
        (lambda r: r["segments"].pop(), "do not cover"),
        (lambda r: r.update(outcome={"reward": math.inf, "method": "x"}), "reward must be a finite number"),
        (lambda r: r.update(sibling=1, seed=[3, 2, 1]), "occurs twice"),
    ],
)
def test_a_record_that_is_not_whole(
    workshop: Any, copied: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    """Found when its step is learned: the steps before it are not lost."""
    spoil(copied / "trajectories" / "step_000002.jsonl", lambda r: change(r) if r["sibling"] == 5 else None)
    directory = copied.parent / "learned"
    ended = workshop.main(*options_for(copied, directory))
    assert ended.returncode == 2 and words in ended.stderr.splitlines()[-1], ended.stderr
    assert checkpoint.latest(directory) == checkpoint.step_directory(directory, 1)


def test_a_step_whose_trajectories_all_failed_is_a_step_without_an_update(
    workshop: Any, copied: Path, read_rows: Rows
) -> None:
    """As live: it is counted, and the next one learns."""
    spoil(copied / "trajectories" / "step_000001.jsonl", lambda record: record.update(outcome=FAILED))
    directory = copied.parent / "learned"
    workshop.succeed(*options_for(copied, directory))
    rows = read_rows(directory)
    assert rows[0]["ledger/failed"] == 16 and "loss/policy" not in rows[0]
    assert any("loss/policy" in row for row in rows[1:])
