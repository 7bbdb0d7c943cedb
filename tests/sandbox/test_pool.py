"""The pool's promises: bounds, cancellation, deadlines, admission, and that nothing is left behind."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rocstar.sandbox.pool import process
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

from ..patience import PATIENCE_S
from .errors import sandbox_error
from .watching import children_of, ended, programs_of, until

HANG = "import sys, time; print('up', flush=True); time.sleep(600)"
LONG = Limits(wall_s=300)
GIB = 1 << 30


async def start_hanging(
    pool: SandboxPool, count: int = 1, limits: Limits = LONG
) -> tuple[list["asyncio.Task[ExecResult]"], list[int]]:
    before = programs_of(pool)
    tasks = [asyncio.create_task(pool.run(ExecRequest(code=HANG, limits=limits))) for _ in range(count)]
    await until(lambda: len(programs_of(pool) - before) == count)
    return tasks, sorted(programs_of(pool) - before)


async def test_no_more_programs_live_than_allowed() -> None:
    async with SandboxPool(max_live=2, max_queued=3) as pool:
        tasks, first = await start_hanging(pool, 2)
        room = pool._calls.window + 3
        waiting = [asyncio.create_task(pool.run(ExecRequest(code="1"))) for _ in range(room + 10)]
        await until(lambda: pool.in_flight == room)  # the rest waits for room
        assert sorted(programs_of(pool)) == first
        for task in tasks:
            task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert {result.value for result in results} == {"1"}
        assert pool.in_flight == 0


async def test_programs_wait_for_the_sum_of_their_memory() -> None:
    async with SandboxPool(max_live=8, memory_bytes=3 * GIB) as pool:
        tasks, first = await start_hanging(pool, 2, Limits(wall_s=300, memory_bytes=GIB))
        large = asyncio.create_task(pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=2 * GIB))))
        behind = asyncio.create_task(pool.run(ExecRequest(code="2", limits=Limits(memory_bytes=GIB // 2))))
        cancelled = asyncio.create_task(pool.run(ExecRequest(code="3")))
        await until(lambda: len(pool._calls.sent) == 5)
        # What is smaller does not overtake what is large, unless it fits in the spare eighth.
        assert sorted(programs_of(pool)) == first
        cancelled.cancel()
        tasks[0].cancel()
        assert [(await large).value, (await behind).value] == ["1", "2"]
        tasks[1].cancel()
        with sandbox_error("too_large", "3221225473", retryable=False):
            await pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=3 * GIB + 1)))


async def test_calls_cancelled_at_any_moment_leave_all_places_free() -> None:
    async with SandboxPool(max_live=2) as pool:
        for turns in range(60):
            task = asyncio.create_task(pool.run(ExecRequest(code=HANG, limits=LONG)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        await until(lambda: pool.in_flight == 0)
        async with asyncio.timeout(PATIENCE_S):
            assert [(await pool.run(ExecRequest(code="1"))).value for _ in range(4)] == ["1"] * 4
        assert pool._calls.room.free == pool._calls.window + (1 << 16)


async def test_a_deadline_kills_the_child_and_is_no_result() -> None:
    async with SandboxPool() as pool:
        loop = asyncio.get_running_loop()
        with sandbox_error("deadline", "deadline", retryable=True):
            await pool.run(ExecRequest(code=HANG, limits=LONG), deadline=loop.time() + 0.2)
        await until(lambda: not programs_of(pool))
        in_time = await pool.run(ExecRequest(code="1"), deadline=loop.time() + PATIENCE_S)
        assert in_time.value == "1"


async def test_a_deadline_passes_while_waiting_for_room() -> None:
    async with SandboxPool(max_live=1, max_queued=0) as pool:
        [first], _ = await start_hanging(pool)
        others = [asyncio.create_task(pool.run(ExecRequest(code="1"))) for _ in range(pool._calls.window - 1)]
        await until(lambda: not pool._calls.room.free)
        with pytest.raises(SandboxError, match="deadline"):
            await pool.run(ExecRequest(code="1"), deadline=asyncio.get_running_loop().time() + 0.05)
        first.cancel()
        assert len(await asyncio.wait_for(asyncio.gather(*others), PATIENCE_S)) == len(others)


async def test_a_cancelled_call_in_the_queue_never_runs() -> None:
    async with SandboxPool(max_live=1) as pool:
        [running], [child] = await start_hanging(pool)
        queued = [asyncio.create_task(pool.run(ExecRequest(code=HANG, limits=LONG))) for _ in range(20)]
        await until(lambda: pool.in_flight == 21)
        for task in queued:
            task.cancel()
        await until(lambda: len(pool._calls.sent) == 1)
        assert programs_of(pool) == {child}
        running.cancel()
        await until(lambda: ended(child))
        await until(lambda: not programs_of(pool))


async def test_close_leaves_no_process_and_fails_all_calls() -> None:
    pool = SandboxPool(max_live=1, max_queued=0)
    async with pool:
        [running], [child] = await start_hanging(pool)
        # Some with the supervisor, one waiting for room.
        tasks = [running, *(asyncio.create_task(pool.run(ExecRequest(code="1"))) for _ in range(pool._calls.window))]
        await until(lambda: not pool._calls.room.free)
        pids = [child, pool.supervisor_pid, *pool.zygotes["stdlib"]]
        scratch = Path(pool._restarter.facts["scratch"])
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, SandboxError)} == {"closed"}
    assert len(outcomes) == len(tasks) and not any(isinstance(outcome, ExecResult) for outcome in outcomes)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # noqa: ASYNC240
    assert not scratch.name or not scratch.exists()  # noqa: ASYNC240
    with pytest.raises(SandboxError, match="closed") as failure:
        await pool.run(ExecRequest(code="1"))
    assert not failure.value.retryable


async def test_a_zygote_is_confined_from_its_first_order_on() -> None:
    """Its children inherit most of what they may not do, and it may not do that itself."""
    async with SandboxPool(without=("notify",)) as pool:  # whose filter every zygote has
        status = Path(f"/proc/{pool.zygotes['stdlib'][-1]}/status").read_text
        assert "Seccomp:\t0" in status()
        assert (await pool.run("1")).value == "1"
        assert "Seccomp:\t2" in status()


async def test_descriptors_do_not_grow() -> None:
    async with SandboxPool(max_live=3) as pool:

        def counts() -> list[int]:
            pids = ("self", pool.supervisor_pid, pool.zygotes["stdlib"][-1])
            return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]

        async def calls() -> None:
            programs = [pool.run(ExecRequest(code="input()", stdin="x")) for _ in range(20)]
            await asyncio.wait_for(asyncio.gather(*programs), PATIENCE_S)
            session = await pool.open_session()
            await session.run("open('a', 'w').close()")
            await (await session.branch()).close()
            await session.close()
            await until(lambda: not programs_of(pool))

        # What a place needs is kept for the next in it. How many were ever taken at a time is up to chance
        # where programs come one by one, so here all are.
        hanging, _ = await start_hanging(pool, 3)
        for task in hanging:
            task.cancel()
        await calls()
        before = counts()
        for _ in range(3):
            await calls()
        await until(lambda: all(map(int.__le__, counts(), before)))


async def test_an_unknown_flavour_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown flavour 'nope'"):
        SandboxPool(("nope",))
    async with SandboxPool() as pool:
        with sandbox_error("unknown_flavour", "only stdlib"):
            await pool.run(ExecRequest(code="1", flavour="numeric"))
        with pytest.raises(SandboxError, match="only stdlib"):
            await pool.open_session(flavour="numeric")


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="max_live=0"):
        SandboxPool(max_live=0)
    with pytest.raises(ValueError, match="max_live is 99999999, more than 65536"):
        SandboxPool(max_live=99_999_999)
    with pytest.raises(ValueError, match="unknown layer"):
        SandboxPool(without=("nnp",))


@pytest.mark.parametrize("without", [("seccomp",), ("landlock", "uid")])
async def test_below_tier_a_the_pool_refuses_to_start(without: tuple[str, ...]) -> None:
    with sandbox_error("no_isolation", "allow_no_isolation", retryable=False):
        async with SandboxPool(without=without):
            pass
    async with SandboxPool(without=without, allow_no_isolation=True) as pool:
        result = await pool.run(ExecRequest(code="1"))
    assert result.tier == "none" and not set(without) & set(result.isolation.split("+"))


async def test_every_result_names_its_tier() -> None:
    async with SandboxPool() as pool, SandboxPool(without=("namespaces", "cgroup")) as plain:
        best, portable = [await each.run(ExecRequest(code="1")) for each in (pool, plain)]
    assert best.tier in ("A", "B") and portable.tier == "A"
    assert (best.tier == "B") == ("namespaces" in best.isolation.split("+"))


async def test_a_missing_module_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The zygote is another process: it is given an interpreter path on which the module cannot be found.
    (tmp_path / "math_verify.py").write_text("import module_that_is_not_there\n")
    paths = [str(tmp_path), process.ENVIRONMENT.get("PYTHONPATH", "")]
    monkeypatch.setitem(process.ENVIRONMENT, "PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with sandbox_error("missing_import", r"module_that_is_not_there.*pip install", retryable=False):
        async with SandboxPool(("verifier",), without=("namespaces",)):
            pass


def options(**changes: str) -> process.SupervisorOptions:
    return process.SupervisorOptions(
        flavours=("stdlib",), max_live=1, max_sessions=1, memory_bytes=GIB, lease_s=60.0, **changes
    )


def start(options: process.SupervisorOptions) -> process.Supervisor:
    return process.Supervisor(
        options, on_frame=lambda frame: None, on_read=lambda: None, on_end=lambda: None, longest_s=lambda: None
    )


async def test_programs_that_do_not_start(tmp_path: Path) -> None:
    with sandbox_error("zygote_start", "cannot start"):
        await start(options(program=str(tmp_path / "none"))).start()
    with pytest.raises(SandboxError, match="died while starting"):
        await start(options(program="/bin/true")).start()
    with sandbox_error("zygote_start", "2 times: it exited with code 0 before Python ran", retryable=False):
        await start(options(python="/bin/true")).start()


async def test_a_supervisor_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT_S", 0.05)
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    others = children_of(os.getpid())  # what other tests of this process keep
    with pytest.raises(SandboxError, match="not ready") as failure:
        await start(options(python=str(sleeper))).start()
    assert failure.value.retryable
    await until(lambda: not children_of(os.getpid()) - others)


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
            os.kill(pool.zygotes["stdlib"][-1], 9)
            assert (await pool.run(ExecRequest(code="1"))).value == "1"
            os.kill(pool.supervisor_pid, 9)
            assert (await pool.run(ExecRequest(code="2"))).value == "2"
            async for _, outcome in pool.run_batch([ExecRequest(code="3")]):
                assert isinstance(outcome, ExecResult) and outcome.value == "3"
            return good, late

    good, late = uvloop.run(main())
    assert (len(good.stdout), late.status) == (300_001, Status.TIMEOUT)


async def test_flavours_have_their_modules_at_hand() -> None:
    programs = {
        "numeric": "import numpy as np, sympy as sp\nx = sp.Symbol('x')\n"
        "str(np.linalg.solve(np.eye(2) * 2, [1, 2])), str(sp.integrate(x**2, x))",
        "verifier": "from math_verify import parse, verify\n"
        "verify(parse('\\\\frac{1}{3}', parsing_timeout=None), parse('$2/6$', parsing_timeout=None),"
        " timeout_seconds=None)",
    }
    async with SandboxPool(("numeric", "verifier")) as pool:
        numeric = await pool.run(ExecRequest(code=programs["numeric"], flavour="numeric"))
        verdict = await pool.run(ExecRequest(code=programs["verifier"], flavour="verifier"))
        seeded = [
            await pool.run(ExecRequest(code="import numpy; numpy.random.rand()", flavour="numeric", seed=seed))
            for seed in (1, 1, 2, None)
        ]
        loaded = await pool.run(ExecRequest(code="import sys; 'math_verify' in sys.modules", flavour="verifier"))
        chosen = await pool.run(ExecRequest(code="import sympy, sys; 'math_verify' in sys.modules", flavour="auto"))
    assert (numeric.value, numeric.stderr) == ("('[0.5 1. ]', 'x**3/3')", "")
    assert (verdict.value, verdict.stderr, loaded.value) == ("True", "", "True")
    assert chosen.value == "False"
    values = [result.value for result in seeded]
    assert values[0] == values[1] and len({*values}) == 3


async def test_a_deterministic_pool_gives_the_same_program_the_same_numbers() -> None:
    request = ExecRequest(code="import random; random.random()")
    async with SandboxPool(deterministic=True) as pool:
        first, second = await pool.run(request), await pool.run(request)
        other = await pool.run(ExecRequest(code="import random;  random.random()"))
    assert first.value == second.value != other.value


@pytest.mark.parametrize("program", [b"print(1)", None, 5])
async def test_what_is_no_program_says_what_to_pass(program: Any) -> None:
    with pytest.raises(TypeError, match="Pass its code as a str, or an ExecRequest"):
        await SandboxPool().run(program)
    with pytest.raises(TypeError, match="For a single one use run"):
        SandboxPool().run_batch("print(1)")


async def test_a_pool_that_was_not_started_says_so_and_does_not_wait_for_ever() -> None:
    with pytest.raises(SandboxError, match="async with SandboxPool"):
        await SandboxPool().run("1")
    with pytest.raises(SandboxError, match="async with SandboxPool"):
        await SandboxPool().open_session()
