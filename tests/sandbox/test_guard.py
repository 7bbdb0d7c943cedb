"""How the supervisor is built and confined, what starts its zygotes, and how it claims users."""

import asyncio
import ctypes
import os
import platform
import shlex
import socket
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import rocstar.sandbox
from rocstar.sandbox.doctor.facts import read
from rocstar.sandbox.doctor.layers import KEPT, PROTECTIONS
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, Status

from .. import needs
from .errors import sandbox_error
from .watching import starter_of, until

FOLDER = Path(rocstar.sandbox.__file__).parent
EMBEDDED = FOLDER.parent / "engine/inference/embedded"
BUILT = [FOLDER / "_supervisor", FOLDER / "_places.so", *FOLDER.glob("_native*.so"), *EMBEDDED.glob("_decode*.so")]
SANITIZED = pytest.mark.skipif("ROCSTAR_SUPERVISOR" in os.environ, reason="sanitizers have their own checks")
LONG = "print('x' * (2 << 20))\nfor n in range(40): open(str(n), 'w').write('x' * 100_000)"
"""Its answer is made in a thread of the supervisor, and its files are removed in another."""


def readelf(*words: str) -> str:
    needs.commands("readelf")
    return subprocess.run(["readelf", "-W", *words], capture_output=True, text=True, check=True).stdout


@SANITIZED
@pytest.mark.parametrize("file", BUILT, ids=lambda file: file.name.partition(".")[0])
def test_what_is_built_is_hardened(file: Path) -> None:
    segments, dynamic = readelf("-l", str(file)), readelf("-d", str(file))
    assert "GNU_RELRO" in segments and "NOW" in dynamic
    [stack] = [line for line in segments.splitlines() if "GNU_STACK" in line]
    assert " RW " in stack
    symbols = readelf("--dyn-syms", str(file))
    assert "__stack_chk_fail" in symbols
    if not file.name.startswith("_decode"):  # which calls nothing that the C library has a checked form of
        assert "_chk@" in symbols.replace("__stack_chk_fail@", "")
    if file.name == "_supervisor":
        assert "Flags: NOW PIE" in dynamic


@SANITIZED
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction is of x86-64")
def test_a_function_that_is_called_by_address_begins_with_endbr64() -> None:
    """The property of the whole file depends on the C library's start files, which a distribution builds."""
    for file in BUILT:
        if (name := file.name.partition(".")[0]) in ("_native", "_decode"):
            start = ctypes.cast(getattr(ctypes.CDLL(str(file)), f"PyInit_{name}"), ctypes.c_void_p)
            assert start.value is not None
            assert ctypes.string_at(start.value, 4) == b"\xf3\x0f\x1e\xfa"


@SANITIZED
async def test_every_thread_of_the_supervisor_is_confined() -> None:
    limits = Limits(output_bytes=4 << 20, files=64)
    async with SandboxPool() as pool:
        result = await pool.run(ExecRequest(code=LONG, limits=limits))
        assert result.status is Status.OK, result.stderr
        tasks = f"/proc/{pool.supervisor_pid}/task"
        await until(lambda: len(os.listdir(tasks)) >= 3)
        for thread in os.listdir(tasks):
            lines = read(f"{tasks}/{thread}/status").splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            allowed = sum(1 << bit for bit in KEPT.values())
            sets = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
            assert not any(held & ~allowed for held in sets)
        assert set(pool.built.split("+")) == set(PROTECTIONS)


async def test_the_starter_of_zygotes_has_no_descriptor_of_the_supervisor() -> None:
    """Its client's socket would stay open, and its users claimed, for as long as the starter lives."""
    async with SandboxPool() as pool:
        assert set(os.listdir(f"/proc/{starter_of(pool)}/fd")) == {"0", "1", "2", "3"}


async def test_programs_and_zygotes_go_first_when_memory_is_short() -> None:
    """Where mounts are read-only, too."""
    async with SandboxPool() as pool:
        scores = [int(read(f"/proc/{pid}/oom_score_adj")) for pid in (pool.supervisor_pid, pool.zygotes["stdlib"][-1])]
        assert scores[0] < 500 <= scores[1]


# --- users -----------------------------------------------------------------------------------------------


def pool_of(tmp_path: Path, mounts: str) -> SandboxPool:
    """A pool whose supervisor has mounts of its own, changed by a line of the shell before it starts."""
    if os.geteuid() != 0:
        needs.ROOT.skip()
    needs.commands("unshare", "mount")
    pool = SandboxPool(max_live=1)
    options = pool._restarter.options
    program = tmp_path / "supervisor"
    inner = f'{mounts} && exec {shlex.quote(options.program)} "$@"'
    program.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} supervisor "$@"\n')
    program.chmod(0o755)
    pool._restarter.options = replace(options, program=str(program))
    return pool


FRESH = "mount -t tmpfs none /run"


async def test_a_pool_claims_users_in_a_folder_of_roots(tmp_path: Path) -> None:
    async with pool_of(tmp_path, FRESH) as pool:
        assert "uid" in pool.isolation.split("+") and "shared_users" not in pool.isolation


@pytest.mark.parametrize(
    "made",
    [
        "mkdir -m 777 /run/rocstar",
        "mkdir -m 700 /run/rocstar && chown 65534 /run/rocstar",
        "mkdir -m 700 /run/other && ln -s other /run/rocstar",
        "touch /run/rocstar",
    ],
    ids=["others write", "another's", "a link", "a file"],
)
async def test_a_folder_of_claims_that_is_not_roots_alone_is_refused(tmp_path: Path, made: str) -> None:
    with sandbox_error("no_isolation", r"^/run/rocstar is no folder of root's.*remove it$", retryable=False):
        async with pool_of(tmp_path, f"{FRESH} && {made}"):
            pass


async def test_a_pool_that_can_claim_no_users_says_so(tmp_path: Path) -> None:
    read_only = " && ".join(f"mount -t tmpfs -o ro none {folder}" for folder in ("/run", "/var/lib"))
    async with pool_of(tmp_path, read_only) as pool:
        assert "uid+shared_users" in pool.isolation
    fallback = "mount -t tmpfs -o ro none /run && mount -t tmpfs none /var/lib"
    async with pool_of(tmp_path, fallback) as pool:
        assert "shared_users" not in pool.isolation


async def test_users_are_claimed_whoever_binds_names_and_are_free_again_afterwards() -> None:
    """Any user may bind an abstract socket's name. Pools of root once claimed users by these."""
    if os.geteuid() != 0:
        needs.ROOT.skip()
    users = []
    with ExitStack() as names:
        for number in range(256):
            taken = names.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            with suppress(OSError):  # another's already
                taken.bind(f"\0rocstar.users.{number}")
        for _ in range(2):
            async with SandboxPool(max_live=1) as one, SandboxPool(max_live=1) as other:
                asks = (pool.run("import os; print(os.getuid())") for pool in (one, other))
                users.append({result.stdout for result in await asyncio.gather(*asks)})
    assert len(users[0]) == len(users[1]) == 2
