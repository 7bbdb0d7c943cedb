"""The warm Python stands for a Python: what a command sees, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .patience import PATIENCE_S
from .warm_python import FOLDER, WarmProcess, warm


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    given: dict[str, object] = {"capture_output": True, "text": True, "timeout": PATIENCE_S} | options
    return subprocess.run([str(warm().executable), *arguments], check=False, **given)  # type: ignore[call-overload, no-any-return]


def test_a_command_has_its_arguments_environment_folder_and_open_files(tmp_path: Path) -> None:
    program = (
        "import os, sys; print(sys.argv[1:], os.environ, os.getcwd(), input()); print('no', file=sys.stderr)"
    )
    ended = run("-c", program, "a", "b c", env={"LC_ALL": "C.UTF-8"}, cwd=tmp_path, input="read\n")
    assert ended.stdout == f"['a', 'b c'] environ({{'LC_ALL': 'C.UTF-8'}}) {tmp_path} read\n"
    assert (ended.returncode, ended.stderr) == (0, "no\n")


def test_it_has_imported_what_others_wrote_and_nothing_of_ours() -> None:
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


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_before_its_client(end: signal.Signals) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [str(warm().executable), "-c", program]
    with WarmProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(end)
        assert process.wait(PATIENCE_S) == -end
        assert pid != process.pid and not Path(f"/proc/{pid}").exists()


MAKER = """
from tests import warm_python

warm_python.COMMON = ()
print(warm_python.warm().folder, flush=True)
input()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
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
        text=True,
    ) as maker:
        assert maker.stdout is not None
        folder = Path(maker.stdout.readline().strip())
        assert folder.parent == place and (folder / "socket").exists()
        if end is not None:
            maker.send_signal(end)
        left = maker.communicate("", timeout=PATIENCE_S)[0]
    assert left == "", "closed by the end of the last who holds it"
    assert not list(place.iterdir())
