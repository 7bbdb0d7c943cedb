"""The warm Python stands for a Python: what a command sees, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .warm_python import FOLDER, PREFIX, Order, WarmProcess, open_door, remove_abandoned, warm

DEADLINE_S = 300.0


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    told: dict[str, object] = {"capture_output": True, "text": True, "timeout": DEADLINE_S} | options
    return subprocess.run([str(warm().executable), *arguments], check=False, **told)  # type: ignore[call-overload, no-any-return]


def test_a_command_has_its_arguments_environment_folder_and_open_files(tmp_path: Path) -> None:
    program = (
        "import os, sys; print(sys.argv[1:], os.environ, os.getcwd(), input()); print('no', file=sys.stderr)"
    )
    ended = run("-c", program, "a", "b c", env={"LC_ALL": "C.UTF-8"}, cwd=tmp_path, input="read\n")
    assert ended.stdout == f"['a', 'b c'] environ({{'LC_ALL': 'C.UTF-8'}}) {tmp_path} read\n"
    assert (ended.returncode, ended.stderr) == (0, "no\n")


def test_a_program_may_come_in_by_standard_input() -> None:
    assert run("-", "a", input="import sys; print(sys.argv)").stdout == "['-', 'a']\n"


def test_it_has_imported_nothing_of_ours_and_all_of_the_others() -> None:
    program = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    modules = run("-c", program).stdout
    assert "'torch'" in modules and "'rocstar'" not in modules and "'tests'" not in modules


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit; atexit.register(print, 'bye')", 0),
    ],
)
def test_it_ends_as_a_python_ends(program: str, code: int) -> None:
    theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    ended = run("-c", program)
    assert ended.returncode == theirs.returncode == code
    assert ended.stdout == theirs.stdout
    assert ended.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]


def test_a_signal_reaches_the_command_and_its_end_is_the_clients() -> None:
    program = "import signal, time; print('up', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [str(warm().executable), "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=DEADLINE_S)[1]
        assert process.returncode == -signal.SIGINT


def test_a_signal_that_comes_before_the_command_began_is_not_lost() -> None:
    order = json.dumps({"arguments": ["-c", ""], "environment": {}, "cwd": "/"}).encode()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [len(order).to_bytes(8, "little")], [])
        ours.sendall(order + bytes([signal.SIGKILL]))
        assert Order(theirs).arguments == ["-c", ""]
        assert theirs.recv(64) == bytes([signal.SIGKILL])


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_who_waits_for_a_killed_command_finds_it_gone(end: signal.Signals) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [str(warm().executable), "-c", program]
    with WarmProcess(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(end)
        assert process.wait(DEADLINE_S) == -end
        assert pid != process.pid and not Path(f"/proc/{pid}").exists()


def test_who_ends_first_takes_the_command_along() -> None:
    program = "import time; print('up', flush=True); time.sleep(600)"
    command = [str(warm().executable), "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.read() == "", "closed by the end of the last who holds it"
    assert run("-c", "print(1)").stdout == "1\n"


MAKER = """
from tests import warm_python

warm_python.COMMON = ()
print(warm_python.warm().folder, flush=True)
input()
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, None])
def test_the_folder_goes_however_its_maker_ends(
    end: signal.Signals | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("w")  # short, for the socket
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    with subprocess.Popen(
        [sys.executable, "-c", MAKER],
        cwd=Path(__file__).parents[1],
        env=environment | {"TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as maker:
        assert maker.stdout is not None
        folder = Path(maker.stdout.readline().strip())
        assert folder.parent == place and (folder / "socket").exists()
        if end is signal.SIGINT:
            os.killpg(maker.pid, end)  # as a terminal does
        elif end is not None:
            maker.send_signal(end)
        left = maker.communicate("", timeout=DEADLINE_S)[0]
    assert left == "", "closed by the end of the last who holds it"
    assert not list(place.iterdir())


def test_folders_of_killed_processes_are_removed_and_no_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("w")
    killed, alive, begun, other = (place / name for name in (f"{PREFIX}k", f"{PREFIX}a", f"{PREFIX}b", "k"))
    for folder in (killed, alive, begun, other):
        folder.mkdir()
    for folder in (killed, other):
        open_door(folder).close()
    with open_door(alive):
        remove_abandoned(place)
        assert {folder.name for folder in place.iterdir()} == {alive.name, begun.name, other.name}
