"""The fake's batches and sessions keep the promises of types.py."""

import asyncio

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.testing import FakeSandbox, error, ok, timeout
from rocstar.sandbox.types import ExecRequest, SandboxError, SessionLost, SessionSandbox

from ...patience import PATIENCE_S

DIED = SandboxError("died", kind="zygote_died", retryable=True)


async def test_a_batch_has_every_outcome_once() -> None:
    fake: SessionSandbox = FakeSandbox({"a": ok("1"), "b": DIED, "c": error("e")})
    requests = [ExecRequest(code=code) for code in "abc"]
    found = {index: outcome async for index, outcome in fake.run_batch(requests)}
    assert (found[0], found[1], found[2]) == (ok("1"), DIED, error("e"))


async def test_a_session_remembers_its_cells_and_branches() -> None:
    fake = FakeSandbox({}, otherwise=ok())
    session = await fake.open_session()
    await session.run("a")
    branch = await session.branch()
    await session.run("b")
    await branch.run("c")
    assert ([session.cells, branch.cells], session.id != branch.id) == ([["a", "b"], ["a", "c"]], True)


@pytest.mark.parametrize("reason", ["evicted", "expired"])
async def test_a_session_can_be_taken_away(reason: str) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    session = await fake.open_session()
    fake.lose(session, reason)
    for use in (session.run("a"), session.branch()):
        with pytest.raises(SessionLost) as loss:
            await use
        assert loss.value.reason == reason
    assert fake.requests == []


async def test_a_scripted_loss_ends_the_session() -> None:
    fake = FakeSandbox({"a": SessionLost("gone", reason="supervisor_died")}, otherwise=ok())
    session = await fake.open_session()
    for code in ("a", "b"):
        with pytest.raises(SessionLost) as loss:
            await session.run(code)
        assert loss.value.reason == "supervisor_died"


@pytest.mark.parametrize(
    ("code", "lives"), [("1/0", True), ("import os; os._exit(3)", False), ("x = 1", True)]
)
async def test_it_lives_and_dies_as_the_real_one_does(code: str, lives: bool) -> None:
    script = {"1/0": error("ZeroDivisionError\n"), "import os; os._exit(3)": error("", exit_code=3)}
    async with SandboxPool() as pool:
        for sandbox in (pool, FakeSandbox(script, otherwise=ok())):
            session = await sandbox.open_session()
            await session.run(code)
            if lives:
                await session.run("2")
                continue
            with pytest.raises(SessionLost) as loss:
                await session.run("2")
            assert loss.value.reason == "died", sandbox


async def test_a_closed_session_is_lost_in_both() -> None:
    async with SandboxPool() as pool:
        for sandbox in (pool, FakeSandbox({"a": timeout()})):
            session = await sandbox.open_session()
            await session.close()
            with pytest.raises(SessionLost) as loss:
                await asyncio.wait_for(session.run("a"), PATIENCE_S)
            assert loss.value.reason == "closed", sandbox
