"""What hostile programs try. Every attempt runs with all layers and again with the filter of system calls
alone, must really have been made (no ModuleNotFoundError), and must leave a sandbox that still works. Many
more programs and what holds each of them: sandbox/attacks/."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Status

from .. import needs
from ..patience import PATIENCE_S
from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")

BREACH = Path("/tmp/rocstar-breach")

SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*map(ctypes.c_long, arguments))
    return result if result >= 0 else -ctypes.get_errno()
"""


def number(x86_64: int, arm64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else arm64


async def attempt(run: Run, code: str, **limits: float) -> ExecResult:
    result = await run(code, **limits)
    assert "ModuleNotFoundError" not in result.stderr and "SyntaxError" not in result.stderr, result.stderr
    after = await run("print(1)")
    assert (after.status, after.stdout) == (Status.OK, "1\n")
    return result


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.fork()", "PermissionError"),
        ("import os; os.execv('/bin/true', ['true'])", "PermissionError"),
        ("import os; os.posix_spawn('/bin/true', ['true'], {})", "PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "PermissionError"),
        ("import multiprocessing as m; m.get_context('fork').Process().start()", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import socket; socket.socket(socket.AF_UNIX)", "PermissionError"),
        ("import socket; socket.socketpair(type=socket.SOCK_DGRAM)", "PermissionError"),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')", "not permitted"),
        ("import os; os.kill(-1, 9)", "PermissionError"),
        ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
        ("import os; os.killpg(0, 9)", "PermissionError"),
        ("import os; os.kill(1, 0)", "PermissionError"),
        ("import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, 1)", "PermissionError"),
        ("import os; os.pidfd_open(os.getppid())", "PermissionError"),
        ("import os; os.memfd_create('x')", "PermissionError"),
        ("import os; os.setuid(0)", "PermissionError"),
        ("import os; os.nice(-5)", "PermissionError"),
        ("import os; os.sched_setaffinity(0, {0})", "PermissionError"),
        ("import os; os.chroot('/')", "PermissionError"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 50, 1 << 50))", "not permitted|not allowed|Error"),
        (
            "import threading as t\nwhile True: t.Thread(target=t.Event().wait, daemon=True).start()",
            "can't start new thread",
        ),
    ],
)
async def test_refused_with_an_error(guarded: Run, code: str, reason: str) -> None:
    result = await attempt(guarded, code)
    assert result.status is Status.ERROR
    assert any(part in result.stderr for part in reason.split("|")), result.stderr


@pytest.mark.parametrize(
    "code",
    [
        # Written so that no library leads them to the program's own /tmp (csrc/sandbox/places.cpp).
        "open('/./tmp/rocstar-breach', 'w')",
        "open('/./dev/shm/rocstar-breach', 'wb')",
        "open('/./tmp/rocstar-breach', 'a')",
        "open('../rocstar-breach', 'x')",
        "open('/dev/zero', 'w')",
        "import os; os.mkdir('/./tmp/rocstar-breach')",
        "import os; os.symlink('/etc/passwd', '/tmp/rocstar-breach')",
        "import os; os.unlink('/etc/hostname')",
        "import os; os.rename('/etc/hostname', '/tmp/rocstar-breach')",
        "import os; os.mkfifo('/tmp/rocstar-breach')",
        "import os; os.truncate('/etc/hostname', 0)",
    ],
)
async def test_nothing_can_be_written_outside_the_scratch_directory(guarded: Run, code: str) -> None:
    result = await attempt(guarded, code)
    assert result.status is Status.ERROR
    refusals = ("Read-only file system", "Permission denied", "Operation not permitted", "cross-device")
    assert any(refusal in result.stderr for refusal in refusals), result.stderr
    assert not BREACH.exists()  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ptrace", f"call({number(101, 117)}, 0, 0, 0, 0)"),
        ("process_vm_readv", f"call({number(310, 270)}, 1, 0, 0, 0, 0, 0)"),
        ("unshare", f"call({number(272, 97)}, 0x10000000)"),
        ("setns", f"call({number(308, 268)}, 0, 0)"),
        ("mount", f"call({number(165, 40)}, 0, 0, 0, 0, 0)"),
        ("bpf", f"call({number(321, 280)}, 0, 0, 0)"),
        ("perf_event_open", f"call({number(298, 241)}, 0, 0, 0, 0, 0)"),
        ("userfaultfd", f"call({number(323, 282)}, 1)"),
        ("io_uring_setup", "call(425, 1, 0)"),
        ("keyctl", f"call({number(250, 219)}, 0, 0)"),
        ("memfd_secret", "call(447, 0)"),
    ],
)
async def test_killed_at_once(guarded: Run, name: str, code: str) -> None:
    result = await attempt(guarded, f"{SYSCALL}print('before', flush=True)\n{code}\nprint('{name} returned')")
    assert (result.status, result.signal) == (Status.DENIED, signal.SIGSYS)
    assert result.stdout == "before\n"


async def test_clone_makes_threads_only(guarded: Run) -> None:
    clone, clone3, new_user = number(56, 220), 435, 0x10000000
    result = await attempt(
        guarded, f"{SYSCALL}call({clone}, 17), call({clone}, {new_user} | 17), call({clone3}, 0, 0)"
    )
    assert result.value == "(-1, -1, -38)"  # EPERM, EPERM, ENOSYS


ENDINGS: list[tuple[str, dict[str, float], Status, int | None]] = [
    *(
        (f"{prelude}\nwhile True: pass", {"wall_s": 0.2}, Status.TIMEOUT, signal.SIGKILL)
        for prelude in (
            "",
            "import signal; signal.alarm(0)",
            "import signal; signal.setitimer(signal.ITIMER_REAL, 0)",
            "import signal\nfor s in set(signal.Signals) - {9, 19}:\n    signal.signal(s, signal.SIG_IGN)",
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))",
            "import sys; sys.setswitchinterval(1000)",
        )
    ),
    # The clock needs no help from the interpreter.
    *(
        (code, {"wall_s": 0.2, "memory_bytes": 4 << 30}, Status.TIMEOUT, signal.SIGKILL)
        for code in (
            "10**10**8",
            "import time; time.sleep(60)",
            "'a' * 10**7 in 'b' * 10**9",
            "import os; os.read(os.pipe()[0], 1)",
        )
    ),
    (
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_DFL)\nwhile True: pass",
        *({"cpu_s": 1, "wall_s": 30}, Status.TIMEOUT, signal.SIGXCPU),
    ),
    (
        "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(5)",
        *({}, Status.SIGNALED, signal.SIGALRM),
    ),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", {}, Status.SIGNALED, signal.SIGKILL),
    ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", {}, Status.SIGNALED, signal.SIGTERM),
    ("import ctypes; ctypes.string_at(0)", {}, Status.SIGNALED, signal.SIGSEGV),
    ("import os; os.abort()", {}, Status.SIGNALED, signal.SIGABRT),
    ("try:\n    bytearray(1 << 40)\nexcept MemoryError: pass", {}, Status.OK, None),
]


@pytest.mark.parametrize(("code", "limits", "status", "signum"), ENDINGS)
async def test_a_program_ends_by_its_limit_or_its_signal(
    guarded: Run, code: str, limits: dict[str, float], status: Status, signum: int | None
) -> None:
    result = await attempt(guarded, code, **limits)
    assert (result.status, result.signal, result.exit_code is None) == (status, signum, signum is not None)


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(1 << 40)",
        "x = []\nwhile True:\n    x.append(bytearray(1 << 20))",
        "x = 'a'\nwhile True:\n    x += x",
        "x = [0] * (1 << 33)",
    ],
)
async def test_memory_is_limited(guarded: Run, code: str) -> None:
    result = await attempt(guarded, f"print('kept')\n{code}", memory_bytes=256 << 20)
    assert result.status is Status.MEMORY_LIMIT
    assert (result.stdout, result.stderr.splitlines()[-1]) == ("kept\n", "MemoryError")
    assert result.peak_memory_bytes < 300 << 20


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_is_cut_and_then_stopped(guarded: Run, stream: str) -> None:
    endless = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    flood = await asyncio.wait_for(attempt(guarded, endless, output_bytes=10_000, wall_s=300), PATIENCE_S)
    assert flood.status is Status.OUTPUT_LIMIT and getattr(flood, f"{stream}_truncated")
    assert getattr(flood, stream).count("x") == 10_000
    more = await attempt(guarded, f"import sys; sys.{stream}.write('a' + 'x' * 9_999 + 'z')", output_bytes=10_000)
    assert more.status is Status.OK and getattr(more, f"{stream}_truncated")
    kept = "a" + "x" * 4_999 + "\n... [1 bytes cut] ...\n" + "x" * 4_999 + "z"
    assert getattr(more, stream) == kept
    exact = await attempt(guarded, f"import sys; sys.{stream}.write('x' * 10_000)", output_bytes=10_000)
    assert (len(getattr(exact, stream)), getattr(exact, f"{stream}_truncated")) == (10_000, False)


async def test_a_flood_of_value_is_stopped(guarded: Run) -> None:
    cut = await attempt(guarded, "'x' * 20_000", output_bytes=10_000)
    assert cut.value == "'" + "x" * 4_999 + "\n... [10002 bytes cut] ...\n" + "x" * 4_999 + "'"
    flood = await attempt(guarded, "'x' * 10**7", output_bytes=10_000)
    assert flood.status is Status.OK and flood.value is not None and len(flood.value) <= 10_000
    written = await attempt(guarded, "import os\nos.write(3, b'x' * 10**7)", output_bytes=10_000)
    assert written.status is Status.OUTPUT_LIMIT


@pytest.mark.parametrize(
    ("code", "status", "value"),
    [
        ("import os; os.write(3, b'forged'); 1", Status.OK, "forged1"),
        ("import os; os.write(3, b'F\\0\\0\\0\\0'); 1 / 0", Status.ERROR, "F\0\0\0\0"),
        ("import os; os.close(3); 5", Status.ERROR, None),
        ("import os; os.closerange(0, 100); os._exit(0)", Status.OK, None),
        ("import os; os._exit(86)", Status.MEMORY_LIMIT, None),
        ("import os; os._exit(125)", Status.ERROR, None),
    ],
)
async def test_forging_changes_no_ending_for_the_better(
    guarded: Run, code: str, status: Status, value: str | None
) -> None:
    result = await attempt(guarded, code)
    assert (result.status, result.value) == (status, value)


async def test_only_the_four_descriptors_are_open(guarded: Run) -> None:
    code = (
        "import fcntl\nopen_fds = []\n"
        "for fd in range(300):\n    try:\n"
        "        fcntl.fcntl(fd, fcntl.F_GETFD)\n        open_fds.append(fd)\n"
        "    except OSError:\n        pass\n"
        "open_fds"
    )
    assert (await attempt(guarded, code)).value == "[0, 1, 2, 3]"


async def test_the_environment_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "swordfish")
    async with SandboxPool() as pool:
        run = await pool.run(ExecRequest(code="import os; dict(os.environ), os.getcwd()"))
    assert run.value is not None and "swordfish" not in run.value and "'HOME': '/" in run.value
    async with SandboxPool(without=("scratch",)) as pool:
        where = await pool.run(ExecRequest(code="import os; os.getcwd()"))
    assert where.value is not None and os.getcwd() not in where.value


PEEK = """
import os
def peek(path):
    try:
        with open(path, 'rb') as file:
            return 'read' if file.read(1) else 'empty'
    except OSError as error:
        return type(error).__name__
"""


async def test_landlock_hides_files_and_other_processes(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    secret.chmod(0o644)
    paths = [str(secret), "/etc/passwd", "/etc/shadow", f"/proc/{os.getpid()}/environ", "/proc/self/maps", __file__]
    async with SandboxPool() as pool:
        result = await pool.run(ExecRequest(code=f"{PEEK}[peek(path) for path in {paths!r}]"))
    if "landlock" not in result.isolation:
        needs.LANDLOCK.skip()
    assert result.value is not None
    answers = result.value.strip("[]").replace("'", "").split(", ")
    assert set(answers) <= {"PermissionError", "FileNotFoundError"}, dict(zip(paths, answers, strict=True))


@pytest.mark.privileged
async def test_root_keeps_no_power_even_without_landlock() -> None:
    if os.geteuid() != 0:
        needs.ROOT.skip()
    code = PEEK + f"[peek('/proc/{os.getpid()}/environ'), os.getgroups(), os.getuid()]"
    async with SandboxPool(without=("landlock", "namespaces"), allow_no_isolation=True) as pool:
        result = await pool.run(ExecRequest(code=code))
        shadow = await pool.run(ExecRequest(code=PEEK + "peek('/etc/shadow')"))
    assert result.value is not None and result.value.startswith("['PermissionError'")
    if "uid" in result.isolation:
        assert "[], 10000" in result.value
        assert shadow.value == "'PermissionError'"
