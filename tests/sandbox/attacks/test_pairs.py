"""No pair of programs passes a number, whoever the two are; and no system call is left untried.

allowed_calls.txt names every system call that the filter lets through: what the filter asks of its
arguments, and the pairs that try it, or in brackets what it touches that nobody shares. A call that joins the
filter, and a condition that leaves it, fail here until somebody has said which pair shows
that nothing passes.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from rocstar.sandbox import _native
from rocstar.sandbox.attacks.channels import attempt
from rocstar.sandbox.attacks.pair import LIMITS, STDLIB, Run, calls_of, flavours_of, is_offered, load_pairs, output_of
from rocstar.sandbox.pool.pool import SandboxPool

from ... import needs
from .world_readable import world_readable_python

HERE = Path(__file__).parent
PAIRS = load_pairs()
CLOSED = [name for name, pair in PAIRS.items() if not pair.open and is_offered(pair)]
CLOSED_HERE = [name for name, pair in PAIRS.items() if pair.closed_with and is_offered(pair)]
LAYERS = needs.Need("root, with namespaces and a user per program", "run as root, outside of a container")
NOBODY = 65534
HEADERS = needs.Need("the kernel's headers of x86-64", "apt-get install linux-libc-dev")


def call_names() -> dict[int, str]:
    for path in (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")):
        if path.exists() and os.uname().machine == "x86_64":
            return {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", path.read_text())}
    HEADERS.skip()


def conditions() -> dict[str, str]:
    """What the filter asks of each call that it allows, as allowed_calls.txt has it."""
    names = call_names()
    found = {}
    for number, kinds in _native.allowed_calls().items():
        if len(set(kinds.values())) > 1:
            asks = " | ".join(f"{kind}: {kinds[kind]}" for kind in sorted(kinds))
        elif len(kinds) == 6:
            asks = next(iter(kinds.values()))
        else:
            asks = f"{'+'.join(sorted(kinds))}: {next(iter(kinds.values()))}".strip()
        found[names[number]] = asks
    return found


def table() -> dict[str, tuple[str, str]]:
    text = (HERE / "allowed_calls.txt").read_text()
    rows = re.findall(r"^(\w+)\n    asks: ?(.*)\n    tried by: (.*)\n", text, re.M)
    return {name: (asks, tried) for name, asks, tried in rows}


def test_every_call_that_the_filter_allows_is_tried() -> None:
    allowed, tried = conditions(), {name: asks for name, (asks, _) in table().items()}
    assert allowed == tried, "say in allowed_calls.txt which pair tries the call, and what the filter now asks"


def test_the_table_names_pairs_that_exist_and_use_the_call() -> None:
    aliases = {
        "fchdir": "chdir", "lstat": "stat", "readlinkat": "readlink", "faccessat2": "faccessat",
        "getdents": "getdents64", "fstat": "stat", "mkdir": "mkdirat", "unlink": "unlinkat", "open": "openat",
        "creat": "openat",
    }  # fmt: skip
    for call, (_, tried) in table().items():
        names = re.sub(r"\(.*?\)", "", tried).split()
        assert names or "(" in tried, f"{call} is tried by nothing"
        for name in names:
            assert {call, aliases.get(call)} & set(PAIRS[name].through), f"{name} does not try {call}"


def test_no_pair_lost_its_call() -> None:
    """What a pair tries is in the table, or refused by now."""
    refused = {"capget", "fadvise64", "statfs", "fstatfs"}
    assert {call for pair in PAIRS.values() for call in pair.through} <= table().keys() | refused


def sessions_of(pool: SandboxPool) -> Run:
    """Run each program as the first cell of a new session, if its flavour has sessions."""
    call = calls_of(pool)

    async def run(code: str, flavour: str = STDLIB) -> str:
        if flavour != STDLIB:
            return await call(code, flavour)
        session = await pool.open_session(limits=LIMITS, flavour=flavour)
        try:
            result = await session.run(code)
            return output_of(code, result)
        finally:
            await session.close()

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pools() -> AsyncIterator[tuple[SandboxPool, SandboxPool]]:
    flavours = flavours_of(PAIRS[name] for name in (*CLOSED, *CLOSED_HERE))
    async with SandboxPool(flavours, max_live=3) as one, SandboxPool(flavours, max_live=3) as other:
        yield one, other


@pytest.mark.parametrize("who", ["call and call", "session and call", "call and session", "two pools"])
@pytest.mark.parametrize("name", [*CLOSED, *CLOSED_HERE])
@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_passes(pools: tuple[SandboxPool, SandboxPool], name: str, who: str) -> None:
    one, other = pools
    if not PAIRS[name].closed_with <= set((await one.run("1")).isolation.split("+")):
        LAYERS.skip()
    ways: dict[str, tuple[Run, Run]] = {
        "call and call": (calls_of(one), calls_of(one)),
        "session and call": (sessions_of(one), calls_of(one)),
        "call and session": (calls_of(one), sessions_of(one)),
        "two pools": (calls_of(one), calls_of(other)),
    }
    result = await attempt(PAIRS[name], *ways[who])
    assert not result.passed, result


@pytest.fixture(scope="module")
def public_python() -> Iterator[Path]:
    if os.geteuid() != 0:
        needs.ROOT.skip()
    with world_readable_python() as python:
        if python is None:
            needs.PUBLIC_PYTHON.skip()
        yield python


@asynccontextmanager
async def other_user(python: Path) -> AsyncIterator[Run]:
    """Runs programs in a pool of a user without rights."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-P", "-m", "rocstar.sandbox.attacks.channels", "--lines"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    assert process.stdin is not None and process.stdout is not None
    said, asked = process.stdout, process.stdin
    assert "seccomp" in json.loads(await said.readline())

    async def run(code: str, flavour: str) -> str:
        asked.write(json.dumps((code, flavour)).encode() + b"\n")
        answer: str = json.loads(await said.readline())
        return answer

    try:
        yield run
    finally:
        asked.close()
        await process.wait()


@pytest.mark.slow
@pytest.mark.privileged
async def test_nothing_passes_between_two_users(public_python: Path) -> None:
    async with AsyncExitStack() as stack:
        flavours = flavours_of(PAIRS[name] for name in CLOSED)
        pool = await stack.enter_async_context(SandboxPool(flavours, max_live=3))
        theirs = await stack.enter_async_context(other_user(public_python))
        for name in CLOSED:
            result = await attempt(PAIRS[name], theirs, calls_of(pool))
            assert not result.passed, (name, result)
