"""Pools for the tests. `run` is the short way to execute one program in the standard library's flavour.

They live for a module: its tests also show that one program leaves nothing for the next.

`make sanitize` runs these tests with a supervisor and a native module that were built with sanitizers:
ROCSTAR_SUPERVISOR is the program to start, ROCSTAR_ZYGOTE_ENVIRONMENT what zygotes need to load the module.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox.pool import process
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, ExecResult, Limits

from ..patience import PATIENCE_S

Run = Callable[..., Awaitable[ExecResult]]
ProgramFile = Callable[[str], str]

if program := os.environ.get("ROCSTAR_SUPERVISOR"):
    process.SupervisorOptions.__init__.__kwdefaults__["program"] = program
process.ENVIRONMENT.update(json.loads(os.environ.get("ROCSTAR_ZYGOTE_ENVIRONMENT", "{}")))


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The usual limit of a program, 4 s, is an assertion about the machine where a test says nothing of time.
    Tests of the clock give a limit of their own, and those of the defaults have their own `time_enough`."""
    monkeypatch.setitem(Limits.__init__.__kwdefaults__, "wall_s", PATIENCE_S)
    usual_s = DEFAULT_LIMITS.wall_s
    object.__setattr__(DEFAULT_LIMITS, "wall_s", PATIENCE_S)
    yield
    object.__setattr__(DEFAULT_LIMITS, "wall_s", usual_s)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool() as pool:
        yield pool


def runner(pool: SandboxPool) -> Run:
    async def run(code: str, *, stdin: str = "", seed: int | None = None, **limits: Any) -> ExecResult:
        return await pool.run(ExecRequest(code=code, stdin=stdin, seed=seed, limits=Limits(**limits)))

    return run


@pytest.fixture(scope="module")
def run(pool: SandboxPool) -> Run:
    return runner(pool)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["all layers", "system calls alone"])
async def guarded(request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    """Runs a program with every layer, and again with none but the filter of system calls."""
    alone = request.param == "system calls alone"
    without = ("landlock", "uid", "namespaces", "cgroup") if alone else ()
    async with SandboxPool(without=without, allow_no_isolation=alone) as pool:
        yield runner(pool)


@pytest.fixture
def program(tmp_path: Path) -> ProgramFile:
    """Writes a program and returns the path of its file."""

    def write(code: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(code)
        return str(path)

    return write
