"""A run on a terminal shows its progress; into a pipe it prints plain lines only."""

import contextlib
import fcntl
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.progress import status

from ..warm_python import warm

DEADLINE_S = 300.0
OFTEN = "import rocstar.engine.progress.status as status; status.REFRESHES_PER_S = 20.0; "
PROGRAM = OFTEN + "import sys; from rocstar.train.cli import main; sys.exit(main())"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[│╭╮╰╯─]")
PLAIN = re.compile(
    r"sft \d+/60  loss .*|cold start: \d+ of \d+ greedy answers .*|eval heldout  avg@2 .*|step [1-4]/4  .*"
    r"|two: \d+ of \d+ tasks are not mastered .*"
)
COMMON = ["coin.toml", "--stages.0.steps=1", "--stages.1.steps=1"]


@pytest.fixture
def nothing_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a slow machine from reporting long waits."""
    monkeypatch.setattr(status, "next_report_s", lambda age_s: math.inf)


@contextlib.contextmanager
def on_a_terminal(workshop: Any, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `rocstar ARGUMENTS` on a terminal of 100 columns; yield it and the other end of the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environment = workshop.environment() | {"TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [str(warm().executable), "-c", PROGRAM, *arguments],
        cwd=workshop.directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        os.close(ours)


def read(terminal: int) -> str:
    """Return what was written since the last call, or "" when the writer has ended."""
    ready, _, _ = select.select([terminal], [], [], DEADLINE_S)
    assert ready, f"nothing is drawn for {DEADLINE_S} s"
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        return ""


def watch(process: subprocess.Popen[bytes], terminal: int, wanted: list[str]) -> None:
    """Read until all of `wanted` is shown, in this order; then interrupt the run and read to its end."""
    shown, missing = "", list(wanted)
    while missing and (more := read(terminal)):
        shown += more
        text = " ".join(CONTROL.sub(" ", shown).split())
        while missing and re.search(missing[0], text):
            missing.pop(0)
    assert not missing, f"never shown: {missing}; {CONTROL.sub(' ', shown)[-3000:]}"
    process.send_signal(signal.SIGINT)
    while read(terminal):
        pass


def test_a_terminal_shows_the_inside_of_an_evaluation_and_of_a_step(workshop: Any) -> None:
    """Both are too large to end before they are seen; the run is interrupted then."""
    run = workshop.directory / "watched"
    sizes = ["--eval.samples_per_task=100", "--rl.rollouts_per_task=2000", "--rl.group_size=4"]
    wanted = [
        r"importing torch: \d+s",
        r"starting the sandbox: \d+s",
        r"cold start: \d+ of 60 updates",
        r"evaluation on heldout[^:]*: \d of \d tasks, \d+ of [\d,]+ attempts, \d+ in flight",
        r"step 1: \d of 2 groups, [1-9][\d,]* of 4,000 attempts, [\d,]+ in flight \(.*tokens/s\)",
        r"slowest: s1/\w+/\d+, turn \d+, \d+s, waiting for (the policy|its tools|the judge)( \(\d+s\))?",
    ]
    with on_a_terminal(workshop, "train", *COMMON, *sizes, "--output-dir", str(run)) as (process, terminal):
        watch(process, terminal, wanted)
        assert process.wait(DEADLINE_S) == 130
    log = (run / "logs" / "console.log").read_text()
    assert "\x1b" not in log and "╭" not in log and "in flight" not in log
    assert log.splitlines()[-1].endswith(" ended: interrupted")


def test_a_pipe_gets_plain_lines_and_the_log_has_them_too(finished: Path) -> None:
    messages = finished.with_suffix(".stderr").read_text().splitlines()
    plain = [line for line in messages if PLAIN.fullmatch(line)]
    assert sum(line.startswith("step ") for line in plain) == 4
    assert not any(CONTROL.search(line) for line in messages)
    first, *rest = (finished / "logs" / "console.log").read_text().splitlines()
    assert " started: " in first
    assert [text for line in rest if PLAIN.fullmatch(text := line.partition(" ")[2])] == plain
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in rest)


@pytest.mark.parametrize("verb", ["eval", "rollout"])
@pytest.mark.usefixtures("nothing_is_long")
def test_the_other_verbs_say_nothing_to_a_pipe_while_they_are_short(
    workshop: Any, finished: Path, tmp_path: Path, verb: str
) -> None:
    out = ["--out", str(tmp_path / "out.jsonl"), "--limit=1"] if verb == "rollout" else ["--limit=1"]
    model = str(finished / "checkpoints" / "step_4")
    result = workshop.main(verb, "coin.toml", "--model", model, *out)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.usefixtures("nothing_is_long")
def test_rollouts_into_a_folder_keep_a_log_over_resumes(workshop: Any, finished: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", str(finished / "checkpoints" / "step_4")
    for steps, resume in (("1", []), ("2", ["--resume"])):
        arguments = ["coin.toml", "--model", model, "--out", str(out), "--steps", steps, *resume]
        workshop.succeed("rollout", *arguments)
    lines = [line.partition(" ")[2] for line in (out / "logs" / "console.log").read_text().splitlines()]
    assert [line.partition(" ")[0] for line in lines] == ["started:", "step", "started:", "step"]


def test_a_run_that_fails_leaves_the_reason_in_its_log(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocstar.train.compose import start
    from rocstar.train.recipe.errors import TrainingStopped

    def stopped(run_dir: Path) -> None:
        raise TrainingStopped("no more")

    monkeypatch.setattr(start, "write_report", stopped)
    run = workshop.directory / "stopped"
    arguments = ["--stages.0.steps=0", "--stages.1.steps=0", "--sft.steps=1"]
    result = workshop.main("train", "coin.toml", *arguments, "--output-dir", str(run))
    assert result.returncode == 1
    assert (run / "logs" / "console.log").read_text().splitlines()[-1].endswith(" ended: no more")
