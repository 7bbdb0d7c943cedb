"""Every command of docs/guide/serve.md and chat.md runs, in order, on a tiny run that is runs/mine."""

import io
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.learner import checkpoint
from tests.fakes.json_lines import read_folder

from ..needs import commands
from ..train.test_guides import blocks, run

KEPT = ["--no-records"]


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    mine = tmp_path / "runs" / "mine"
    (mine / "checkpoints").mkdir(parents=True)
    shutil.copy(finished / "config.toml", mine)
    shutil.copytree(checkpoint.step_directory(finished, 4), mine / "checkpoints" / "step_24")
    return tmp_path


def test_every_command_of_the_guide_of_serving_runs(place: Path) -> None:
    commands("curl", "openssl")
    asked, stream, feedback, token = [block.text for block in blocks("serve.md")]
    # One shell: the server of the first block answers the next two, and the port is any that is free.
    printed = run("bash", "\n".join([asked, stream, feedback]).replace("8000", "18437"), place)
    assert '"data":[{"id":"rocstar-agent"' in printed and "data: [DONE]" in printed
    assert printed.count('"object":"feedback"') == 2
    rewards = [record["outcome"].get("reward") for record in read_folder(place / "served" / "trajectories")]
    assert sorted(r for r in rewards if r is not None) == [0.0, 1.0] and len(rewards) == 9
    assert (place / "served_lines" / "step_000001.jsonl").is_file()
    assert "rocstar-raw" in run("bash", token.replace("8001", "18438"), place)


def test_every_command_of_the_guide_of_chatting_runs(
    workshop: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: what a shell would pipe in is standard input here."""
    (block,) = blocks("chat.md")
    once, piped = block.text.splitlines()
    told = workshop.main(*shlex.split(once.replace("runs/mine", str(place / "runs" / "mine")))[1:], *KEPT)
    assert told.returncode == 0 and told.stdout.strip(), told.stderr
    given, _, command = piped.partition(" | ")
    asked = subprocess.run(shlex.split(given), capture_output=True, text=True, check=True).stdout
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    words = shlex.split(command.replace("runs/mine", str(place / "runs" / "mine")))[1:]
    told = workshop.main(*words, f"--out={place / 'chats'}")
    answers: list[Any] = [json.loads(line) for line in told.stdout.splitlines()]
    assert [one["prompt"] for one in answers] == asked.splitlines() and len(answers) == 2
    assert all(len(one["choices"]) == 2 and one["usage"]["turns"] >= 2 for one in answers)
    assert len(list(read_folder(place / "chats" / "trajectories"))) == 4
