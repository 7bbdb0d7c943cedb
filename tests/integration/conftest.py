"""A recipe that trains in seconds: the question is a coin toss, the answer 1 or 2, in part through the tool.

After sixty steps of the cold start the model writes well-formed answers and calls. It can only guess the
right answer, so that most groups have a signal.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main

from ..kept_pool import kept_pools
from ..warm_python import WarmProcess, warm

TOOL = "python_code_with_standard_io"
DEADLINE_S = 300.0
Completed = subprocess.CompletedProcess[str]


def conversation(rng: random.Random, *, with_call: bool) -> dict[str, Any]:
    value = rng.choice("12")
    question = {"role": "user", "content": f"Toss {rng.randint(10, 99)}"}
    answer = {"role": "assistant", "content": f"<answer>\\boxed{{{value}}}</answer>"}
    if not with_call:
        return {"messages": [question, answer]}
    arguments = json.dumps({"name": TOOL, "arguments": {"code": f"print({value})", "input": ""}})
    call = {"role": "assistant", "content": f"<tool_call>\n{arguments}\n</tool_call>"}
    return {"messages": [question, call, {"role": "tool", "name": TOOL, "content": value}, answer]}


def write_jsonl(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@dataclass(frozen=True)
class Workshop:
    """A folder with the recipe and its data, in which every command runs."""

    directory: Path

    @property
    def recipe(self) -> Path:
        return self.directory / "coin.toml"

    def main(self, *arguments: str) -> Completed:
        """Run `rocstar ARGUMENTS` in this process, which has imported torch and started a sandbox."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.directory), redirect_stdout(out), redirect_stderr(err), kept_pools():
            code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def succeed(self, *arguments: str) -> Completed:
        """Run `main`; check that its exit code is 0."""
        ended = self.main(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    def run(self, *arguments: str, ranks: int = 0) -> Completed:
        """Run `rocstar ARGUMENTS` in a child process, or `rocstar.train ARGUMENTS` under torchrun."""
        return subprocess.run(
            self.command(*arguments, ranks=ranks),
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def start(self, *arguments: str, python: str = "") -> subprocess.Popen[str]:
        """Start `rocstar ARGUMENTS` in a child process; its messages are on `stderr`."""
        start = subprocess.Popen if python else WarmProcess
        return start(
            self.command(*arguments, python=python),
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # A shell starts background jobs with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def interrupt(self, line_start: str, number: int, *arguments: str, python: str = "") -> tuple[int, str]:
        """Send a signal when a message begins with `line_start`; return exit code and messages."""
        with self.start(*arguments, python=python) as process:
            assert process.stderr is not None
            seen = ""
            for line in process.stderr:
                seen += line
                if line.startswith(line_start):
                    process.send_signal(number)
            return process.wait(), seen

    @staticmethod
    def command(*arguments: str, ranks: int = 0, python: str = "") -> list[str]:
        python = python or str(warm().executable)
        if ranks:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            launcher += ["--no-python", python, "-m", "rocstar.train"]
        else:
            launcher = ["-c", "import sys; from rocstar.train.cli import main; sys.exit(main())"]
        return [python, *launcher, *arguments]

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment without settings of pytest and coverage, and without errors for warnings."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHONWARNINGS"))}


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    directory = tmp_path_factory.mktemp("workshop")
    rng = random.Random(0)
    rows = [conversation(rng, with_call=bool(k % 2)) for k in range(200)]
    write_jsonl(directory / "chat.jsonl", rows)
    tasks = [{"question": f"Toss {k}", "answer": str(1 + k % 2)} for k in range(10, 26)]
    write_jsonl(directory / "tasks.jsonl", tasks[4:])
    write_jsonl(directory / "heldout.jsonl", tasks[:4])
    shutil.copyfile(Path(__file__).with_name("coin.toml"), directory / "coin.toml")
    return Workshop(directory)


@pytest.fixture(scope="session")
def finished(workshop: Workshop) -> Path:
    """The directory of a complete run; a test must not change it."""
    directory = workshop.directory / "finished"
    ended = workshop.succeed("train", "coin.toml", "--output-dir", str(directory))
    directory.with_suffix(".stderr").write_text(ended.stderr)
    return directory


@pytest.fixture(scope="session")
def read_rows() -> Callable[..., list[dict[str, Any]]]:
    """Read the rows of a run's metrics.jsonl, of one phase or all."""

    def read(directory: Path, phase: str | None = None) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if phase in (None, row["phase"])]

    return read
