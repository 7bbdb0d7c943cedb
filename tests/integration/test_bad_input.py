"""What a user gets wrong: exit code 2, one line that names value, reason and fix, and nothing half-written.

Every message is checked for all three words given in its row. `main` returns instead of raising, so a
traceback would fail the test by itself.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.learner import checkpoint
from rocstar.train.plan import preflight
from rocstar.train.record.metrics import read_metrics

from .. import needs

NO_TOOLS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "Use {% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + NO_TOOLS.replace(
    "in messages", "in messages if m.role != 'system'"
)
SYSTEM, USER = {"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Toss 7"}
ROWS: dict[str, list[dict[str, Any]]] = {
    "silent.jsonl": [
        {"messages": [USER, {"role": "assistant", "content": "1"}]},
        {"messages": [{**USER, "content": None}]},
    ],
    "image.jsonl": [{"question": [{**USER, "content": [{"type": "image_url"}]}], "answer": "1"}],
    "pirate.jsonl": [{"question": "Toss 8", "answer": "1"}, {"question": [SYSTEM, USER], "answer": "1"}],
    "taught.jsonl": [{"messages": [SYSTEM, USER, {"role": "assistant", "content": "1"}]}],
}
TRAIN = ["train", "coin.toml"]
Refused = Callable[..., str]


def state_of(directory: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of change of every file and folder below."""
    paths = {path: path.stat() for path in directory.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in paths.items() if path.name != "__pycache__"}


@pytest.fixture
def refused(workshop: Any) -> Refused:
    """Run a command that must be refused; return its one message."""

    def run(*arguments: str) -> str:
        before = state_of(workshop.directory)
        ended = workshop.main(*arguments)
        assert ended.returncode == 2, ended.stderr
        assert ended.stdout == ""
        lines: list[str] = ended.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("rocstar: "), ended.stderr
        if arguments[0] == "train":
            planned = workshop.main(*arguments, "--dry-run")
            assert (planned.returncode, planned.stderr) == (2, ended.stderr), "a dry run says the same"
        assert state_of(workshop.directory) == before, "something was written"
        return lines[0]

    return run


def train(*options: str, recipe: str = "coin.toml") -> list[str]:
    return ["train", recipe, "--output-dir", "refused", *options]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stages.0.data.source=gone.jsonl"], ["gone.jsonl", "does not exist"]),
        (["--stages.0.data.question=prompt"], ["no field 'prompt'", "choose from question, answer"]),
        (["--stages.0.data.source=empty.jsonl"], ["empty.jsonl", "is empty", "at least one row"]),
        (["--stages.0.data.source=heldout.jsonl"], ["stage 'one'", "also in eval (heldout)", "another source"]),
        (["--eval.data.families={ gcd = {} }"], ["families belong to source = 'reasoning_gym'"]),
        (["--sft.data=empty.jsonl"], ["empty.jsonl", "no conversation"]),
        (["--sft.data=tasks.jsonl"], ["tasks.jsonl, line 1", "no 'messages'"]),
        (["--sft.data=silent.jsonl"], ["silent.jsonl, line 2", "message 1 (user) has no content"]),
        (["--eval.data.source=image.jsonl"], ["image.jsonl, line 1", "part of type 'image_url'", "only text"]),
        (
            ["--eval.data.source=pirate.jsonl", "--model.template=questions.jinja"],
            ["pirate.jsonl, line 2", "questions.jinja", "message 1 of 2 (system)", "leave the message out"],
        ),
        (
            ["--sft.data=taught.jsonl", "--model.template=questions.jinja"],
            ["taught.jsonl, conversation 1", "questions.jinja", "message 1 of 3 (system)"],
        ),
        (["--sft.max_tokens=8"], ["sft.max_tokens = 8", "raise it"]),
        (["--model.template=no_tools.jinja"], ["no_tools.jinja", "ignores tools", "template = 'rstar2'"]),
        (["--stages.1.max_response_tokens=5000"], ["stages.1.max_response_tokens = 5000", "lower it"]),
        (['--run.trackers=["wandb"]'], ["run.trackers: tracker 'wandb' needs a package", "pip install wandb"]),
    ],
)
def test_a_mistake_in_the_recipe_is_one_line(
    refused: Refused, workshop: Any, options: list[str], words: list[str]
) -> None:
    (workshop.directory / "empty.jsonl").write_text("")
    (workshop.directory / "no_tools.jinja").write_text(NO_TOOLS)
    (workshop.directory / "questions.jinja").write_text(NO_SYSTEM)
    for name, rows in ROWS.items():
        lines = (json.dumps(row) + "\n" for row in rows)
        (workshop.directory / name).write_text("".join(lines))
    message = refused(*train(*options))
    assert all(word in message for word in words), message
    assert "Input should" not in message
    assert not (workshop.directory / "refused").exists()


def test_a_recipe_that_is_no_text(refused: Refused, workshop: Any) -> None:
    (workshop.directory / "binary.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refused(*train(recipe="binary.toml"))


@pytest.fixture
def model(workshop: Any, finished: Path, tmp_path: Path) -> Path:
    """A copy of a trained model, to be broken."""
    directory = tmp_path / "model"
    shutil.copytree(checkpoint.step_directory(finished, 0), directory)
    return directory


@pytest.mark.parametrize(
    ("files", "text", "words"),
    [
        ("token*", None, ["has no tokenizer", "copy tokenizer.json"]),
        ("chat_template.jinja", None, ["no chat template", "set model.template"]),
        ("chat_template.jinja", NO_TOOLS, ["ignores tools", "use a bundled template"]),
        ("config.json", '{"model_type": "abacus"}', ["cannot be loaded", "abacus"]),
        ("config.json", None, ["no config.json", "not a Hugging Face model directory"]),
    ],
)
@pytest.mark.parametrize("verb", ["train", "eval"])
def test_a_model_directory_that_cannot_be_used(
    refused: Refused, model: Path, verb: str, files: str, text: str | None, words: list[str]
) -> None:
    for path in list(model.glob(files)):
        path.unlink()
        if text is not None:
            path.write_text(text)
    own = "--model.template=model"
    arguments = train(f"--model.path={model}", own)
    message = refused(*(arguments if verb == "train" else ["eval", "coin.toml", "--model", str(model), own]))
    assert all(word in message for word in words), message


def test_weights_that_are_no_weights_leave_no_run_directory(refused: Refused, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"not weights")
    assert "cannot be loaded" in refused(*train(f"--model.path={model}"))


def test_a_directory_that_holds_a_run(refused: Refused, finished: Path) -> None:
    message = refused("train", "coin.toml", "--output-dir", str(finished))
    assert str(finished) in message and "holds a run" in message and "--resume" in message


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_directory_in_use(refused: Refused, finished: Path, resume: list[str]) -> None:
    with (finished / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        message = refused("train", "coin.toml", "--output-dir", str(finished), *resume)
    assert str(finished) in message and "in use by another process" in message and "choose another" in message


def test_a_directory_that_cannot_be_made(refused: Refused, workshop: Any) -> None:
    message = refused("train", "coin.toml", "--output-dir", "coin.toml/run")
    assert "coin.toml/run" in message and "cannot be written" in message


def test_files_of_others_in_a_refused_directory_stay(workshop: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    ended = workshop.main("train", "coin.toml", "--output-dir", str(tmp_path), "--sft.max_tokens=8")
    assert ended.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmpfs of 8 MiB; that the checkpoints have no room there is not seen before the run begins."""
    monkeypatch.setattr(preflight, "check_disk", lambda *_: None)
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False) if shutil.which("mount") else None
    if made is None or made.returncode:
        needs.ROOT.skip()  # to mount a tmpfs
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # a loaded model may be mapped


def fill(disk: Path, *, spare_bytes: int) -> None:
    free = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - spare_bytes))


@pytest.mark.privileged
@pytest.mark.parametrize(
    "verb", [["report"], ["train", "coin.toml", "--resume", "--output-dir"], ["train", "coin.toml", "--output-dir"]]
)
def test_a_read_only_run_directory_is_one_line(
    workshop: Any, finished: Path, small_disk: Path, verb: list[str]
) -> None:
    directory = small_disk / "run"
    if verb[-1:] != ["--output-dir"] or "--resume" in verb:
        shutil.copytree(finished, directory, ignore=shutil.ignore_patterns("checkpoints"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = workshop.main(*verb, str(directory))
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and line.startswith("rocstar: ") and str(directory) in line
    assert "cannot be written" in line or "cannot write" in line


SHORT = ("train", "coin.toml", "--sft.steps=5", "--output-dir")
"""Disks fill whatever the model has learned."""


@pytest.mark.privileged
def test_a_full_disk_ends_a_run_with_its_files_whole(workshop: Any, small_disk: Path) -> None:
    directory = small_disk / "run"
    fill(small_disk, spare_bytes=400_000)
    ended = workshop.main(*SHORT, str(directory))
    assert ended.returncode == 2
    message = [line for line in ended.stderr.splitlines() if line.startswith("rocstar: ")]
    assert len(message) == 1 and "free some space" in message[0] and "--resume" in message[0]
    assert "Traceback" not in ended.stderr
    assert not list(directory.glob("checkpoints/*"))
    assert read_metrics(directory / "metrics.jsonl")[-1]["phase"] == "eval"


@pytest.mark.privileged
@pytest.mark.parametrize("spare_bytes", [4096, 20_000, 60_000])
def test_a_disk_that_fills_while_writing(
    workshop: Any, finished: Path, small_disk: Path, spare_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the free space says yes here: what is left is found out by writing."""
    monkeypatch.setattr(checkpoint, "check_space", lambda *_: None)
    directory = small_disk / "run"
    fill(small_disk, spare_bytes=spare_bytes)
    ended = workshop.main(*SHORT, str(directory))
    assert ended.returncode == 2, ended.stderr
    message = [line for line in ended.stderr.splitlines() if line.startswith("rocstar: ")]
    assert len(message) == 1 and "full" in message[0]
    assert not list(directory.glob("checkpoints/step_*"))
    if (directory / "metrics.jsonl").exists():
        read_metrics(directory / "metrics.jsonl")


@pytest.mark.privileged
def test_the_last_checkpoint_outlives_a_full_disk_and_the_run_goes_on(
    workshop: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_at_step_2(directory: Path, _: object) -> None:
        if directory.name == "step_2":
            fill(small_disk, spare_bytes=30_000)

    directory = small_disk / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "check_space", fill_at_step_2)
        ended = workshop.main(*SHORT, str(directory))
    assert ended.returncode == 2 and "full" in ended.stderr.splitlines()[-1], ended.stderr
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["step_0", "step_1"]
    (small_disk / "ballast").unlink()
    ended = workshop.succeed(*SHORT, str(directory), "--resume")
    rows = read_metrics(directory / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3, 4]
