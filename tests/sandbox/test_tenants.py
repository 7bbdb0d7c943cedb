"""What one program may do to the calls and sessions of others: nothing that changes how they end."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, ExecRequest, Limits, SandboxError, SessionLost, Status

from .. import needs
from ..patience import PATIENCE_S
from .errors import sandbox_error

MIB = 1 << 20
GROWS_BETWEEN_CELLS = """
import os, threading, time
source = os.open("/dev/urandom", os.O_RDONLY)
threading.Thread(target=os.read, args=(source, 32 << 20), daemon=True).start()
time.sleep(0.01)
"""
"""One call into the kernel, which needs no interpreter lock: it goes on when the cell is over."""


async def until_evicted(pool: SandboxPool, sessions: int) -> None:
    """Waits for evictions: the supervisor looks for them every second, while programs run."""
    async with asyncio.timeout(PATIENCE_S):
        while pool.evictions < sessions:
            await pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=MIB)))


async def test_a_session_that_grows_between_cells_gives_way_and_not_its_neighbour() -> None:
    async with SandboxPool(memory_bytes=128 * MIB) as pool:
        limits = Limits(memory_bytes=64 * MIB)
        neighbour = await pool.open_session(limits=limits)
        await neighbour.run("x = 1")
        grown = [await pool.open_session(limits=limits) for _ in range(6)]
        for session in grown:
            assert (await session.run(GROWS_BETWEEN_CELLS)).status is Status.OK
        await until_evicted(pool, 1)
        assert (await neighbour.run("x")).value == "1"
        lost = [session.lost for session in grown if session.lost is not None]
        assert lost and set(lost) == {"evicted"}
        with pytest.raises(SessionLost):
            await next(session for session in grown if session.lost).run("1")


FILLS_SOCKETS = """
import socket
pairs = []
for _ in range(110):
    pairs.append(socket.socketpair())
    for end in pairs[-1]:
        end.setblocking(False)
        try:
            while True: end.send(b"x" * 65536)
        except BlockingIOError:
            pass
"""
"""Some 40 MiB of the kernel's, by four of the process's own."""


async def test_what_a_session_keeps_in_sockets_counts_as_its_memory() -> None:
    """The kernel counts it for nobody: hundreds of idle sessions took the machine's memory from others."""
    async with SandboxPool(memory_bytes=128 * MIB) as pool:
        limits = Limits(memory_bytes=16 * MIB)
        neighbour = await pool.open_session(limits=limits, owner="few")
        await neighbour.run("x = 1")
        full = []
        for _ in range(4):
            full.append(await pool.open_session(limits=limits, owner="many"))
            assert (await full[-1].run(FILLS_SOCKETS)).status is Status.OK
        await until_evicted(pool, 2)
        assert (await neighbour.run("x")).value == "1"
        assert {session.lost for session in full} <= {"evicted", None}


def memory_group(pid: int) -> tuple[Path, Path] | None:
    """The files of the pool's cgroup that hold its limit and its use."""
    for parent, limit, use in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ):
        for group in Path(parent).rglob(f"rocstar-{pid}"):
            return group / limit, group / use
    return None


def leave_memory(pool: SandboxPool, mib: int) -> None:
    """Lowers the limit of the pool's cgroup to what it uses and so much more."""
    group = memory_group(pool.supervisor_pid)
    assert group is not None
    limit, use = group
    limit.write_text(str(int(use.read_text()) + mib * MIB))


@pytest.mark.privileged
async def test_a_kill_by_the_kernel_below_the_programs_own_limit_is_no_verdict() -> None:
    async with SandboxPool() as pool:
        if "cgroup" not in pool.isolation:
            needs.ROOT.skip()
        await pool.run("print(1)")
        leave_memory(pool, 64)
        with sandbox_error("node_memory", retryable=True):
            await pool.run(
                ExecRequest(code="x = bytearray(b'x') * (400 << 20)", limits=Limits(memory_bytes=500 * MIB))
            )
        assert (await pool.run("print(1)")).stdout == "1\n" and pool.restarts == 0


@pytest.mark.privileged
async def test_what_the_kernel_took_before_is_no_reason_for_anothers_end() -> None:
    """An idle session is taken for want of memory; a program that ends itself later did that itself."""
    async with SandboxPool() as pool:
        if "cgroup" not in pool.isolation:
            needs.ROOT.skip()
        session = await pool.open_session(limits=Limits(memory_bytes=500 * MIB))
        assert (await session.run("x = bytearray(b'x') * (160 << 20)")).status is Status.OK
        leave_memory(pool, 32)
        code = "x = bytearray(b'x') * (96 << 20)"
        taken = await pool.run(ExecRequest(code=code, limits=Limits(memory_bytes=500 * MIB)))
        assert taken.status is Status.OK  # the kernel takes who has most
        with pytest.raises(SessionLost, match="the kernel took it for want of memory"):
            await session.run("1")
        own = await pool.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert own.status is Status.SIGNALED


@pytest.mark.slow
async def test_the_largest_output_of_bytes_that_are_no_text_is_that_calls_own() -> None:
    code = "import os\nfor fd in (1, 2):\n    for _ in range(800): os.write(fd, b'\\xff' * (1 << 16))\n"
    async with SandboxPool() as pool:
        session = await pool.open_session()
        await session.run("x = 1")
        request = ExecRequest(code=code, limits=Limits(output_bytes=MAX_OUTPUT_BYTES, wall_s=300, cpu_s=300))
        result = await pool.run(request)
        assert (result.status, result.stdout_truncated, result.stderr_truncated) == (Status.OK, True, True)
        assert len(result.stdout.encode()) < MAX_OUTPUT_BYTES + 100
        assert (await session.run("x")).value == "1" and pool.restarts == 0


async def test_a_batch_leaves_places_to_others() -> None:
    """It was first come, first served: a call waited for all sixty."""
    order: list[str] = []

    async def batch(pool: SandboxPool, begun: asyncio.Event) -> None:
        sleepers = [ExecRequest(code="import time; time.sleep(0.4)") for _ in range(30)]
        async for _ in pool.run_batch(sleepers):
            order.append("sleeper")
            begun.set()

    async with SandboxPool(max_live=2) as pool:
        begun = asyncio.Event()
        running = asyncio.create_task(batch(pool, begun))
        await begun.wait()
        for _ in range(3):
            assert (await pool.run("print(1)")).stdout == "1\n"
            order.append("other")
        running.cancel()
    # Each of the three waited for one place, which the two sleepers under way had.
    assert order.index("other") <= 6 and order.count("sleeper") <= 14


async def test_a_call_of_the_whole_budget_delays_no_small_one_and_evicts_nobody_for_nothing() -> None:
    budget = 512 * MIB
    async with SandboxPool(max_live=3, memory_bytes=budget) as pool:
        small = Limits(memory_bytes=32 * MIB)
        session = await pool.open_session(limits=small)
        sleeps = "import time; time.sleep(600)"
        limits = Limits(wall_s=900, memory_bytes=400 * MIB)
        busy = asyncio.create_task(pool.run(ExecRequest(code=sleeps, limits=limits)))
        large = asyncio.create_task(pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=budget))))
        result = await pool.run(ExecRequest(code="print(1)", limits=small))
        assert result.stdout == "1\n" and not busy.done() and not large.done()
        assert (await session.run("1")).value == "1" and not busy.done()
        busy.cancel()
        assert (await large).status is Status.OK


async def sleep_as(pool: SandboxPool, owner: str, seconds: float, done: list[str]) -> None:
    """Runs a program of the owner, and notes its end."""
    await pool.run(ExecRequest(code=f"import time; time.sleep({seconds})", owner=owner))
    done.append(owner)


async def test_owners_share_the_places_however_many_calls_each_has() -> None:
    done: list[str] = []
    async with SandboxPool(max_live=2) as pool:
        owners = ["many"] * 40 + ["few"] * 4
        await asyncio.gather(*(sleep_as(pool, owner, 0.1, done) for owner in owners))
    assert "few" not in done[-20:]


async def test_idle_sessions_keep_no_more_than_half_of_the_scratch_room() -> None:
    pool = SandboxPool()
    pool._restarter.options = dataclasses.replace(pool._restarter.options, scratch_bytes=16 * MIB)
    async with pool:
        if not pool._restarter.facts["files"]:
            needs.LANDLOCK.skip()
        modest = await pool.open_session()
        await modest.run("open('a', 'wb').write(b'x' * (1 << 20))")
        greedy = [await pool.open_session() for _ in range(3)]
        for session in greedy:
            await session.run("for n in range(2): open(str(n), 'wb').write(b'x' * (2 << 20))")
        await until_evicted(pool, 2)
        assert (await pool.run("open('b', 'wb').write(b'x' * (4 << 20))")).status is Status.OK
        assert modest.lost is None


HOG = """
import os, time
kept = []
try:
    for n in range(60):
        kept.append(open(str(n), 'wb', buffering=0))
        UNLINK
        kept[-1].write(b'x' * (1 << 20))
except OSError: pass
time.sleep(60)
"""


@pytest.mark.parametrize("without", [(), ("namespaces",)])
async def test_a_program_that_fills_the_scratch_room_gives_way_and_others_write(without: tuple[str, ...]) -> None:
    """Files that have lost their names fill it as well."""
    pool = SandboxPool(max_live=3, without=without)
    pool._restarter.options = dataclasses.replace(pool._restarter.options, scratch_bytes=16 * MIB)
    async with pool:
        if not pool._restarter.facts["files"]:
            needs.LANDLOCK.skip()
        session = await pool.open_session(limits=Limits(wall_s=60))
        await session.run("open('mine', 'w').write('x')")
        unlinks = ["pass"] + ["os.unlink(str(n))"] * ("namespaces" in pool.isolation)
        for unlink in unlinks:
            request = ExecRequest(code=HOG.replace("UNLINK", unlink), limits=Limits(wall_s=60))
            with sandbox_error("node_scratch", retryable=True):
                await pool.run(request)
            assert (await pool.run("open('b', 'wb').write(b'x' * (4 << 20))")).status is Status.OK
        filling = asyncio.create_task(session.run(HOG.replace("UNLINK", "pass")))
        with pytest.raises(SandboxError):
            await filling
        with pytest.raises(SessionLost) as loss:
            await session.run("1")
        assert loss.value.reason == "evicted"


THREADS = """
import threading
threading.stack_size(1 << 16)
ready = threading.Event()
started = 0
try:
    for _ in range(400):
        threading.Thread(target=ready.wait, daemon=True).start()
        started += 1
except RuntimeError: pass
ready.set()
print(started)
"""


@pytest.mark.parametrize("without", [(), ("uid",)])
async def test_threads_are_counted_with_and_without_a_user_per_program(without: tuple[str, ...]) -> None:
    async with SandboxPool(without=without) as pool:
        found = await asyncio.gather(*(pool.run(THREADS) for _ in range(2)))
        # Beside the first: 64, and three for a pool of threads of multiprocessing.
        assert [64 <= int(result.stdout) <= 67 for result in found] == [True] * 2, found


MANY_SESSIONS = """
import asyncio
from rocstar.sandbox.pool.pool import SandboxPool

async def main():
    async with SandboxPool(max_live=2) as pool:
        for _ in range(60):
            await pool.open_session()
        result = await pool.run("print(1)")
        print(result.stdout.strip(), pool.evictions, pool.sessions)

asyncio.run(main())
"""


def test_sessions_beyond_the_descriptors_give_way_to_calls() -> None:
    """Forty idle sessions of one client, and every call was refused for want of descriptors."""
    command = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-c", MANY_SESSIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    one, evictions, sessions = map(int, done.stdout.split())
    assert one == 1 and evictions + sessions == 60 and 1 <= sessions <= 30


async def test_a_session_of_who_has_few_is_not_taken_for_anothers() -> None:
    async with SandboxPool(max_sessions=4) as pool:
        mine = await pool.open_session(owner="few")
        for _ in range(8):
            await pool.open_session(owner="many")
        assert mine.lost is None and pool.evictions == 5


async def test_of_equals_who_had_the_places_for_a_shorter_time_is_next() -> None:
    """With one place no owner has anything running when it is free, and turns alone would give sleepers
    nearly all of its time."""
    done: list[str] = []
    async with SandboxPool(max_live=1) as pool:
        pool._calls.window = 20
        supervisor = pool.supervisor_pid
        os.kill(supervisor, signal.SIGSTOP)  # so that all are there when the first is chosen
        times = {"long": 0.5, "short": 0.0}
        calls = [asyncio.create_task(sleep_as(pool, owner, times[owner], done)) for _ in range(3) for owner in times]
        await asyncio.sleep(0)
        os.kill(supervisor, signal.SIGCONT)
        await asyncio.gather(*calls)
    assert done[:4].count("short") == 3


async def test_owners_get_places_by_weight() -> None:
    done: list[str] = []
    async with SandboxPool(max_live=4, weights={"heavy": 3}) as pool:
        owners = ["heavy", "light"] * 40
        await asyncio.gather(*(sleep_as(pool, owner, 0.02, done) for owner in owners))
    assert done[:36].count("heavy") >= 22
