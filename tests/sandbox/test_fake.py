"""The fake against what the real pool answered, and the recordings against the pool as it is now."""

import asyncio
import dataclasses
import json
import platform
import re
from typing import Any

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Sandbox, SandboxError, SessionLost, SessionSandbox, Status
from tests.fakes import sandbox as fake_sandbox
from tests.fakes.sandbox import FakeSandbox, result_from_json

from ..patience import PATIENCE_S
from .errors import sandbox_error
from .record import LIMITS, RECORDINGS, record_session

RECORDED = json.loads(RECORDINGS.read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = RECORDED["cases"]

SESSIONS: list[list[dict[str, Any]]] = RECORDED["sessions"]

MEASURED = {"wall_s": 0.0, "cpu_s": 0.0, "peak_memory_bytes": 0, "isolation": "", "tier": ""}
"""Fields that differ from run to run, and what they are replaced by before comparing."""

BUILDERS = {
    Status.OK: fake_sandbox.ok(),
    Status.ERROR: fake_sandbox.error(),
    Status.SIGNALED: fake_sandbox.signaled(),
    Status.TIMEOUT: fake_sandbox.timeout(),
    Status.MEMORY_LIMIT: fake_sandbox.memory_limit(),
    Status.OUTPUT_LIMIT: fake_sandbox.output_limit(),
    Status.DENIED: fake_sandbox.denied(),
}


CUT = re.compile(r"\d+ bytes cut")


def repeatable(result: ExecResult) -> ExecResult:
    """Without measurements; under another Python than the recorder's, without the traceback's drawing."""
    result = dataclasses.replace(result, **MEASURED)
    if result.status is Status.OUTPUT_LIMIT:  # it may write another pipe full before it is killed
        result = dataclasses.replace(result, stdout=CUT.sub("bytes cut", result.stdout))
    same = platform.python_version_tuple()[:2] == tuple(RECORDED["python"].split(".")[:2])
    return result if same else dataclasses.replace(result, stderr="".join(result.stderr.splitlines()[-1:]))


async def test_the_recordings_are_what_the_pool_answers_now() -> None:
    async with SandboxPool() as pool:
        for case in CASES:
            result = await pool.run(ExecRequest(code=case["code"], limits=LIMITS))
            assert repeatable(result) == repeatable(result_from_json(case["result"])), case["code"]
        for cells in SESSIONS:
            for now, cell in zip(await record_session(pool, [cell["code"] for cell in cells]), cells, strict=True):
                if "lost" in cell:
                    assert now == cell
                    continue
                result, recorded = (result_from_json(one["result"]) for one in (now, cell))
                if recorded.status is Status.OUTPUT_LIMIT:  # where it is interrupted is chance
                    assert (result.status, result.exit_code, result.signal) == (Status.OUTPUT_LIMIT, 1, None)
                else:
                    assert repeatable(result) == repeatable(recorded), cell["code"]


# A script says nothing of an exit with code 0: FakeSandbox.lose does.
@pytest.mark.parametrize(
    "cells", [c for c in SESSIONS if c[0]["code"] != "exit()"], ids=lambda cells: cells[0]["code"]
)
async def test_a_fake_session_is_lost_as_the_real_one(cells: list[dict[str, Any]]) -> None:
    script = {cell["code"]: result_from_json(cell["result"]) for cell in cells if "result" in cell}
    session = await FakeSandbox(script, otherwise=fake_sandbox.ok()).open_session()
    for cell in cells:
        if "lost" not in cell:
            assert await session.run(cell["code"]) == result_from_json(cell["result"])
            continue
        with pytest.raises(SessionLost) as loss:
            await session.run(cell["code"])
        assert loss.value.reason == cell["lost"]


def test_every_status_is_recorded() -> None:
    assert {case["result"]["status"] for case in CASES} == {*Status}


@pytest.mark.parametrize("status", Status)
def test_each_builder_ends_as_the_real_thing_does(status: Status) -> None:
    endings = {
        (case["result"]["exit_code"], case["result"]["signal"]) for case in CASES if case["result"]["status"] == status
    }
    fake = BUILDERS[status]
    assert fake.status is status
    assert (fake.exit_code, fake.signal) in endings


async def test_replayed_recordings_are_the_recorded_results() -> None:
    fake: Sandbox = FakeSandbox.from_recordings(RECORDINGS)
    for case in CASES:
        assert await fake.run(ExecRequest(code=case["code"])) == result_from_json(case["result"])


async def test_a_scripted_failure_is_raised_and_an_unknown_code_is_a_mistake() -> None:
    fake = FakeSandbox({"a": SandboxError("down", kind="zygote_died", retryable=True)})
    with pytest.raises(SandboxError, match="down"):
        await fake.run(ExecRequest(code="a"))
    with pytest.raises(LookupError, match="no answer to 'b'"):
        await fake.run(ExecRequest(code="b"))


async def test_a_passed_deadline_fails_as_in_the_pool() -> None:
    past = asyncio.get_running_loop().time() - 1
    request = ExecRequest(code="1")
    async with SandboxPool() as pool:
        for sandbox in (FakeSandbox({}, otherwise=fake_sandbox.ok()), pool):
            with sandbox_error("deadline", retryable=True):
                await sandbox.run(request, deadline=past)


async def test_a_batch_has_every_outcome_once() -> None:
    died = SandboxError("died", kind="zygote_died", retryable=True)
    fake: SessionSandbox = FakeSandbox({"a": fake_sandbox.ok("1"), "b": died, "c": fake_sandbox.error("e")})
    requests = [ExecRequest(code=code) for code in "abc"]
    found = {index: outcome async for index, outcome in fake.run_batch(requests)}
    assert (found[0], found[1], found[2]) == (fake_sandbox.ok("1"), died, fake_sandbox.error("e"))


async def test_a_session_remembers_its_cells_and_branches() -> None:
    fake = FakeSandbox({}, otherwise=fake_sandbox.ok())
    session = await fake.open_session()
    await session.run("a")
    branch = await session.branch()
    await session.run("b")
    await branch.run("c")
    assert ([session.cells, branch.cells], session.id != branch.id) == ([["a", "b"], ["a", "c"]], True)


@pytest.mark.parametrize("reason", ["evicted", "expired"])
async def test_a_session_can_be_taken_away(reason: str) -> None:
    fake = FakeSandbox({}, otherwise=fake_sandbox.ok())
    session = await fake.open_session()
    fake.lose(session, reason)
    for use in (session.run("a"), session.branch()):
        with pytest.raises(SessionLost) as loss:
            await use
        assert loss.value.reason == reason
    assert fake.requests == []


async def test_a_scripted_loss_ends_the_session() -> None:
    fake = FakeSandbox({"a": SessionLost("gone", reason="supervisor_died")}, otherwise=fake_sandbox.ok())
    session = await fake.open_session()
    for code in ("a", "b"):
        with pytest.raises(SessionLost) as loss:
            await session.run(code)
        assert loss.value.reason == "supervisor_died"


async def test_a_closed_session_is_lost_in_both() -> None:
    async with SandboxPool() as pool:
        for sandbox in (pool, FakeSandbox({"a": fake_sandbox.timeout()})):
            session = await sandbox.open_session()
            await session.close()
            with pytest.raises(SessionLost) as loss:
                await asyncio.wait_for(session.run("a"), PATIENCE_S)
            assert loss.value.reason == "closed", sandbox
