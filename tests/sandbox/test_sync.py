"""`run`: from a script, a thread, a notebook and a forked process; and the names of `rocstar.sandbox`."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rocstar.sandbox as package
from rocstar.sandbox import Limits, SandboxError, Status, run, sync

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    sync.close_pools()


def script(code: str) -> str:
    """What a Python process of its own prints, which must end by itself."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_a_program_is_run_and_its_end_told() -> None:
    result = run("print(input())\n6 * 7", stdin="9")
    assert (result.status, result.stdout, result.value) == (Status.OK, "9\n", "42")
    assert run("1 / 0").stderr.endswith("ZeroDivisionError: division by zero\n")
    assert run("while True: pass", limits=Limits(wall_s=0.1)).status is Status.TIMEOUT
    values = {run("import random; random.random()", seed=1).value for _ in range(2)}
    assert values == {"0.13436424411240122"}


async def test_it_runs_beside_a_loop_that_runs_as_in_a_notebook() -> None:
    assert run("print(1)").stdout == "1\n"


def test_threads_may_call_it_together() -> None:
    with ThreadPoolExecutor(4) as threads:
        values = [result.value for result in threads.map(run, map(str, range(12)))]
    assert values == [str(number) for number in range(12)]


def test_it_starts_again_after_it_was_closed() -> None:
    sync.close_pools()
    sync.close_pools()
    assert run("1").value == "1"


def test_the_flavour_follows_from_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    request = package.ExecRequest(code="import numpy")
    assert sync.flavour_of(request) == "numeric"
    monkeypatch.setattr(sync, "installed_flavours", lambda: ("stdlib", "cpp"))
    assert sync.flavour_of(request) == "stdlib", "a flavour whose packages are missing is not chosen"


@pytest.mark.parametrize(
    ("options", "wrong", "message"),
    [
        ({"code": 5}, TypeError, "code is of type int. Pass a str"),
        ({"code": None}, TypeError, "code is None. Pass a str"),
        ({"code": "1", "stdin": b"1"}, TypeError, "stdin is of type bytes"),
        ({"code": "1", "limits": 4}, TypeError, r"Pass a Limits, for example Limits\(wall_s=2.0\)"),
        ({"code": "1", "seed": "x"}, TypeError, "seed is 'x'"),
        ({"code": "1", "flavour": None}, TypeError, "flavour is None"),
        ({"code": "1", "flavour": "ruby"}, SandboxError, "unknown flavour 'ruby'. Choose from stdlib, numeric"),
        ({"code": "1", "files": ["a"]}, TypeError, "Pass a dict"),
        ({"code": "1", "files": {"a": "text"}}, TypeError, "files has str to str. Pass a dict of str to bytes"),
        ({"code": "1", "fetch": "a.png"}, TypeError, "fetch is 'a.png'. Pass a tuple of names"),
    ],
)
def test_what_no_program_can_be_given_is_told(options: Any, wrong: type[Exception], message: str) -> None:
    with pytest.raises(wrong, match=message):
        run(**options)


def test_nothing_is_left_when_the_process_ends() -> None:
    code = (
        "from rocstar.sandbox import run, sync\n"
        "run('1')\n"
        "print(*(pool.supervisor_pid for pool in sync._background()._pools.values()))\n"
    )
    pids = script(code).split()
    assert len(pids) == 1 and not Path("/proc", pids[0]).exists()


def test_what_a_killed_supervisor_leaves_is_removed_at_the_end_of_the_process() -> None:
    """Where no thread can be made any more."""
    code = (
        "from pathlib import Path\n"
        "from rocstar.sandbox import run, sync\n"
        "run('1')\n"
        "pool, = sync._background()._pools.values()\n"
        "scratch = pool._restarter.facts['scratch']\n"
        "if scratch: Path(scratch, 'left').touch()\n"
        "print(scratch)\n"
    )
    folder = script(code).strip()
    assert not folder or not Path(folder).exists()


def test_a_forked_process_starts_its_own() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
from rocstar.sandbox import run, sync
print(run("1").value, flush=True)
child = os.fork()
if child == 0:
    print(run("2").value, flush=True)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(run("3").value)
"""
    assert script(code) == "1\n2\n3\n"


def test_a_forked_process_that_lives_on_does_not_keep_the_pool_from_its_end() -> None:
    code = """
import os, signal, warnings
warnings.simplefilter("ignore")
from rocstar.sandbox import run, sync
run("1")
child = os.fork()  # it has the socket of the pool
if child == 0:
    signal.pause()
(pool,) = sync._background()._pools.values()
process = pool._restarter._supervisor._process
sync.close_pools()
os.kill(child, signal.SIGKILL)
print(process.returncode)
"""
    assert script(code) == "0\n", "the supervisor ended by itself: it was not killed after a wait"


def test_ctrl_c_kills_the_program_and_the_next_one_runs() -> None:
    code = """
import os, signal, threading
from rocstar.sandbox import Limits, run, sync
run("1")
(pool,) = sync._background()._pools.values()

def interrupt():
    while not pool.in_flight:
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    run("while True: pass", limits=Limits(wall_s=3600.0, cpu_s=3600))
except KeyboardInterrupt:
    print("interrupted", run("2").value)
while pool.in_flight:
    pass
"""
    assert script(code) == "interrupted 2\n"


def test_every_name_is_there_and_none_is_imported_before_it_is_asked_for() -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'Pool'"):
        _ = package.Pool  # type: ignore[attr-defined]
    code = "import sys, rocstar.sandbox; print(sorted({'asyncio', 'socket', 'ast'} & set(sys.modules)))"
    assert script(code) == "[]\n"


def test_each_package_says_that_it_is_typed() -> None:
    folders = [path.parent.name for path in ROOT.glob("*/py.typed")]
    assert sorted(folders) == ["engine", "kernels", "sandbox", "train"]
