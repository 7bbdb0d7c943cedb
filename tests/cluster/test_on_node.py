"""One command on one node: its exit code comes back, and nothing of it outlives the launcher's connection."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cluster" / "on_node.py"
DEADLINE_S = 300.0
FAMILY = """
import os, subprocess, sys, time
# one in a session of its own, and one that has lost its parent
apart = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
between = "import subprocess as s; print(s.Popen(['sleep', '1000'], stdout=-3, stderr=-3).pid)"
orphan = int(subprocess.run([sys.executable, "-c", between], capture_output=True, text=True).stdout)
print(os.getpid(), apart.pid, orphan, flush=True)
if sys.argv[1:]:
    sys.exit(int(sys.argv[1]))
time.sleep(1000)
"""


def start(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    order = {"command": [sys.executable, *arguments], "folder": "/", "environment": environment or {}}
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    return process


def pids(process: "subprocess.Popen[bytes]") -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def assert_gone(found: Sequence[int]) -> None:
    assert len(found) == 3
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_end_of_the_connection_ends_all_that_was_started() -> None:
    with start("-c", FAMILY) as process:
        found = pids(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 143
    assert_gone(found)


def test_a_signal_does_too() -> None:
    with start("-c", FAMILY) as process:
        found = pids(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
    assert_gone(found)


def test_what_the_command_leaves_behind_goes_with_it_and_its_exit_code_comes_back() -> None:
    with start("-c", FAMILY, "7") as process:
        found = pids(process)
        assert process.wait(DEADLINE_S) == 7
    assert_gone(found)


def test_what_is_of_no_use_to_start_again_ends_with_2_whatever_torchrun_says() -> None:
    code = "import os, pathlib, sys; pathlib.Path(os.environ['ROCSTAR_MISTAKE']).touch(); sys.exit(1)"
    with start("-c", code) as process:
        assert process.wait(DEADLINE_S) == 2


def test_folder_and_environment_are_the_orders() -> None:
    code = "import os; print(os.getcwd(), os.environ['SECRET'])"
    with start("-c", code, environment={"SECRET": "s p"}) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"/ s p\n" and process.wait(DEADLINE_S) == 0
        assert b"s p" not in Path(f"/proc/{os.getpid()}/cmdline").read_bytes()


def test_a_command_that_is_not_there_is_a_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, SCRIPT], stdin=subprocess.PIPE) as process:
        order = {"command": ["/nowhere"], "folder": "/", "environment": {}}
        process.communicate(json.dumps(order).encode() + b"\n", timeout=DEADLINE_S)
    assert process.returncode == 2 and "/nowhere" in capfd.readouterr().err
