"""Flavours of a user's own: what is declared is imported beforehand, from an environment of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.sandbox.child.flavours import Flavour
from rocstar.sandbox.child.user_flavours import prepend_site, read_flavours
from rocstar.sandbox.pool import process
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, SandboxError, Status

from ..patience import PATIENCE_S
from .errors import sandbox_error
from .watching import until

SITE = f"own/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
REQUEST = ExecRequest(code="import ours; 1", flavour="own")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    site = tmp_path / SITE
    site.mkdir(parents=True)
    (site / "ours.py").write_text("from time import monotonic_ns\nIMPORTED = monotonic_ns()\n")
    (site / "msgspec.py").write_text("OWN = True\n")  # a package that rocstar has as well
    (site / "later.py").write_text("x = 5\n")
    return tmp_path


def declare(folder: Path, text: str) -> str:
    path = folder / "flavours.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(path)


def declared(environment: Path, *imports: str) -> dict[str, Flavour]:
    """The flavour `own` of the environment, with these imports."""
    names = ", ".join(f'"{name}"' for name in imports)
    text = f'[flavour.own]\nimports = [{names}]\nenvironment = "own"\n'
    return dict(read_flavours(declare(environment, text)))


async def test_its_imports_are_there_before_and_its_packages_come_first(environment: Path) -> None:
    own = declared(environment, "ours")
    code = "import later, msgspec, ours\nours.IMPORTED, msgspec.OWN, later.x"
    async with SandboxPool(("own",), declared=own, max_live=2) as pool:
        seen = {(await pool.run(ExecRequest(code=code, flavour="own"))).value for _ in range(2)}
    assert len(seen) == 1, "it was imported once, in the zygote"
    assert next(iter(seen)).endswith("True, 5)"), seen  # type: ignore[union-attr]


STARTS_THREADS = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
threading.Thread(target=time.sleep, args=(3600,)).start()
ThreadPoolExecutor(1).submit(time.sleep, 0)
"""
USES_THREADS = """
import ours, threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool: print(pool.submit(pow, 2, 3).result(), threading.main_thread().is_alive())
"""


async def test_a_package_that_starts_threads_leaves_none_to_its_programs(environment: Path) -> None:
    """A fork has one thread. A program that ended would wait for the others, or find itself at its end."""
    (environment / SITE / "ours.py").write_text(STARTS_THREADS)
    own = declared(environment, "ours")
    async with SandboxPool(("own",), declared=own, max_live=2) as pool:
        for code, printed in (("print(1)", "1\n"), (USES_THREADS, "8 True\n")):
            result = await pool.run(ExecRequest(code=code, flavour="own"))
            assert (result.status, result.stdout, result.stderr) == (Status.OK, printed, "")


async def test_a_call_waits_for_its_own_flavour_where_the_pool_does_not(environment: Path) -> None:
    site = environment / SITE
    (site / "slow.py").write_text("open(__file__ + '.pipe', 'rb', 0).read(1)\n")
    (site / "broken.py").write_text("raise RuntimeError('boom')\n")
    os.mkfifo(site / "slow.py.pipe")
    held = os.open(site / "slow.py.pipe", os.O_RDWR)
    text = "".join(f'[flavour.{name}]\nimports = ["{name}"]\nenvironment = "own"\n' for name in ("slow", "broken"))
    own = read_flavours(declare(environment, text))
    try:
        async with SandboxPool(("stdlib", "slow", "broken"), declared=own, start_warm=False) as pool:
            assert pool.isolation
            slow = asyncio.create_task(pool.run(ExecRequest(code="6 * 7", flavour="slow")))
            assert (await pool.run("6 * 7")).value == "42"
            with pytest.raises(SandboxError, match="importing broken raised RuntimeError: boom"):
                await pool.run(ExecRequest(code="1", flavour="broken"))
            assert not slow.done()
            os.write(held, b"x")
            assert (await slow).value == "42"
    finally:
        os.close(held)


async def test_a_package_that_is_missing_is_named_with_its_place(environment: Path) -> None:
    own = declared(environment, "nowhere_at_all")
    with sandbox_error("missing_import", "'own' needs nowhere_at_all: install it in own"):
        async with SandboxPool(("own",), declared=own):
            pass


async def test_a_package_that_only_pythonpath_has_is_told_of(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = environment / "mine"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "inner.py").write_text("x = 7\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    own = declared(environment, "deeper.inner")
    with pytest.raises(SandboxError, match=f"PYTHONPATH has it in {folder}, which the sandbox does not") as caught:
        async with SandboxPool(("own",), declared=own):
            pass
    assert caught.value.kind == "missing_import" and "a .pth file" in str(caught.value)
    (environment / SITE / "mine.pth").write_text(f"{folder}\n")
    async with SandboxPool(("own",), declared=own, max_live=1) as pool:
        assert (await pool.run(ExecRequest(code="from deeper import inner; inner.x", flavour="own"))).value == "7"


async def refused(environment: Path, text: str, names: tuple[str, ...] = ("own",)) -> SandboxError:
    """What a pool says whose flavour imports a module with this text."""
    (environment / SITE / "unfit.py").write_text(text)
    own = declared(environment, "unfit")
    with pytest.raises(SandboxError) as caught:
        async with SandboxPool(names, declared=own):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def deep():\n    raise RuntimeError('boom')\ndeep()\n", "RuntimeError: boom"),
        ("raise SystemExit(5)\n", "SystemExit: 5"),
        ("x = (\n", "SyntaxError: '(' was never closed ("),
        ("from json import nothing\n", "ImportError: cannot import name 'nothing' from 'json'"),
        ("class Own(BaseException): pass\nraise Own('mine')\n", "Own: mine"),
    ],
)
async def test_an_import_that_raises_is_tried_once_and_told_with_its_place(
    environment: Path, capfd: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    error = await refused(environment, text)
    message = str(error)
    assert (error.kind, error.retryable) == ("zygote_start", False)
    assert message.startswith("flavour 'own' cannot start: importing unfit raised ") and told in message
    assert "remove it from the flavour's imports" in message and "unfit.py" in message
    assert "zygote.py" not in message and "importlib" not in message
    assert "Traceback" not in capfd.readouterr().err


async def test_a_package_that_crashes_is_named_after_two_like_deaths(
    environment: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """... and whoever is killed from outside is tried once more, for that may pass."""
    crash = "import os, signal\nos.kill(os.getpid(), {})\n"
    error = await refused(environment, crash.format("signal.SIGSEGV"), ("stdlib", "own"))
    assert "the own zygote died while starting, 2 times: it was killed by signal 11 (" in str(error)
    assert "while importing unfit; mend it, or leave the flavour out" in str(error) and not error.retryable
    told = capfd.readouterr().err
    assert told.count("Fatal Python error: Segmentation fault") == 2 and "unfit.py" in told
    error = await refused(environment, crash.format("signal.SIGKILL"))
    assert "3 times: it was killed by signal 9 (" in str(error) and error.retryable
    error = await refused(environment, "import os\nos._exit(7)\n")
    assert "2 times: it exited with code 7 while importing unfit; " in str(error)


async def outcome_of(pool: SandboxPool, request: ExecRequest) -> str | SandboxError | None:
    try:
        return (await pool.run(request)).value
    except SandboxError as error:
        return error


async def test_a_flavour_that_cannot_be_imported_any_more_fails_alone(environment: Path) -> None:
    """Its package was changed, say: nobody else's programs and sessions end of that."""
    module = environment / SITE / "ours.py"
    own = declared(environment, "ours")
    async with SandboxPool(("stdlib", "own"), declared=own, max_live=2) as pool:
        session = await pool.open_session(flavour="stdlib")
        await session.run("x = 3")
        assert await outcome_of(pool, REQUEST) == "1"
        module.write_text("raise RuntimeError('mended soon')")
        os.kill(pool.zygotes["own"][-1], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(error := await outcome_of(pool, REQUEST), SandboxError):
                pass  # it was forked before
        assert (error.kind, error.retryable) == ("zygote_start", True)
        assert "RuntimeError: mended soon" in str(error) and "the next call for it tries again" in str(error)
        assert await outcome_of(pool, ExecRequest(code="2", flavour="stdlib")) == "2"
        assert (await session.run("x")).value == "3"
        module.write_text("")
        async with asyncio.timeout(PATIENCE_S):
            while await outcome_of(pool, REQUEST) != "1":
                pass
        assert pool.restarts == 0


async def test_an_import_that_hangs_when_it_is_done_again_is_named_and_tried_later(environment: Path) -> None:
    """Calls of its flavour waited for it without end."""
    module = environment / SITE / "ours.py"
    own = declared(environment, "ours")
    pool = SandboxPool(("stdlib", "own"), declared=own, max_live=2)
    pool._restarter.options = replace(pool._restarter.options, zygote_start_s=1.0)
    async with pool:
        assert await outcome_of(pool, REQUEST) == "1"
        module.write_text("import threading\nthreading.Event().wait()\n")
        os.kill(pool.zygotes["own"][-1], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            told = "the own zygote was not ready after 1 s while importing ours: it hangs, or"
            while told not in str(error := await outcome_of(pool, REQUEST)):
                pass  # it was forked before, or was slower than a second before the import
        assert isinstance(error, SandboxError) and (error.kind, error.retryable) == ("zygote_start", True)
        assert await outcome_of(pool, ExecRequest(code="2", flavour="stdlib")) == "2"
        assert pool.restarts == 0


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_flavour_that_cannot_be_keeps_no_supervisor_from_its_work(environment: Path, hangs: bool) -> None:
    """One that died was not replaced until every flavour could be imported again."""
    module = environment / SITE / "ours.py"
    own = declared(environment, "ours")
    async with SandboxPool(("stdlib", "own"), declared=own, max_live=2) as pool:
        module.write_text("import threading\nthreading.Event().wait()\n" if hangs else "raise OSError('boom')\n")
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: pool.restarts)
        waiting = asyncio.create_task(outcome_of(pool, REQUEST))
        async with asyncio.timeout(PATIENCE_S):
            assert await outcome_of(pool, ExecRequest(code="2", flavour="stdlib")) == "2"
            assert (await (await pool.open_session(flavour="stdlib")).run("3")).value == "3"
            if not hangs:
                assert "OSError: boom" in str(await waiting)
        assert waiting.done() != hangs and pool.restarts == 1
    await waiting


async def test_an_import_that_hangs_is_named(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT_S", 0.2)
    error = await refused(environment, "import threading\nthreading.Event().wait()\n")
    assert "not ready after 0 s: own. " in str(error) and error.retryable


def test_a_mistake_of_a_declared_flavour_ends_the_command_with_two(environment: Path) -> None:
    site = environment / SITE
    (site / "unfit.py").write_text("raise RuntimeError('boom')\n")
    path = declare(environment, '[flavour.own]\nimports = ["unfit"]\nenvironment = "own"\n')
    code = "import sys; from rocstar.sandbox.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--port=0", "--flavours=stdlib", f"--flavour-file={path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("rocstar sandbox: flavour 'own' cannot start: importing unfit raised RuntimeError: boom")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert list(read_flavours(declare(tmp_path, "\ufeff[flavour.own]\n"))) == ["own"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[flavour.numeric]\n", "use a name of ASCII letters other than"),
        ("[flavour.'a b']\n", "use a name of ASCII letters"),
        ("[flavour.own]\nimport = []\n", "has import. The keys are imports and environment"),
        ("[flavour.own]\nimports = 'ours'\n", "Use a list of module names"),
        ("[flavour.own]\nimports = ['os; x']\n", "Use a list of module names"),
        ("[flavour.own]\nenvironment = 'nowhere'\n", "has no lib/python"),
        ("[flavour.own]\nenvironment = 1\n", "Use the path of a virtual environment"),
        ("flavour = 1\n", "Write only tables"),
        ("[flavours.own]\n", "has flavours. Write only tables"),
        ("", "has no flavour. Write only tables"),
        ("[", "cannot parse"),
        ("# gro\udcdf", "cannot parse .*: .*. Fix the TOML and save the file as UTF-8"),
    ],
)
def test_a_wrong_declaration_says_what_to_mend(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_flavours(declare(tmp_path, text))


def test_a_flavours_packages_come_behind_the_standard_library_and_before_those_beside_rocstar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standard = os.path.dirname(os.__file__)
    inside = [standard, f"{standard}/lib-dynload"]
    monkeypatch.setattr(sys, "path", [*inside, f"{standard}/site-packages", "/usr/lib/python3/dist-packages"])
    prepend_site(["/beside"])
    prepend_site(["/own", "/named by own"])
    assert sys.path[:5] == [*inside, "/own", "/named by own", "/beside"] and len(sys.path) == 7
