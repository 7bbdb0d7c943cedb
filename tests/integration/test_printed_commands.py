"""Each kind of command that rocstar prints, pasted into a shell whose environment is not active."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rocstar.sandbox.extras import pip_command
from rocstar.train.cli.dispatch import build_parser
from rocstar.train.cli.training import interrupted
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import STEPS, RunIndex
from rocstar.train.record.manifest import command_of_start, read_manifest

from ..train.reading.diagnosis.test_diagnose import Told, live, planted
from ..warm_python import WarmProcess, warm
from .conftest import DEADLINE_S, Completed, Workshop

RUN = "runs/my coin"
PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def here(workshop: Workshop, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A folder with a space in its name, and a run in it with another one."""
    folder = tmp_path / "my work"
    shutil.copytree(finished, folder / RUN)
    (folder / "my coin.toml").symlink_to(workshop.recipe)
    for path in workshop.directory.glob("*.jsonl"):
        (folder / path.name).symlink_to(path)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return Workshop(folder)


@pytest.fixture
def run(here: Workshop, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> str:
    """The recipe of the run. Commands of its end lead to the warm environment, where they start sooner."""
    monkeypatch.setattr(sys, "executable", str(warm().executable))
    return str(workshop.recipe)


def paste(command: str) -> Completed:
    """Run a printed command in the shell, in the present folder."""
    return subprocess.run(
        ["sh", "-c", command],
        env=Workshop.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def printed(text: str, label: str) -> str:
    """Return what stands behind a label, of the one line that has it."""
    (command,) = [line.partition(label)[2] for line in text.splitlines() if label in line]
    return command


OPTIONS = ("--rl.lr=3e-4", "--stages.0.name=first stage", "--output-dir", "runs/new run")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dry_run_prints_the_start_of_the_run_that_it_describes(
    here: Workshop, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCSTAR_DATA_DIR", "my data")
    world = ["--world", f"1x{ranks}"] if ranks > 1 else []
    start = printed(here.succeed("train", "my coin.toml", *OPTIONS, "--dry-run", *world).stdout, "start:  ")
    assert start.startswith("ROCSTAR_DATA_DIR='my data' ")
    monkeypatch.delenv("ROCSTAR_DATA_DIR")  # it was set for the first command alone
    ended = paste(f"{start} --dry-run --json")
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout.splitlines()[0])
    assert shown["recipe"]["rl"]["lr"] == 3e-4 and shown["recipe"]["stages"][0]["name"] == "first stage"
    assert shown["world"]["ranks_per_node"] == ranks
    assert printed("\n".join(shown["plan"]), "start:  ") == start
    assert not Path("runs/new run").exists()


def test_the_last_words_of_a_run_open_its_page_and_a_chat(here: Workshop, run: str) -> None:
    ended = here.succeed("train", run, "--output-dir", RUN, "--resume")
    command = f"exec {printed(ended.stdout, 'look into it: ')} --port 0"
    with WarmProcess(["sh", "-c", command], env=Workshop.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("view: http://")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    chat = paste(f"{printed(ended.stdout, 'talk with it: ')} --prompt 'Toss 12'")
    assert chat.returncode == 0 and chat.stdout, chat.stderr


def of_an_interrupted_run(run: str) -> str:
    options, rest = build_parser().parse_known_args(["train", run, "--rl.lr=1e-3", "--output-dir", RUN])
    return printed(interrupted(options, rest), "go on with --resume: ")


def of_an_alarm(run: str) -> str:
    told = Told()
    live(Path("runs/alarmed run"), planted("repetition", first=10, steps=20), told)
    return told.notes[0].partition("More: ")[2]


def of_a_trajectory(name: str) -> Callable[[str], str]:
    def get(run: str) -> str:
        found = RunReader(RunIndex([Path(RUN)]).runs, reveal=False).conversation("my coin", STEPS, "step_000001", 0)
        return f"{found[name]}" + (" --prompt 'Toss 12'" if name == "chat" else "")

    return get


def of_two_evaluations(run: str) -> str:
    reader = RunReader(RunIndex([Path(RUN)]).runs, reveal=False)
    return str(reader.paired(("my coin", "0"), ("my coin", "4"))["command"])


def of_a_manifest(run: str) -> str:
    (start,) = read_manifest(Path(RUN))
    words = ["/old/bin/rocstar", "train", run, "--stages.0.name=first stage"]
    return command_of_start({**start, "command": words}) + " --dry-run"


@pytest.mark.parametrize(
    ("get", "words"),
    [
        (of_an_interrupted_run, "is complete; nothing to do"),
        (of_an_alarm, "20 RL steps"),
        (of_a_trajectory("replay"), "step 1"),
        (of_a_trajectory("chat"), ""),
        (of_two_evaluations, "heldout"),
        (of_a_manifest, "--stages.0.name=first stage"),
        (lambda run: pip_command("--dry-run", "--no-index", "my coin"), "Invalid requirement: 'my coin'"),
    ],
)
def test_a_printed_command_starts_what_it_says(run: str, get: Callable[[str], str], words: str) -> None:
    ended = paste(get(run))
    assert words in ended.stdout + ended.stderr, ended
    assert ended.returncode in (0, 1) and "Traceback" not in ended.stderr, ended.stderr
