"""C++ programs that try what they may not."""

import signal
from pathlib import Path

import pytest

from rocstar.sandbox.types import Status

from .compiling import HEADERS, MARKS, Run

pytestmark = MARKS

BREACH = Path("/tmp/rocstar-breach-cpp")


def breached() -> bool:
    return BREACH.exists()


@pytest.mark.parametrize(
    "attempt",
    [
        "fork()",
        "vfork()",
        "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)",
        'system("/bin/true") == 0 ? 0 : -1',
        'execl("/bin/sh", "sh", "-c", "echo breach", (char*)nullptr)',
        'execl("./program", "program", (char*)nullptr)',
        'syscall(SYS_execveat, AT_FDCWD, "/bin/true", nullptr, nullptr, 0)',
        'syscall(SYS_execveat, open("/bin/true", O_PATH), "", nullptr, nullptr, AT_EMPTY_PATH)',
        'syscall(SYS_execveat, open("/usr/lib/os-release", O_RDONLY), "", nullptr, nullptr, AT_EMPTY_PATH)',
        "socket(AF_INET, SOCK_STREAM, 0)",
        "socket(AF_UNIX, SOCK_STREAM, 0)",
        'open("/etc/passwd", O_RDONLY)',
        'open("/etc/hostname", O_RDONLY)',
        'open("/root", O_RDONLY)',
        'open("/proc/self/environ", O_RDONLY)',
        'open("/usr/bin/g++", O_RDONLY)',
        'open("/usr/include/stdio.h", O_RDONLY)',
        'open("main.cpp", O_RDONLY)',
        'open("/./tmp/rocstar-breach-cpp", O_CREAT | O_WRONLY, 0600)',
        'open("../breach", O_CREAT | O_WRONLY, 0600)',
        'mkdir("/./tmp/rocstar-breach-cpp", 0700)',
        'symlink("/etc/passwd", "link")',
        'mkfifo("fifo", 0600)',
        "kill(getppid(), SIGKILL)",
        "kill(-1, SIGKILL)",
        "kill(0, SIGKILL)",
        "setsid()",
        "setpgid(0, 0)",
        "prctl(PR_SET_PDEATHSIG, 0)",
        "prctl(PR_SET_DUMPABLE, 1)",
        "prctl(PR_SET_CHILD_SUBREAPER, 1)",
        "fcntl(0, F_SETOWN, getppid())",
        'syscall(SYS_memfd_create, "x", 0)',
        "setrlimit(RLIMIT_STACK, &unlimited)",
        "setrlimit(RLIMIT_AS, &unlimited)",
        "setuid(0)",
    ],
)
async def test_a_program_may_not(run: Run, attempt: str) -> None:
    result = await run(
        f"{HEADERS}\nint main() {{ rlimit unlimited{{RLIM_INFINITY, RLIM_INFINITY}}; (void)unlimited;"
        f' errno = 0; long got = {attempt}; printf("%s", got < 0 ? "refused" : "BREACH"); }}'
    )
    assert (result.status, result.stdout) == (Status.OK, "refused"), result.stderr
    assert not breached()


async def test_a_mode_stays_as_it_is(run: Run) -> None:
    result = await run(
        f'{HEADERS}\nint main() {{ struct stat before, after; close(open("f", O_CREAT | O_RDWR, 0600));'
        ' stat("f", &before); int got = chmod("f", 04777); stat("f", &after);'
        ' printf("%d %d", got, before.st_mode == after.st_mode); }'
    )
    assert (result.status, result.stdout) == (Status.OK, "0 1"), result.stderr


@pytest.mark.parametrize("call", ["SYS_ptrace", "SYS_unshare", "SYS_mount", "SYS_bpf", "SYS_io_uring_setup"])
async def test_no_honest_program_calls(run: Run, call: str) -> None:
    result = await run(f"{HEADERS}\nint main() {{ return syscall({call}, 0, 0, 0, 0, 0); }}")
    assert (result.status, result.signal) == (Status.DENIED, signal.SIGSYS)


async def test_a_file_of_ones_own_cannot_be_executed(run: Run) -> None:
    result = await run(
        f'{HEADERS}\nint main() {{ int fd = open("f", O_CREAT | O_RDWR, 0700); write(fd, "\\x7f" "ELF", 4);'
        ' close(fd); fd = open("f", O_RDONLY); char name[] = "f"; char* arguments[] = {name, nullptr};'
        ' syscall(SYS_execveat, fd, "", arguments, nullptr, AT_EMPTY_PATH); perror("exec"); }'
    )
    assert "exec: Permission denied" in result.stderr
