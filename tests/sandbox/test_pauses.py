"""What the supervisor makes of what happened while it did not run: it was stopped, or had others to serve."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError, Status

from .. import needs
from ..patience import PATIENCE_S
from .errors import sandbox_error
from .test_tenants import MIB, leave_memory
from .watching import is_alive, programs_of, until

# A program is not dumpable: what it waits for is shown to root alone.
pytestmark = needs.ROOT.unless(os.geteuid() == 0)

ASKS, WAITS = "257", "128"
"""The numbers of openat, which the supervisor is asked about, and of rt_sigtimedwait."""

TOLD = """import signal
told = {signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, told)
signal.sigwait(told)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_in(pid: int, call: str) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == call


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) != "T":
        os.sched_yield()
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


async def heard(pool: SandboxPool) -> None:
    """The supervisor has done all that it was sent until now."""
    supervisor = pool._restarter._supervisor
    assert supervisor is not None
    pong, own = asyncio.Event(), supervisor._note_frame

    def hear(kind: int) -> None:
        own(kind)
        if kind == wire.PONG:
            pong.set()

    supervisor._note_frame = hear  # type: ignore[method-assign]
    supervisor._send(wire.encode_ids(wire.PING, 0))
    await asyncio.wait_for(pong.wait(), PATIENCE_S)


async def ends_of(count: int, wall_s: float) -> set[Status] | None:
    """How `count` programs have ended that a signal ended within their time, while the supervisor stood still
    until that was over. None if this machine was too slow for that."""
    request = ExecRequest(code=TOLD, limits=Limits(wall_s=wall_s, memory_bytes=MIB))
    async with SandboxPool(max_live=count) as pool:
        begun = time.monotonic()
        tasks = [asyncio.create_task(pool.run(request)) for _ in range(count)]
        await until(lambda: len(programs_of(pool)) == count or time.monotonic() > begun + wall_s)
        # One that has not begun would be given again.
        await until(lambda: all(is_in(pid, WAITS) for pid in programs_of(pool)) or time.monotonic() > begun + wall_s)
        with stopped(pool.supervisor_pid):
            for pid in (programs := programs_of(pool)):
                os.kill(pid, signal.SIGTERM)
            await until(lambda: not any(map(is_alive, programs)))
            in_time = len(programs) == count and time.monotonic() < begun + wall_s
            await until(lambda: time.monotonic() > begun + 2 * wall_s)
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        return {result.status for result in results} if in_time else None


async def test_who_ended_in_time_is_not_late_for_being_heard_of_late() -> None:
    """One look tells of 128 things at most: those of thirty programs."""
    wall_s = 2.0
    while (ends := await ends_of(80, wall_s)) is None:
        wall_s *= 2
    assert ends == {Status.SIGNALED}


async def lose_orders(pool: SandboxPool, count: int) -> int:
    """Has the supervisor told of a question first, by a program of whose birth it has not heard, and then
    that some of `count` programs will not be born. How many were born."""
    zygote = pool.zygotes["stdlib"][-1]
    first = asyncio.create_task(pool.run(f"{TOLD}open('f', 'w')"))
    await until(lambda: len(programs_of(pool)) == 1)
    (asker,) = programs_of(pool)
    await until(lambda: is_in(asker, WAITS))
    with stopped(zygote):
        tasks = [asyncio.create_task(pool.run(f"open('f', 'w').close()\n{i}")) for i in range(count)]
        await until(lambda: len(pool._calls.sent) == count + 1)
        await heard(pool)
        with stopped(pool.supervisor_pid):
            os.kill(asker, signal.SIGUSR1)
            await until(lambda: is_in(asker, ASKS))
            os.kill(asker, signal.SIGKILL)
            await until(lambda: not is_alive(asker))
            os.kill(zygote, signal.SIGCONT)
            while not programs_of(pool) - {asker}:
                pass
            os.kill(zygote, signal.SIGSTOP)
            await until(lambda: all(is_in(pid, ASKS) for pid in programs_of(pool) - {asker}))
            born = len(programs_of(pool) - {asker})
            os.kill(zygote, signal.SIGKILL)
            await until(lambda: not is_alive(zygote))
    results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert [result.value for result in results] == [str(i) for i in range(count)] and pool.restarts == 0
    assert (await first).status is Status.SIGNALED
    return born


@pytest.mark.privileged
async def test_a_line_that_was_read_for_anothers_sake_is_not_read_again() -> None:
    """A program asks before its birth was heard of, so all births are looked for. One of those that will not
    be was read then, and once more when it was told of."""
    count = 15
    async with SandboxPool(max_live=count + 1, memory_bytes=1 << 40) as pool:
        known = len(pool.zygotes["stdlib"])
        while await lose_orders(pool, count) == count:  # it was too quick
            # A zygote that starts would pass for a program.
            await until(lambda before=known: len(pool.zygotes["stdlib"]) > before)
            known = len(pool.zygotes["stdlib"])


@pytest.mark.privileged
async def test_who_ends_itself_beside_one_that_the_kernel_takes_does_not_take_its_excuse() -> None:
    """The kernel says that it took somebody, not whom. Whoever was heard of first was taken for that, and the
    other's end for its own doing."""
    async with SandboxPool(max_live=2) as pool:
        if "cgroup" not in pool.isolation:
            needs.ROOT.skip()
        await pool.run("print(1)")
        large = f"{TOLD}x = bytearray(b'x') * (400 << 20)"
        victim = asyncio.create_task(pool.run(ExecRequest(code=large, limits=Limits(memory_bytes=500 * MIB))))
        await until(lambda: len(programs_of(pool)) == 1)
        (taken,) = programs_of(pool)
        await until(lambda: is_in(taken, WAITS))
        other = asyncio.create_task(pool.run(TOLD))
        await until(lambda: len(programs_of(pool)) == 2)
        (own,) = programs_of(pool) - {taken}
        await until(lambda: is_in(own, WAITS))  # one that has not begun would be given again
        await heard(pool)
        leave_memory(pool, 64)
        with stopped(pool.supervisor_pid):
            os.kill(own, signal.SIGKILL)
            await until(lambda: not is_alive(own))
            os.kill(taken, signal.SIGUSR1)
            await until(lambda: not is_alive(taken))
        with sandbox_error("node_memory", retryable=True):
            await asyncio.wait_for(victim, PATIENCE_S)
        with pytest.raises(SandboxError, match="want of memory"):
            await asyncio.wait_for(other, PATIENCE_S)
