"""Sessions of the pool: state, errors, interrupts, leases, eviction, branches, and hostile cells."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.pool.session import LiveSession
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError, SessionLost, Status

from ..patience import PATIENCE_S
from .errors import sandbox_error
from .watching import programs_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB = 1 << 30


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: SandboxPool) -> LiveSession:
    return await pool.open_session(limits=Limits(wall_s=60))


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def sessions_are_closed(pool: SandboxPool) -> AsyncIterator[None]:
    yield
    for session in [*pool._sessions._living.values()]:
        await session.close()
    await until(lambda: not pool.in_flight and not programs_of(pool))


async def value(session: LiveSession, code: str) -> str | None:
    result = await session.run(code)
    assert result.status is Status.OK, result.stderr
    return result.value


async def loss_of(session: LiveSession) -> SessionLost:
    with pytest.raises(SessionLost) as loss:
        await session.run("1")
    return loss.value


async def lost(session: LiveSession) -> str:
    return (await loss_of(session)).reason


async def test_cells_share_their_state_and_sessions_do_not(pool: SandboxPool) -> None:
    one, other = await pool.open_session(), await pool.open_session()
    assert one.id != other.id and pool.sessions == 2
    assert await value(one, "import math\nx = [1]\nx") == "[1]"
    assert await value(one, "x.append(math.pi > 3); x") == "[1, True]"
    assert await value(other, "'x' in globals(), 'math' in globals()") == "(False, False)"
    assert (await pool.run(ExecRequest(code="'x' in globals()"))).value == "False"
    await one.close()
    assert await lost(one) == "closed" and pool.sessions == 1
    await one.close()
    with pytest.raises(SessionLost):
        await one.branch()


async def test_each_cell_has_its_own_result(session: LiveSession) -> None:
    first = await session.run("import sys\nprint('out'); print('err', file=sys.stderr); 1")
    second = await session.run("2")
    third = await session.run("None")
    assert [each.status for each in (first, second, third)] == [Status.OK] * 3, (first, second, third)
    assert (first.stdout, first.stderr, first.value) == ("out\n", "err\n", "1")
    assert (second.stdout, second.stderr, second.value, third.value) == ("", "", "2", None)
    assert first.isolation == second.isolation and first.tier in ("A", "B") and first.wall_s > 0


async def test_an_error_keeps_the_session_and_names_its_cell(session: LiveSession) -> None:
    await session.run("def f(x):\n    return 1 / x\ny = 5")
    result = await session.run("print('before')\nf(0)")
    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 1, "before\n")
    assert 'File "<cell 2>", line 2' in result.stderr and 'File "<cell 1>", line 2, in f' in result.stderr
    assert "    return 1 / x" in result.stderr
    for code in ("(", "raise KeyboardInterrupt", "raise MemoryError", "x = bytearray(1 << 40)"):
        assert (await session.run(code)).exit_code in (1, 86)
    assert await value(session, "y") == "5"


async def test_a_late_cell_is_interrupted_and_the_state_kept(session: LiveSession) -> None:
    await session.run("x = 1")
    for code in ("while True: pass", "import time; time.sleep(60)", "import re; re.match('(a+)+b', 'a' * 60)"):
        late = await session.run(f"x += 1\n{code}", wall_s=0.5)
        assert late.status is Status.TIMEOUT and "KeyboardInterrupt" in late.stderr
    assert await value(session, "x") == "4"


async def test_a_pool_of_a_shells_background_job_interrupts_cells() -> None:
    """Such a job ignores SIGINT, and so would all that it starts: a late cell was killed, its state lost."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async with SandboxPool() as pool:
            session = await pool.open_session(limits=Limits(wall_s=60))
            await session.run("x = 1")
            late = await session.run("x = 2\nwhile True: pass", wall_s=0.1)
            assert late.status is Status.TIMEOUT and "KeyboardInterrupt" in late.stderr
            assert await value(session, "x") == "2"
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_cell_that_swallows_its_interrupt_is_late_all_the_same(pool: SandboxPool) -> None:
    session, other = await pool.open_session(), await pool.open_session()
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    x = 'caught'"
    late = await session.run(code, wall_s=0.1)
    assert (late.status, late.exit_code) == (Status.TIMEOUT, 0)
    assert await value(session, "x") == "'caught'"
    assert await value(other, "1") == "1" and pool.restarts == 0


@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException: pass",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "sum(iter(int, 1))",
    ],
)
async def test_a_cell_that_will_not_stop_is_killed(pool: SandboxPool, code: str) -> None:
    session, other = await pool.open_session(), await pool.open_session()
    result = await session.run(code, wall_s=0.1)
    assert (result.status, result.signal) == (Status.TIMEOUT, 9)
    loss = await loss_of(session)
    assert loss.reason == "died" and f"session {session.id} is gone: {loss.ending}" == str(loss)
    assert re.fullmatch(
        r"it was killed by signal 9 \(Killed\) \d+\.\d{3} s into a cell that had 0\.100 s: "
        "it did not stop when its time was over",
        loss.ending,
    )
    assert await value(other, "1") == "1"


@pytest.mark.parametrize(
    ("code", "exit_code", "signal", "how"),
    [
        ("raise SystemExit(3)", 3, None, "exited with code 3"),
        ("exit()", 0, None, "exited with code 0"),
        ("import os; os._exit(4)", 4, None, "exited with code 4"),
        ("import os; os.abort()", None, 6, "was killed by signal 6 (Aborted)"),
        ("import ctypes; ctypes.string_at(0)", None, 11, "was killed by signal 11 (Segmentation fault)"),
    ],
)
async def test_a_cell_that_exits_has_a_result_and_ends_the_session(
    pool: SandboxPool, session: LiveSession, code: str, exit_code: int | None, signal: int | None, how: str
) -> None:
    result = await session.run(f"print('last')\n{code}")
    assert (result.exit_code, result.signal, result.stdout) == (exit_code, signal, "last\n")
    loss = await loss_of(session)
    assert loss.reason == "died" and pool.sessions == 0
    when = r" \d+\.\d{3} s into a cell that had \d+\.000 s"
    assert re.fullmatch(f"it {re.escape(how)}{when}", loss.ending)


async def test_a_flood_ends_a_cell(pool: SandboxPool) -> None:
    session = await pool.open_session(limits=Limits(output_bytes=10_000, wall_s=60))
    cut = await session.run("print('x' * 20_000)")
    assert cut.stdout_truncated and cut.stdout.count("x") == 9_999
    flood = await session.run("while True: print('x' * 1000)")
    assert flood.status is Status.OUTPUT_LIMIT
    assert (
        await value(session, "'y' * 20_000") == "'" + "y" * 4999 + "\n... [10002 bytes cut] ...\n" + "y" * 4999 + "'"
    )


async def test_a_short_flood_is_one_however_soon_the_cell_ends(pool: SandboxPool) -> None:
    """Nobody looks at what a cell writes in its first milliseconds: its end is heard of with it."""
    flood = "import os\nos.write(1, b'x' * 60_000)"
    session = await pool.open_session(limits=Limits(output_bytes=1000, wall_s=60))
    for _ in range(5):
        cell = await session.run(flood)
        assert cell.status is Status.OUTPUT_LIMIT and cell.stdout_truncated
    assert (await session.run("os.write(1, b'x' * 16_000); 1")).status is Status.OK
    assert (await pool.run(ExecRequest(code=flood, limits=session.limits))).status is Status.OUTPUT_LIMIT


async def test_cells_of_one_session_wait_for_each_other_and_others_do_not() -> None:
    async with SandboxPool(max_live=2) as pool:
        session, other = await pool.open_session(), await pool.open_session()
        await session.run("x = []")
        begun = asyncio.Event()
        code = "import time\ntry:\n    print('up')\n    time.sleep(600)\nfinally:\n    x.append(1)"
        slow = asyncio.create_task(session.run(code, wall_s=900, on_output=lambda stream, text: begun.set()))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        behind = [asyncio.create_task(session.run(f"x.append({i})")) for i in range(2, 12)]
        assert await value(other, "1") == "1" and not slow.done()
        slow.cancel()  # which interrupts it
        await asyncio.wait_for(asyncio.gather(*behind), PATIENCE_S)
        assert await value(session, "x") == str([1, *range(2, 12)])


async def test_a_deadline_holds_for_the_wait_too(pool: SandboxPool, session: LiveSession) -> None:
    first = asyncio.create_task(session.run("import time; time.sleep(60)"))
    await until(lambda: pool.in_flight == 1)
    with sandbox_error("deadline", "deadline"):
        await session.run("1", deadline=asyncio.get_running_loop().time() + 0.1)
    first.cancel()
    assert await value(session, "1") == "1"


async def test_a_cancelled_cell_is_interrupted_and_the_next_one_waits_for_that(
    pool: SandboxPool, session: LiveSession
) -> None:
    await session.run("x = 7")
    for _ in range(5):
        cell = asyncio.create_task(session.run("import time; time.sleep(60)"))
        await until(lambda: pool.in_flight == 1)
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        assert await value(session, "x") == "7"
    deadline = asyncio.get_running_loop().time() + 0.1
    with pytest.raises(SandboxError, match="deadline"):
        await session.run("import time; time.sleep(60)", deadline=deadline)
    assert await value(session, "x") == "7"


async def test_a_session_closed_under_its_cell(pool: SandboxPool, session: LiveSession) -> None:
    cell = asyncio.create_task(session.run("import time; time.sleep(60)"))
    await until(lambda: pool.in_flight == 1)
    await session.close()
    with pytest.raises(SessionLost) as loss:
        await cell
    assert loss.value.reason == "closed"
    await until(lambda: not programs_of(pool))


async def test_bad_arguments_are_the_callers_and_harm_nobody(pool: SandboxPool, session: LiveSession) -> None:
    for wall_s in (-1, float("nan"), 1e9):
        with pytest.raises(ValueError, match="wall_s"):
            await session.run("1", wall_s=wall_s)
    with pytest.raises(ValueError, match="code has"):
        await session.run("é" * (9 << 20))
    with pytest.raises(ValueError, match="seed"):
        await pool.open_session(seed=-1)
    assert await value(session, "1") == "1" and pool.in_flight == 0


async def test_a_seed_is_for_the_first_cell(pool: SandboxPool) -> None:
    draws = []
    for seed in (7, 7, None):
        session = await pool.open_session(seed=seed)
        draws.append([await value(session, "import random; random.random()") for _ in range(2)])
    assert draws[0] == draws[1] != draws[2] and draws[0][0] != draws[0][1]


async def test_the_least_recently_used_gives_way() -> None:
    async with SandboxPool(max_sessions=2) as pool:
        first, second = await pool.open_session(), await pool.open_session()
        await first.run("x = 1")
        third = await pool.open_session()
        assert await lost(second) == "evicted" and pool.evictions == 1
        assert await value(first, "x") == "1" and await value(third, "1") == "1"


async def test_idle_sessions_give_way_to_programs_that_need_memory() -> None:
    async with SandboxPool(memory_bytes=2 * GIB) as pool:
        session = await pool.open_session()
        filled = await session.run("x = bytearray(512 << 20)", wall_s=60)
        assert filled.status is Status.OK
        fits = await pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=GIB)))
        assert fits.value == "1" and session.lost is None
        await pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=2 * GIB)))
        assert await lost(session) == "evicted"


async def test_a_session_does_not_give_way_to_its_own_cell() -> None:
    async with SandboxPool(memory_bytes=3 * GIB // 2) as pool:
        session = await pool.open_session()
        await session.run("x = 1")
        slow = ExecRequest(code="import time; time.sleep(600)", limits=Limits(wall_s=900))
        program = asyncio.create_task(pool.run(slow))
        await until(lambda: len(programs_of(pool)) == 2)
        cell = asyncio.create_task(value(session, "x"))
        await until(lambda: len(pool._calls.sent) == 2)
        assert not cell.done()  # it waits for the program's memory
        program.cancel()
        assert await cell == "1"


async def test_a_lease_ends() -> None:
    async with SandboxPool(lease_s=0.1) as pool:
        session = await pool.open_session()
        await until(lambda: session.lost is not None)
        assert await lost(session) == "expired" and pool.sessions == 0


async def test_branches_go_on_from_the_same_state(pool: SandboxPool) -> None:
    root = await pool.open_session()
    await root.run("import random\nx = [0]\ndef f(): return len(x)")
    left = await root.branch()
    right = await root.branch()
    await left.run("x.append('left')")
    deeper = await left.branch()
    await deeper.run("x.append('deeper')")
    await root.run("x.append('root')")
    values = [await value(session, "x") for session in (root, left, right, deeper)]
    assert values == ["[0, 'root']", "[0, 'left']", "[0]", "[0, 'left', 'deeper']"]
    assert await value(deeper, "f()") == "3"
    await root.close()
    assert [await value(session, "random.random() < 1") for session in (left, right, deeper)] == ["True"] * 3
    result = await right.run("1 / 0")
    assert 'File "<cell 4>"' in result.stderr
    late = await deeper.run("while True: pass", wall_s=0.1)
    assert late.status is Status.TIMEOUT and await value(deeper, "f()") == "3"
    assert pool.sessions == 3


async def cancel_early_and_late(open_one: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Cancel the opening of a session after 0 to 19 turns of the loop; close what was opened."""
    for turns in range(20):
        task = asyncio.create_task(open_one())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and task.exception() is None:
            await task.result().close()


async def test_a_cancelled_branch_leaves_its_origin_alone(pool: SandboxPool, session: LiveSession) -> None:
    await session.run("x = 3")
    await cancel_early_and_late(session.branch)
    assert await value(session, "x") == "3"
    await until(lambda: pool.sessions == 1 and len(programs_of(pool)) == 1)


async def test_a_session_with_threads_is_not_branched(session: LiveSession) -> None:
    await session.run("import threading\nevent = threading.Event()\nthreading.Thread(target=event.wait).start()")
    with sandbox_error("cannot_branch", "threads", retryable=False):
        await session.branch()
    await session.run("event.set()\nfor thread in threading.enumerate()[1:]: thread.join()")
    assert await value(await session.branch(), "event.is_set()") == "True"


async def test_without_notification_there_are_no_branches() -> None:
    async with SandboxPool(without=("notify",)) as pool:
        session = await pool.open_session()
        await session.run("x = 1")
        with sandbox_error("cannot_branch"):
            await session.branch()
        assert await value(session, "x") == "1"


async def test_an_opened_session_without_a_caller_is_closed(pool: SandboxPool) -> None:
    await cancel_early_and_late(pool.open_session)
    await until(lambda: pool.sessions == 0 and pool.in_flight == 0 and not programs_of(pool))


async def test_what_no_cell_can_be_is_told_and_costs_the_session_nothing(session: LiveSession) -> None:
    with pytest.raises(TypeError, match=r"fetch is 'a\.png'. Pass a tuple of names"):
        await session.run("1", fetch="a.png")
    with pytest.raises(TypeError, match="code is of type int"):
        await session.run(5)  # type: ignore[arg-type]
    assert (await session.run("2")).value == "2"
