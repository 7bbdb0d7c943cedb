"""The pool's promises: bounds, cancellation, deadlines, recovery, and that nothing is left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from rocstar.sandbox import process
from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.process import Zygote, ZygoteOptions
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

HANG = "import sys, time; print('up', flush=True); time.sleep(600)"
LONG = Limits(wall_s=300)

PATIENCE_S = 30
"""After this a test that waits for something has failed."""


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def zygote_of(pool: SandboxPool) -> Zygote:
    zygote = pool._lanes["stdlib"].zygote
    assert zygote is not None
    return zygote


def zygote_pid(pool: SandboxPool) -> int:
    """The pid of the living zygote; 0 while it is being replaced."""
    zygote = pool._lanes["stdlib"].zygote
    return zygote.pid if zygote is not None and zygote.alive else 0


async def gone(pid: int) -> None:
    """Returns when the process has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def start_hanging(
    pool: SandboxPool, count: int = 1
) -> tuple[list["asyncio.Task[ExecResult]"], list[int]]:
    await pool.run(ExecRequest(code="1"))  # the zygote has forked its first, measuring child by then
    before = set(children_of(zygote_pid(pool)))
    tasks = [asyncio.create_task(pool.run(ExecRequest(code=HANG, limits=LONG))) for _ in range(count)]
    await until(lambda: len(set(children_of(zygote_pid(pool))) - before) == count)
    return tasks, sorted(set(children_of(zygote_pid(pool))) - before)


async def test_two_hundred_calls_at_once() -> None:
    async with SandboxPool(max_live=4, max_queued=10) as pool:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(pool.run(ExecRequest(code=f"print({i})"))) for i in range(200)]
    assert [task.result().stdout for task in tasks] == [f"{i}\n" for i in range(200)]


async def test_no_more_children_live_than_allowed() -> None:
    async with SandboxPool(max_live=2, max_queued=3) as pool:
        tasks, first = await start_hanging(pool, 2)
        waiting = [asyncio.create_task(pool.run(ExecRequest(code="1"))) for _ in range(20)]
        zygote = zygote_of(pool)
        await until(lambda: len(zygote._calls) == 5)  # two live, three queued; the rest waits for a permit
        assert children_of(zygote_pid(pool)) == first
        for task in tasks:
            task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
    assert {result.value for result in results} == {"1"}


async def test_cancellation_kills_the_child() -> None:
    async with SandboxPool() as pool:
        [task], [child] = await start_hanging(pool)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(child)
        assert (await pool.run(ExecRequest(code="1"))).value == "1"


async def test_a_deadline_kills_the_child_and_is_no_result() -> None:
    async with SandboxPool() as pool:
        loop = asyncio.get_running_loop()
        with pytest.raises(SandboxError, match="deadline") as failure:
            await pool.run(ExecRequest(code=HANG, limits=LONG), deadline=loop.time() + 0.2)
        assert (failure.value.kind, failure.value.retryable) == ("deadline", True)
        await until(lambda: children_of(zygote_pid(pool)) == [])
        in_time = await pool.run(ExecRequest(code="1"), deadline=loop.time() + 30)
        assert in_time.value == "1"


async def test_a_deadline_passes_while_waiting_for_a_permit() -> None:
    async with SandboxPool(max_live=1, max_queued=0) as pool:
        [task], _ = await start_hanging(pool)
        with pytest.raises(SandboxError, match="deadline"):
            await pool.run(ExecRequest(code="1"), deadline=asyncio.get_running_loop().time() + 0.05)
        task.cancel()
        assert (await asyncio.wait_for(pool.run(ExecRequest(code="1")), PATIENCE_S)).value == "1"


async def test_a_cancelled_call_in_the_queue_never_runs() -> None:
    async with SandboxPool(max_live=1, max_queued=1) as pool:
        [running], [child] = await start_hanging(pool)
        queued = asyncio.create_task(pool.run(ExecRequest(code=HANG, limits=LONG)))
        zygote = zygote_of(pool)
        await until(lambda: len(zygote._calls) == 2)
        queued.cancel()
        await until(lambda: len(zygote._calls) == 1)
        assert children_of(zygote.pid) == [child]
        running.cancel()
        await gone(child)


async def test_a_killed_zygote_is_replaced_and_its_calls_repeated() -> None:
    async with SandboxPool(max_live=4) as pool:
        tasks = [
            asyncio.create_task(pool.run(ExecRequest(code=f"import time; time.sleep(0.2); {i}")))
            for i in range(8)
        ]
        first = zygote_pid(pool)
        await until(lambda: len(children_of(first)) == 4)
        children = children_of(first)
        os.kill(first, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        assert [result.value for result in results] == [str(i) for i in range(8)]
        assert zygote_pid(pool) != first
        for child in children:
            await gone(child)


async def test_a_call_lost_twice_is_a_retryable_error() -> None:
    async with SandboxPool() as pool:
        [task], [child] = await start_hanging(pool)
        first = zygote_pid(pool)
        os.kill(first, signal.SIGKILL)
        await gone(child)  # it would have lived for minutes
        await until(lambda: zygote_pid(pool) not in (0, first) and len(children_of(zygote_pid(pool))) == 1)
        os.kill(zygote_pid(pool), signal.SIGKILL)
        with pytest.raises(SandboxError, match="died") as failure:
            await task
        assert (failure.value.kind, failure.value.retryable) == ("zygote_died", True)
        assert (await pool.run(ExecRequest(code="1"))).value == "1"


async def test_close_leaves_no_process_and_fails_calls_in_flight() -> None:
    pool = SandboxPool()
    async with pool:
        [task], [child] = await start_hanging(pool)
        zygote = zygote_pid(pool)
    with pytest.raises(SandboxError, match="closed"):
        await task
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (zygote, child))  # noqa: ASYNC240
    with pytest.raises(SandboxError, match="closed") as failure:
        await pool.run(ExecRequest(code="1"))
    assert not failure.value.retryable


async def test_descriptors_do_not_grow() -> None:
    async with SandboxPool() as pool:

        def counts() -> tuple[int, int]:
            ours, theirs = Path("/proc/self/fd"), Path(f"/proc/{zygote_pid(pool)}/fd")
            return len(list(ours.iterdir())), len(list(theirs.iterdir()))

        await pool.run(ExecRequest(code="1"))
        before = counts()
        calls = [pool.run(ExecRequest(code="input()", stdin="x")) for _ in range(50)]
        await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S)
        assert counts() == before


async def test_a_program_that_dies_with_its_parent_pool(tmp_path: Path) -> None:
    """A pool whose process is killed takes zygote and child along."""
    script = (
        "import asyncio, sys\n"
        "from rocstar.sandbox.pool import SandboxPool\n"
        "from rocstar.sandbox.types import ExecRequest\n"
        "async def main():\n"
        "    async with SandboxPool() as pool:\n"
        "        print(pool._lanes['stdlib'].zygote.pid, flush=True)\n"
        f"        await pool.run(ExecRequest(code={HANG!r}))\n"
        "asyncio.run(main())\n"
    )
    trainer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert trainer.stdout is not None
    zygote = int(await trainer.stdout.readline())
    await until(lambda: len(children_of(zygote)) == 1)
    [child] = children_of(zygote)
    trainer.kill()
    await trainer.wait()
    await gone(child)
    await gone(zygote)


async def test_an_unknown_flavour_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown flavour 'nope'"):
        SandboxPool(("nope",))
    async with SandboxPool() as pool:
        with pytest.raises(SandboxError, match="only stdlib") as failure:
            await pool.run(ExecRequest(code="1", flavour="numeric"))
        assert failure.value.kind == "unknown_flavour"


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="max_live=0"):
        SandboxPool(max_live=0)
    with pytest.raises(ValueError, match="unknown layer"):
        SandboxPool(without=("nnp",))


async def test_without_seccomp_the_pool_refuses_to_start() -> None:
    with pytest.raises(SandboxError, match="allow_no_isolation") as failure:
        async with SandboxPool(without=("seccomp",)):
            pass
    assert (failure.value.kind, failure.value.retryable) == ("no_isolation", False)
    async with SandboxPool(without=("seccomp",), allow_no_isolation=True) as pool:
        assert "seccomp" not in (await pool.run(ExecRequest(code="1"))).isolation.split("+")


async def test_a_missing_module_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The zygote is another process: it is given an interpreter path on which the module cannot be found.
    (tmp_path / "math_verify.py").write_text("import module_that_is_not_there\n")
    monkeypatch.setitem(process.ENVIRONMENT, "PYTHONPATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"module_that_is_not_there.*pip install") as failure:
        async with SandboxPool(("verifier",)):
            pass
    assert (failure.value.kind, failure.value.retryable) == ("missing_import", False)


async def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot start") as failure:
        await Zygote(ZygoteOptions(flavour="stdlib", max_live=1, python=str(tmp_path / "none"))).start()
    assert failure.value.kind == "zygote_start"
    with pytest.raises(SandboxError, match="died while starting"):
        await Zygote(ZygoteOptions(flavour="stdlib", max_live=1, python="/bin/true")).start()


async def test_a_zygote_that_never_gets_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT_S", 0.05)
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    with pytest.raises(SandboxError, match="not ready") as failure:
        await Zygote(ZygoteOptions(flavour="stdlib", max_live=1, python=str(sleeper))).start()
    assert failure.value.retryable


async def test_a_cancelled_start_leaves_no_process() -> None:
    pool = SandboxPool()
    task = asyncio.create_task(pool.__aenter__())
    await until(lambda: len(children_of(os.getpid())) > 0)
    [zygote] = children_of(os.getpid())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not Path(f"/proc/{zygote}").exists())


async def test_a_silent_zygote_is_killed_by_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HANG_GRACE_S", 0.05)
    async with SandboxPool() as pool:
        first = zygote_pid(pool)
        os.kill(first, signal.SIGSTOP)
        result = await pool.run(ExecRequest(code="1", limits=Limits(wall_s=0.5)))
        assert result.value == "1"
        assert zygote_pid(pool) != first


def test_it_runs_under_uvloop() -> None:
    async def main() -> tuple[ExecResult, ExecResult]:
        async with SandboxPool() as pool:
            good, late = await asyncio.gather(
                pool.run(ExecRequest(code="print('x' * 300_000)")),
                pool.run(ExecRequest(code="while True: pass", limits=Limits(wall_s=0.1))),
            )
            deadline = asyncio.get_running_loop().time() + 0.05
            with pytest.raises(SandboxError, match="deadline"):
                await pool.run(ExecRequest(code=HANG, limits=LONG), deadline=deadline)
            os.kill(zygote_pid(pool), signal.SIGKILL)
            assert (await pool.run(ExecRequest(code="1"))).value == "1"
            return good, late

    good, late = uvloop.run(main())
    assert (len(good.stdout), late.status) == (300_001, Status.TIMEOUT)


@pytest.fixture(scope="module")
def numeric_programs() -> dict[str, str]:
    return {
        "numeric": "import numpy as np, sympy as sp\nx = sp.Symbol('x')\n"
        "str(np.linalg.solve(np.eye(2) * 2, [1, 2])), str(sp.integrate(x**2, x))",
        "verifier": "from math_verify import parse, verify\n"
        "verify(parse('\\\\frac{1}{3}', parsing_timeout=None), parse('$2/6$', parsing_timeout=None),"
        " timeout_seconds=None)",
    }


async def test_flavours_have_their_modules_at_hand(numeric_programs: dict[str, str]) -> None:
    async with SandboxPool(("numeric", "verifier")) as pool:
        numeric = await pool.run(ExecRequest(code=numeric_programs["numeric"], flavour="numeric"))
        verdict = await pool.run(ExecRequest(code=numeric_programs["verifier"], flavour="verifier"))
        seeded = [
            await pool.run(
                ExecRequest(code="import numpy; numpy.random.rand()", flavour="numeric", seed=seed)
            )
            for seed in (1, 1, 2, None)
        ]
        loaded = await pool.run(
            ExecRequest(code="import sys; 'math_verify' in sys.modules", flavour="verifier")
        )
    assert (numeric.value, numeric.stderr) == ("('[0.5 1. ]', 'x**3/3')", "")
    assert (verdict.value, verdict.stderr, loaded.value) == ("True", "", "True")
    values = [result.value for result in seeded]
    assert values[0] == values[1] and len({*values}) == 3
