"""`rocstar eval` as a command: its folder, kills and resumes, judging again, `--verify`."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import read_records
from rocstar.train.evaluation.benchmarks import benchmark
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.manifest import read_manifest, recipe_hash

from ..warm_python import warm

DEADLINE_S = 600
DYING = """
import os, signal, sys
from rocstar.train.evaluation import evaluation_folder

real, left = evaluation_folder._append, int(os.environ["APPENDS"])

def dying(path, data):
    global left
    if not left:
        real(path, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    real(path, data)

evaluation_folder._append = dying
from rocstar.train.cli import main
sys.exit(main())
"""
OPTIONS = ("--engine.deterministic=true", "--engine.max_running=2")
"""Two attempts share a forward; so each of the four tasks is one share."""


@pytest.fixture(scope="session")
def model(finished: Path) -> str:
    return str(checkpoint.step_directory(finished, 4))


@pytest.fixture(scope="session")
def whole(workshop: Any, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed evaluation; a test must not change it."""
    out = tmp_path_factory.mktemp("eval") / "made" / "whole"
    ended = workshop.succeed("eval", "coin.toml", "--model", model, "--out", str(out), "--json", *OPTIONS)
    assert json.loads(ended.stdout)["eval/heldout/avg@2"] == results_of(out)["avg"]
    return out


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def results_of(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "results.json").read_text())["sets"]["heldout"]
    return told


def killed(workshop: Any, *arguments: str, appends: int) -> int:
    """`rocstar ARGUMENTS`, killed in the middle of an append, behind so many others."""
    ended = subprocess.run(
        [str(warm().executable), "-c", DYING, *arguments],
        cwd=workshop.directory,
        env=workshop.environment() | {"APPENDS": str(appends)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return ended.returncode


def test_a_folder_holds_attempts_numbers_and_what_they_are_of(workshop: Any, whole: Path, model: str) -> None:
    names = ["attempts", "config.toml", "manifest.json", "report.html", "results.json"]
    assert sorted(path.name for path in whole.iterdir()) == names
    records = list(read_records(whole / "attempts" / "heldout.jsonl"))
    told = results_of(whole)
    assert len(records) == 8 and [r["sibling"] for r in records] == [0, 1] * 4
    assert [r["outcome"]["reward"] for r in records] == [
        reward for question in told["questions"].values() for reward in question["rewards"]
    ]
    page = (whole / "report.html").read_text()
    assert "<td>4 × 2</td>" in page and '"conversation&file=heldout&' in page
    (start,) = read_manifest(whole)
    facts = start["evaluation"]
    assert start["status"] == "complete" and start["recipe"] == recipe_hash(load_recipe(whole / "config.toml"))
    assert all(len(facts["model"][name]) == 64 for name in ("weights", "tokenizer", "template"))
    assert facts["data"]["heldout"]["num_tasks"] == 4 and len(facts["verifier"]["heldout"]) == 64
    assert facts["judge"] == {}, "nobody but the code"
    assert facts["sandbox"]["layers"] and facts["settings"]["packages"]["torch"]
    # The conversations of the cold start ask the same questions; its stages leave them out.
    assert told["contamination"]["left_out_of_training"] and told["contamination"]["overlap"] == 4
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    again = workshop.main("eval", "coin.toml", "--model", model, "--out", str(whole))
    assert again.returncode == 2 and "is not empty" in again.stderr and not again.stdout
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_killed_twice_and_resumed_it_gives_the_same_bytes(
    workshop: Any, whole: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["eval", "coin.toml", "--model", model, "--out", str(out), *OPTIONS]
    assert killed(workshop, *command, appends=1) == -signal.SIGKILL
    assert (out / "attempts" / "heldout.jsonl.partial").stat().st_size and not (out / "results.json").exists()
    assert killed(workshop, *command, "--resume", appends=1) == -signal.SIGKILL
    other = workshop.main(*command, "--resume", "--eval.0.temperature=0.5")
    assert other.returncode == 2 and "started with another recipe" in other.stderr
    workshop.succeed(*command, "--resume")
    for name in ("results.json", "attempts/heldout.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert [start["status"] for start in read_manifest(out)][-1] == "complete"
    assert not list(out.rglob("*.partial")) and not (out / "lock").exists()


def test_other_weights_are_no_resume(workshop: Any, finished: Path, model: str, tmp_path: Path) -> None:
    mine, out = Path(shutil.copytree(model, tmp_path / "model")), tmp_path / "out"
    command = ["eval", "coin.toml", "--model", str(mine), "--out", str(out), *OPTIONS]
    assert killed(workshop, *command, appends=1) == -signal.SIGKILL
    first = checkpoint.step_directory(finished, 0) / "model.safetensors"
    os.unlink(mine / "model.safetensors")
    shutil.copy(first, mine / "model.safetensors")
    ended = workshop.main(*command, "--resume")
    assert ended.returncode == 2 and "model.weights: was" in ended.stderr, ended.stderr


def test_a_folder_holds_against_its_manifest(workshop: Any, whole: Path, finished: Path) -> None:
    ended = workshop.succeed("eval", "--verify", str(whole), "--json")
    found = json.loads(ended.stdout)
    assert found["ok"] and found["attempts"] == 8 and found["unchecked"] == []
    ended = workshop.succeed("eval", "--verify", str(finished / "evaluations" / "step_000004"))
    assert "not checked: model" in ended.stdout


def test_a_changed_verdict_is_found_by_digest_numbers_and_judge(workshop: Any, copied: Path) -> None:
    path = copied / "attempts" / "heldout.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[3])
    was = record["outcome"]["is_correct"]
    record["outcome"] |= {"reward": float(not was), "is_correct": not was}
    path.write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:]]) + "\n")
    ended = workshop.main("eval", "--verify", str(copied))
    assert ended.returncode == 1 and "attempts/heldout.jsonl: was" in ended.stdout
    assert f"heldout, judged again: {record['id']}" in ended.stdout
    again = workshop.main("eval", "--rescore", str(copied), "--json")
    assert json.loads(again.stdout)["changed"] == {"heldout": 1}


def test_judging_again_gives_a_folder_like_the_first(workshop: Any, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    ended = workshop.succeed("eval", "--rescore", str(whole), "--out", str(out))
    for name in ("results.json", "attempts/heldout.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    ended = workshop.main("eval", "--verify", str(out))
    assert ended.returncode == 0, ended.stdout


def test_a_checkpoint_alone_is_evaluated_as_its_run_did(workshop: Any, model: str) -> None:
    ended = workshop.succeed("eval", model, "--limit=1", "--json")
    assert json.loads(ended.stdout)["eval/heldout/num_tasks"] == 1


def test_a_built_in_set_on_the_command_line(workshop: Any, model: str, tmp_path: Path) -> None:
    """Made-up problems stand for the set; a copy with other answers is refused before anything is loaded."""
    path = tmp_path / "copy.jsonl"
    path.write_text('{"problem": "Toss 10", "answer": "1"}\n')
    command = ["eval", "coin.toml", "--model", model, "--set", "math500", "--path", str(path)]
    ended = workshop.main(*command)
    assert ended.returncode == 2 and "answers are not the published ones of math500" in ended.stderr


def test_what_is_published_of_a_hidden_set_has_no_question(
    workshop: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts have them, and are kept back; without them the rest still holds against its manifest."""
    monkeypatch.setitem(benchmark.SETS["gpqa_diamond"], "num_questions", 1)
    path, out = tmp_path / "gpqa_diamond.csv", tmp_path / "out"
    path.write_text(
        "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
        "Parsnip?,first swede,second swede,third swede,fourth swede\n"
    )
    command = ["eval", "coin.toml", "--model", model, "--set=gpqa_diamond", "--path", str(path), "--out", str(out)]
    ended = workshop.succeed(*command, "--eval.0.samples_per_task=2", "--eval.0.max_response_tokens=100")
    (record, _) = read_records(attempts := out / "attempts" / "gpqa_diamond.jsonl")
    assert record["task"]["meta"]["hidden"] is True and "swede" in record["task"]["question"]
    attempts.unlink()
    files = [file for file in out.rglob("*") if file.is_file()]
    assert len(files) == 5
    for file in files:
        assert "arsnip" not in file.read_text() and "swede" not in file.read_text(), file
    assert (out / "attempts" / ".gitignore").read_text().splitlines()[-1] == "gpqa_diamond.jsonl*"
    ended = workshop.main("eval", "--verify", str(out))
    assert ended.returncode == 0, ended.stdout
    assert "not checked: attempts/gpqa_diamond.jsonl: a hidden set" in ended.stdout
    ended = workshop.main("eval", "--rescore", str(out))
    assert ended.returncode == 2 and "gpqa_diamond.jsonl" in ended.stderr
