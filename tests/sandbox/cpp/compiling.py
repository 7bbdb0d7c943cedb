"""What the tests of C++ programs share: how one is run, what a compilation leaves, and slow sources."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocstar.sandbox import proctree
from rocstar.sandbox.child import cpp
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Status

from ...needs import COMPILER
from ...patience import PATIENCE_S
from ..watching import own_processes

MARKS = [
    pytest.mark.asyncio(loop_scope="module"),
    COMPILER.unless(cpp.offered()),
]

Run = Callable[..., Awaitable[ExecResult]]

# Doubles its work with each level: the compiler needs far longer than any limit here.
SLOW_TO_COMPILE = """
template <int N, int M> struct Tree {
  static const long v = Tree<N - 1, 2 * M>::v + Tree<N - 1, 2 * M + 1>::v;
};
template <int M> struct Tree<0, M> { static const long v = M; };
int main() { return Tree<24, 1>::v; }
"""

HEADERS = """
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
"""


def runner(pool: SandboxPool) -> Run:
    async def run(code: str, *, stdin: str = "", **limits: Any) -> ExecResult:
        request = ExecRequest(code=code, stdin=stdin, limits=Limits(**limits), flavour="cpp")
        return await pool.run(request)

    return run


def compilers(pool: SandboxPool) -> list[int]:
    """Processes of the pool that are neither its supervisor nor a zygote."""
    known = own_processes(pool)
    return [process.pid for process in proctree.tree([pool.supervisor_pid]) if process.pid not in known]


async def until(true: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (the end of a process that is not ours to wait for)
            await asyncio.sleep(0.005)


def is_compile_error(result: ExecResult) -> bool:
    ended = (result.status, result.exit_code, result.wall_s, result.stdout, result.value)
    return ended == (Status.ERROR, 1, 0.0, "", None) and result.stderr != ""
