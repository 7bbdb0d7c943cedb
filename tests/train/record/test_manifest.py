"""manifest.json tells what ran, and an entry is never lost."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.record import manifest
from rocstar.train.record.manifest import (
    STOPPED,
    ManifestError,
    describe,
    read_manifest,
    read_status,
    recipe_hash,
    recorded,
    without_secrets,
)
from rocstar.train.record.run_directory import claim, discard_if_unused


def statuses(directory: Path) -> list[str]:
    return [start["status"] for start in read_manifest(directory)]


def test_it_tells_program_machine_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rocstar", "train", "r.toml", "--x=redis://me:secret@host:1/0"])
    monkeypatch.setenv("HF_TOKEN", "hf_never")
    with recorded(tmp_path, Recipe(), world_size=2):
        assert statuses(tmp_path) == ["running"]
    (start,) = read_manifest(tmp_path)
    assert start["command"] == ["rocstar", "train", "r.toml", "--x=redis://me:***@host:1/0"]
    assert start["world_size"] == 2 and start["cpus"] == os.cpu_count() and isinstance(start["gpus"], list)
    assert start["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(start[name] for name in ("rocstar", "torch", "transformers", "host", "platform"))
    assert start["recipe"] == recipe_hash(Recipe())
    assert start["started"].endswith("+00:00") and start["started"] <= start["ended"]
    text = (tmp_path / "manifest.json").read_text()
    assert "hf_never" not in text and "secret" not in text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (asyncio.CancelledError(), "interrupted"),
        (RuntimeError(), "failed"),
        (None, "complete"),
    ],
)
def test_it_tells_how_a_run_ended(tmp_path: Path, error: BaseException | None, status: str) -> None:
    def work() -> None:
        with recorded(tmp_path, Recipe(), world_size=1):
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    assert statuses(tmp_path) == [status] and read_manifest(tmp_path)[0]["ended"]


def test_the_status_is_that_of_the_last_start(tmp_path: Path) -> None:
    assert read_status(tmp_path) == ""
    with recorded(tmp_path, Recipe(), world_size=1) as entry:
        assert read_status(tmp_path) == "killed", "no process holds the folder"
        with claim(tmp_path, resume=False):
            assert read_status(tmp_path) == "running"
        entry["status"] = STOPPED
    assert read_status(tmp_path) == "stopped"


def test_a_resumed_run_adds_its_start_and_loses_none(tmp_path: Path) -> None:
    for _ in range(2):
        with recorded(tmp_path, Recipe(), world_size=1):
            pass
    before = read_manifest(tmp_path)
    killed = [*before, before[-1] | {"status": "running", "ended": None}]
    (tmp_path / "manifest.json").write_text(json.dumps({"v": 1, "starts": killed}))
    with recorded(tmp_path, Recipe(), world_size=1):
        assert statuses(tmp_path) == ["complete", "complete", "interrupted", "running"]
    assert read_manifest(tmp_path)[:2] == before
    assert statuses(tmp_path)[-1] == "complete"


@pytest.mark.parametrize("text", ["torn", "[]", '{"v": 9}', '{"v": 1, "starts": [7]}'])
def test_a_damaged_one_is_kept_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        read_manifest(tmp_path)
    with recorded(tmp_path, Recipe(), world_size=1):
        pass
    assert statuses(tmp_path) == ["complete"]
    assert (tmp_path / "manifest.json.damaged").read_text() == text


def test_what_ended_the_work_is_told_also_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(directory: Path, starts: object) -> None:
        raise OSError("full")

    def work() -> None:
        with recorded(tmp_path, Recipe(), world_size=1):
            monkeypatch.setattr(manifest, "_write", full)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_an_unused_run_takes_it_along(tmp_path: Path) -> None:
    with claim(tmp_path / "run", resume=False), recorded(tmp_path / "run", Recipe(), world_size=1):
        pass
    discard_if_unused(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git of the test's own, so that none need be installed."""
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text('#!/bin/sh\ncase "$3" in rev-parse) echo abc123 ;; status) printf "$CHANGES" ;; esac\n')
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent))
    checkout = tmp_path / "checkout"
    (checkout / ".git").mkdir(parents=True)
    monkeypatch.setattr(manifest, "CHECKOUT", checkout)
    for changes, dirty in (("", False), (" M train/loss.py", True)):
        monkeypatch.setenv("CHANGES", changes)
        told = describe(Recipe(), world_size=1)
        assert (told["commit"], told["dirty"]) == ("abc123", dirty)
    monkeypatch.setattr(manifest, "CHECKOUT", tmp_path / "site-packages")
    assert describe(Recipe(), world_size=1)["commit"] is None, "of another project's repository"


@pytest.mark.parametrize("script", [None, "exit 128", "exec sleep 60"])
def test_without_git_or_with_one_that_refuses_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "git").chmod(0o755)
    path = str(tmp_path / "bin") + (os.pathsep + os.environ["PATH"] if script and "sleep" in script else "")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(manifest, "CHECKOUT", tmp_path)
    monkeypatch.setattr(manifest, "GIT_S", 0.2)
    told = describe(Recipe(), world_size=1)
    assert (told["commit"], told["dirty"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["redis://:p/w@h:1/0"], ["redis://:***@h:1/0"]),
        (["--x=redis://me:p@ss/w@h"], ["--x=redis://me:***@h"]),
        (["--x.api_key=a b"], ["--x.api_key=***"]),
        (["--judge.TOKEN=abc"], ["--judge.TOKEN=***"]),
        (["--password", "hunter2", "--n=1"], ["--password", "***", "--n=1"]),
        (['--x={api_key = "abc", n = 1}'], ['--x={api_key = "***", n = 1}']),
        (["https://h/v1?token=abc&n=1"], ["https://h/v1?token=***&n=1"]),
        (["--rl.max_tokens=4096", "--token-file=t", "a@b"], ["--rl.max_tokens=4096", "--token-file=t", "a@b"]),
    ],
)
def test_a_command_is_recorded_without_its_secrets(words: list[str], shown: list[str]) -> None:
    assert without_secrets(words) == shown
