"""Deaths and hangs: of a zygote, of the supervisor, of the process that holds the pool."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.sandbox.pool import calls, process
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError, SessionLost, Status

from .. import needs
from ..patience import PATIENCE_S
from .errors import sandbox_error
from .watching import children_of, ended, programs_of, starter_of, until


async def test_a_killed_zygote_loses_no_call_and_no_session() -> None:
    async with SandboxPool(max_live=4) as pool:
        session = await pool.open_session()
        await session.run("x = 41")
        calls = [pool.run(ExecRequest(code=f"import time; time.sleep(0.2); {i}")) for i in range(12)]
        tasks = [asyncio.create_task(call) for call in calls]
        await until(lambda: len(programs_of(pool)) == 5)
        living = programs_of(pool)
        os.kill(pool.zygotes["stdlib"][-1], signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        assert [result.value for result in results] == [str(i) for i in range(12)]
        assert (await session.run("x + 1")).value == "42"
        assert len(pool.zygotes["stdlib"]) == 2 and pool.restarts == 0
        assert len(living) == 5  # children are not the zygote's own: they went on


async def test_zygotes_killed_again_and_again_under_load() -> None:
    async with SandboxPool(max_live=3) as pool:
        tasks = [asyncio.create_task(pool.run(ExecRequest(code=f"{i}"))) for i in range(300)]
        for _ in range(2):  # a third time in a row, before anything was done, gives a call up
            known = len(pool.zygotes["stdlib"])
            os.kill(pool.zygotes["stdlib"][-1], signal.SIGKILL)
            await until(lambda known=known: len(pool.zygotes["stdlib"]) > known)  # type: ignore[misc]
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        assert [result.value for result in results] == [str(i) for i in range(300)]
        await until(lambda: not programs_of(pool))  # no zombies: a child that nobody knew of is reaped too


# It waits 20 s for kBirthGrace; test_hang.cpp is the same in C++.
@needs.time_for("ROCSTAR_SLOW_TESTS").unless(needs.is_set("ROCSTAR_SLOW_TESTS"))
async def test_a_hung_zygote_is_replaced() -> None:
    async with SandboxPool() as pool:
        first = pool.zygotes["stdlib"][-1]
        os.kill(first, signal.SIGSTOP)
        assert (await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)).value == "1"
        assert pool.zygotes["stdlib"][-1] != first and pool.restarts == 0


async def test_a_killed_supervisor_loses_no_program_but_its_sessions() -> None:
    async with SandboxPool(max_live=4) as pool:
        session = await pool.open_session()
        await session.run("x = 1")
        cell = asyncio.create_task(session.run("import time; time.sleep(600)", wall_s=600))
        calls = [pool.run(ExecRequest(code=f"import time; time.sleep(0.1); {i}")) for i in range(12)]
        tasks = [asyncio.create_task(call) for call in calls]
        await until(lambda: len(programs_of(pool)) == 4)
        first, pids, scratch = pool.supervisor_pid, programs_of(pool), Path(pool._restarter.facts["scratch"])
        os.kill(first, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        assert [result.value for result in results] == [str(i) for i in range(12)]
        for use in (cell, session.run("x"), session.branch()):
            with pytest.raises(SessionLost) as loss:
                await use
            assert loss.value.reason == "supervisor_died"
        assert pool.supervisor_pid != first and pool.restarts == 1 and pool.sessions == 0
        await until(lambda: all(ended(pid) for pid in (first, *pids)))
        assert not scratch.name or not scratch.exists()  # noqa: ASYNC240
        assert (await (await pool.open_session()).run("1")).value == "1"


async def test_what_a_killed_supervisor_leaves_is_removed_however_deep_it_is() -> None:
    """Nested deeper than Python calls itself."""
    async with SandboxPool(max_live=2, without=("namespaces",)) as pool:
        if not pool._restarter.facts["files"]:
            needs.LANDLOCK.skip()
        session = await pool.open_session(limits=Limits(files=1500, file_bytes=1024))
        code = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
        assert (await session.run(code)).status is Status.OK
        scratch = Path(pool._restarter.facts["scratch"])
        assert scratch.is_dir()  # noqa: ASYNC240
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        again = await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)
        assert again.value == "1" and pool.restarts == 1
        await until(lambda: not scratch.exists())  # another pool's supervisor may be removing it as well


async def test_a_supervisor_killed_in_each_stage_of_a_call() -> None:
    async with SandboxPool(max_live=2) as pool:
        for turns in range(0, 24, 3):
            task = asyncio.create_task(pool.run(ExecRequest(code="1")))
            for _ in range(turns):
                await asyncio.sleep(0)
            await until(lambda: pool.supervisor_pid != 0)
            os.kill(pool.supervisor_pid, signal.SIGKILL)
            assert (await asyncio.wait_for(task, PATIENCE_S)).value == "1"
        assert pool.in_flight == 0


async def test_a_call_that_kills_each_supervisor_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_ATTEMPTS", 2)
    async with SandboxPool() as pool:
        task = asyncio.create_task(pool.run(ExecRequest(code="import time; time.sleep(600)")))
        for _ in range(2):
            await until(lambda: pool.supervisor_pid != 0 and len(programs_of(pool)) == 1)
            os.kill(pool.supervisor_pid, signal.SIGKILL)
            await until(lambda: pool.supervisor_pid == 0)
        with sandbox_error("supervisor_died", "died 2 times", retryable=True):
            await asyncio.wait_for(task, PATIENCE_S)
        assert (await pool.run(ExecRequest(code="1"))).value == "1"


async def test_a_pool_closes_while_its_supervisor_is_replaced() -> None:
    others = children_of(os.getpid())  # what other tests of this process keep
    async with SandboxPool() as pool:
        endless = ExecRequest(code="while True: pass")  # one that ends may be answered before the signal
        tasks = [asyncio.create_task(pool.run(endless)) for _ in range(3)]
        await until(lambda: len(pool._calls.sent) == 3)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: pool.supervisor_pid == 0)
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, SandboxError) and outcome.kind == "closed" for outcome in outcomes)
    assert not children_of(os.getpid()) - others


async def test_a_supervisor_that_cannot_be_replaced_fails_calls_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SandboxPool() as pool:
        whole = pool._restarter.options
        monkeypatch.setattr(pool._restarter, "options", replace(whole, program="/none"))
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: pool.supervisor_pid == 0)
        for _ in range(2):  # each call tries once more, and none waits for ever
            with sandbox_error("zygote_start", "cannot start"):
                await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)
        monkeypatch.setattr(pool._restarter, "options", whole)
        assert (await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)).value == "1"


async def test_a_stopped_supervisor_is_taken_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the calls may take that it has, and however many there were before."""
    monkeypatch.setattr(process, "TICK_S", 0.1)
    monkeypatch.setattr(process, "SILENT_S", 0.5)
    async with SandboxPool() as pool:
        first = pool.supervisor_pid
        for _ in range(3):
            await pool.run(ExecRequest(code="1", limits=Limits(wall_s=3600)))
        os.kill(first, signal.SIGSTOP)
        request = ExecRequest(code="1", limits=Limits(wall_s=3600))
        tasks = [asyncio.create_task(pool.run(request)) for _ in range(3 * pool._calls.window)]
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        assert {result.value for result in results} == {"1"}
        assert pool.supervisor_pid != first and pool.restarts == 1


async def test_a_pool_with_a_stopped_supervisor_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "EXIT_TIMEOUT_S", 0.1)
    others = children_of(os.getpid())
    async with SandboxPool(max_live=64) as pool:
        os.kill(pool.supervisor_pid, signal.SIGSTOP)
        long = ExecRequest(code="#" * (4 << 20))
        tasks = [asyncio.create_task(pool.run(long)) for _ in range(4)]  # more than the socket takes
        await until(lambda: len(pool._calls.sent) == 4)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not children_of(os.getpid()) - others


TRAINER = """
import asyncio, sys
from rocstar.sandbox.pool import process
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits

async def main():
    process.ENVIRONMENT.update(eval(sys.argv[1]))
    async with SandboxPool() as pool:
        session = await pool.open_session()
        await session.run("open('kept', 'w').write('x')")
        branch = await session.branch()
        print(pool.supervisor_pid, *pool.zygotes["stdlib"], pool._restarter.facts["scratch"], flush=True)
        code = "open('kept', 'w').write('x'); import time; time.sleep(600)"
        await pool.run(ExecRequest(code=code, limits=Limits(wall_s=600)))

asyncio.run(main())
"""


async def test_without_its_starter_the_supervisor_is_replaced_when_it_needs_a_zygote() -> None:
    async with SandboxPool() as pool:
        os.kill(starter_of(pool), signal.SIGKILL)
        assert (await pool.run("print(1)")).stdout == "1\n" and pool.restarts == 0
        os.kill(pool.zygotes["stdlib"][-1], signal.SIGKILL)
        await until(lambda: pool.restarts == 1)
        assert (await pool.run("print(1)")).stdout == "1\n"


async def test_everything_dies_with_the_process_that_holds_the_pool() -> None:
    trainer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TRAINER, repr(process.ENVIRONMENT)), stdout=asyncio.subprocess.PIPE
    )
    assert trainer.stdout is not None
    line = (await trainer.stdout.readline()).decode().split()
    supervisor, zygote, scratch = int(line[0]), int(line[1]), Path(line[2])
    await until(lambda: len(children_of(supervisor)) == 5)  # starter, zygote, session, branch, program
    pids = {supervisor, zygote, *children_of(supervisor)}
    trainer.kill()
    await trainer.wait()
    await until(lambda: all(ended(pid) for pid in pids))
    async with SandboxPool():  # at the latest
        assert not scratch.exists()  # noqa: ASYNC240
