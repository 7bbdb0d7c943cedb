"""What a person does right after a run, in a terminal: the commands that it prints, a chat with its model."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.train.learner import checkpoint
from tests.fakes.json_lines import read_folder

from ..tmux import TmuxServer, tmux_server
from ..warm_python import warm
from .conftest import TOOL

ROCSTAR = str(warm().executable.with_name("rocstar"))
PLAIN = {"NO_COLOR": "1", "ROCSTAR_CHAT_HISTORY": ""}
MOST_TRIES = 50
"""The tiny model calls its tool in about half of its answers."""


@pytest.fixture(scope="module")
def tmux() -> Iterator[TmuxServer]:
    with tmux_server() as server:
        yield server


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run that may be changed, in a folder whose name a shell must have quoted."""
    return shutil.copytree(finished, tmp_path / "my runs" / "coin")


@pytest.fixture
def printed(workshop: Any, run: Path) -> Mapping[str, list[str]]:
    """The words of each command that the run's end prints, by its verb: a complete run prints them again."""
    ended = workshop.succeed("train", "coin.toml", "--output-dir", str(run), "--resume")
    commands = [shlex.split(line.partition(": ")[2]) for line in ended.stdout.splitlines()[1:]]
    for command in commands:  # what the shell finds is this rocstar
        called = shutil.which(command[0])
        assert called is not None and Path(called).samefile(Path(sys.executable).with_name("rocstar"))
    return {command[1]: command[1:] for command in commands}


async def test_the_printed_command_opens_the_page_of_the_run(
    tmux: TmuxServer, printed: Mapping[str, list[str]]
) -> None:
    terminal = await tmux.open([ROCSTAR, *printed["view"]])
    text = await terminal.showing("(Ctrl-C ends it)")
    address = re.search(r"http://127\.0\.0\.1:\d+/", text)
    assert address is not None, text
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{address[0]}api/run", params={"run": "coin"}) as answer:
            told = await answer.json()
    assert told["name"] == "coin" and told["steps"] == 4
    await terminal.type("C-c")
    assert await terminal.ended() == 0


async def test_the_printed_command_opens_a_chat_that_solves_a_puzzle_with_its_tool(
    tmux: TmuxServer, printed: Mapping[str, list[str]], tmp_path: Path
) -> None:
    terminal = await tmux.open([ROCSTAR, *printed["chat"]], columns=40, rows=50, cwd=tmp_path, environment=PLAIN)
    text = await terminal.ending("you>")
    example = re.search(r"solved in training, for example: (Toss \d\d)\n", text)
    assert example is not None, text
    for times in range(MOST_TRIES):
        await terminal.type("/new", "Enter", example[1], "Enter")
        text = await terminal.showing("you>", times=2 * times + 3)
        if solved := re.search(rf"> {TOOL}\nprint\(([12])\)\n\| \1\n<answer>\\boxed{{\1}}</answer>", text):
            break
    else:
        raise AssertionError(text)
    await terminal.type("C-d")
    assert await terminal.ended() == 0
    kept = list(read_folder(tmp_path / "runs" / "chats-coin" / "trajectories"))
    assert len(kept) == times + 1 and solved[0].split("\n")[-1] in kept[-1]["turns"][-1]["text"]


async def test_a_chat_with_a_checkpoint_behind_a_server(tmux: TmuxServer, finished: Path, tmp_path: Path) -> None:
    model = str(checkpoint.step_directory(finished, 4))
    server = await tmux.open([ROCSTAR, "serve", model, "--port", "0"], cwd=tmp_path)
    url = re.search(r"at (http://\S+/v1)", await server.showing("Ctrl-C ends it"))
    assert url is not None
    chat = await tmux.open([ROCSTAR, "chat", url[1]], columns=40, environment=PLAIN)
    await chat.ending("you>")
    await chat.type("Toss 11", "Enter")
    await chat.showing("you>", times=2)
    await chat.type("/good", "Enter")
    await chat.ending("noted: up\nyou>")
    await chat.type("/quit", "Enter")
    assert await chat.ended() == 0
    await server.type("C-c")
    assert await server.ended() == 0
    (kept,) = read_folder(tmp_path / "runs" / "served-coin" / "trajectories")
    assert kept["task"]["question"] == "Toss 11" and kept["outcome"]["reward"] == 1.0
