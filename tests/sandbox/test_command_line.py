"""What a shell and a terminal see of `rocstar sandbox`: Ctrl-C, unread output, mistakes, slow starts."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocstar.sandbox import cli, command_line, proctree
from rocstar.sandbox.fabric import cli as fabric_cli
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import SandboxError

from .conftest import ProgramFile

COMMAND = [sys.executable, "-c", "import sys; from rocstar.sandbox.cli import main; sys.exit(main())"]
PATIENCE_S = 300.0


class Terminal:
    """A process on a terminal of its own, where Ctrl-C reaches all of its group, as in a shell."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(COMMAND[0], [*COMMAND, *arguments], {**os.environ, "COLUMNS": "200"})
        self.text = ""

    def until(self, pattern: str) -> None:
        """Reads until the text matches."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            assert self._read(), f"it ended and said {self.text!r}"

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def ended(self) -> int:
        """Its exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.text
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], PATIENCE_S)[0]:
            raise AssertionError(f"it says nothing more than {self.text!r}")
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:  # the terminal is closed
            return False
        self.text += data.decode().replace("\r\n", "\n")
        return bool(data)


def lines_after_the_key(terminal: Terminal) -> list[str]:
    return terminal.text.rpartition("^C")[2].strip().splitlines()


RUN = ("run", "FILE", "--wall-s", "3600")
BENCH = ("bench", "--seconds", "3600", "--stdlib-only")


@pytest.mark.parametrize(("arguments", "descendants"), [*((RUN, number) for number in range(1, 5)), (BENCH, 4)])
def test_ctrl_c_ends_a_command_in_one_line(program: ProgramFile, arguments: tuple[str, ...], descendants: int) -> None:
    """Whatever it has started by then: supervisor, starter, zygote, program."""
    path = program("while True: pass")
    terminal = Terminal(*(path if word == "FILE" else word for word in arguments))
    deadline = time.monotonic() + PATIENCE_S
    while len(proctree.tree([terminal.pid])) <= descendants:
        assert time.monotonic() < deadline
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert lines_after_the_key(terminal) == ["rocstar sandbox: interrupted"]


def test_ctrl_c_ends_the_attack_suite_in_one_line() -> None:
    terminal = Terminal("doctor", "--attack")
    terminal.until(r"\w")
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert lines_after_the_key(terminal) == ["rocstar sandbox: interrupted"]


def test_ctrl_c_drains_a_service_and_says_so() -> None:
    terminal = Terminal("serve", "--port", "0", "--flavours", "stdlib")
    terminal.until("programs at a time")
    shown = terminal.text.splitlines()
    assert shown[0] == "rocstar sandbox serve: starting stdlib"
    assert re.fullmatch(r"rocstar sandbox serve: stdlib is warm after \d+\.\d s", shown[1])
    assert "serving on http://127.0.0.1:" in shown[2]
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert lines_after_the_key(terminal) == ["rocstar sandbox serve: ending; 0 calls in flight may end within 30 s"]


def test_ctrl_c_ends_a_service_that_is_not_ready_yet() -> None:
    terminal = Terminal("serve", "--port", "0")
    terminal.until("starting")
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    (line,) = lines_after_the_key(terminal)
    assert line in (
        "rocstar sandbox serve: interrupted before it was ready",
        "rocstar sandbox serve: ending; 0 calls in flight may end within 30 s",
    )


def test_a_worker_says_that_it_waits_for_redis_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    terminal = Terminal("worker", "--flavours", "stdlib", "--redis", f"unix://{tmp_path}/redis.sock")
    terminal.until("waiting for Redis")
    shown = terminal.text.splitlines()
    assert shown[0] == f"rocstar sandbox worker: starting stdlib for Redis at unix://{tmp_path}/redis.sock"
    assert "stdlib is warm after" in shown[1]
    assert f"waiting for Redis at unix://{tmp_path}/redis.sock, 0 s of 300 s: " in shown[2]
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    (line,) = lines_after_the_key(terminal)
    assert line.startswith("rocstar sandbox worker: ended after no calls")


def test_a_worker_whose_patience_is_over_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"unix://user:secret@{tmp_path}/redis.sock"
    assert cli.main(["worker", "--flavours", "stdlib", "--redis", url, "--patience-s", "0"]) == 2
    said = capsys.readouterr().err
    assert f"Redis at unix://{tmp_path}/redis.sock has not served this node" in said
    assert "secret" not in said and "Traceback" not in said


def test_a_service_without_its_redis_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any interpreter is started, and by a line that hides the password and names the way out."""
    monkeypatch.setattr(fabric_cli, "REACH_S", 0.2)

    async def started(_: SandboxPool) -> None:
        raise AssertionError("a pool was started")

    monkeypatch.setattr(SandboxPool, "__aenter__", started)
    url = f"unix://user:secret@{tmp_path}/redis.sock"
    said: list[str] = []
    monkeypatch.setattr(command_line, "print_status", lambda text, verb="": said.append(text))
    assert cli.main(["serve", "--port", "0", "--flavours", "stdlib", "--redis", url]) == 2
    started_with, message = said
    assert started_with.startswith("starting stdlib for sessions; other calls go to Redis at unix://")
    assert message.startswith(f"Redis at unix://{tmp_path}/redis.sock did not answer within 0.2 s (")
    assert "Start it, fix the URL, or omit --redis" in message and "secret" not in message


def test_a_program_from_the_terminal_is_asked_for() -> None:
    terminal = Terminal("run", "-")
    terminal.until("reading a program from the terminal until Ctrl-D")
    terminal.type(b"print(6 * 7)\n\x04")
    assert terminal.ended() == 0
    assert "\n42\n" in terminal.text


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["run", "FILE"], ["run", "--help"]])
def test_output_that_nobody_reads_ends_quietly(arguments: list[str], program: ProgramFile) -> None:
    path = program("print('x' * 100)")
    arguments = [path if argument == "FILE" else argument for argument in arguments]
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run([*COMMAND, *arguments], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (ended.stderr, ended.returncode in (141, 0)) == ("", True)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\nlines"), "two lines"),
        (FileNotFoundError(2, "No such file or directory", "/nowhere"), "/nowhere: No such file or directory"),
        (OSError("odd"), "odd"),
        (SandboxError("why", kind="closed", retryable=False), "why"),
    ],
)
def test_a_mistake_is_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert command_line.run_command(work) == 2
    assert capsys.readouterr().err == f"rocstar sandbox: {line}\n"


def test_waiting_is_told_at_first_and_then_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = command_line.Waiting("worker", "Redis at x", 300.0)
    for waited_s in (0.0, 1.0, 4.9, 5.1, 9.9, 10.2):
        waiting.tried(waited_s, "refused")
    shown = re.findall(r"(\d+) s of 300 s: refused", capsys.readouterr().err)
    assert shown == ["0", "5", "10"]


def test_each_flavour_is_told_once_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter((10.0, 10.25, 13.0))
    starting = command_line.Starting("serve", "a, b", clock=lambda: next(times))
    for flavour in ("a", "a", "b", "a"):
        starting.warm(flavour)
    assert capsys.readouterr().err == (
        "rocstar sandbox serve: starting a, b\n"
        "rocstar sandbox serve: a is warm after 0.2 s\n"
        "rocstar sandbox serve: b is warm after 3.0 s\n"
    )
