"""What the tests of C++ programs share: how one is run, what a compilation leaves, and slow sources."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocstar.sandbox.child import cpp
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Status

from ...needs import COMPILER

MARKS = [pytest.mark.asyncio(loop_scope="module"), COMPILER.unless(cpp.offered())]

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


def is_compile_error(result: ExecResult) -> bool:
    ended = (result.status, result.exit_code, result.wall_s, result.stdout, result.value)
    return ended == (Status.ERROR, 1, 0.0, "", None) and result.stderr != ""
