"""Sessions over HTTP: state, branches, losses with their reasons, leases."""

import asyncio
from typing import Any

import pytest

from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, Limits, SandboxError, SessionLost
from tests.fakes.sandbox import FakeSandbox, error, ok, timeout

from .conftest import HeldSandbox


def fake() -> FakeSandbox:
    return FakeSandbox({"hang": timeout(), "wrong": error("NameError\n")}, otherwise=ok("1\n"))


async def opened(service: Any, **fields: Any) -> str:
    status, answer = await service.post("/v1/sessions", fields)
    assert status == 201
    name: str = answer["id"]
    return name


async def test_cells_of_a_session_share_an_interpreter(serve: Any) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        one, two = await opened(service), await opened(service)
        for name, code in ((one, "a"), (two, "b"), (one, "wrong"), (one, "c")):
            status, result = await service.post(f"/v1/sessions/{name}/run", {"code": code})
            assert (status, result["status"]) == (200, "error" if code == "wrong" else "ok")
    assert [session.lost for session in sandbox.sessions] == ["closed"] * 2  # with the service
    assert [session.cells for session in sandbox.sessions] == [["a", "wrong", "c"], ["b"]]


async def test_a_session_takes_flavour_limits_and_seed(serve: Any) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        name = await opened(service, flavour="numeric", limits={"wall_s": 2.0}, seed=7)
        await service.post(f"/v1/sessions/{name}/run", {"code": "x", "wall_s": 0.5})
    limits = Limits(wall_s=0.5)
    assert sandbox.requests == [ExecRequest(code="x", flavour="numeric", limits=limits, seed=7)]


async def test_a_branch_goes_on_from_the_same_state(serve: Any) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        name = await opened(service)
        await service.post(f"/v1/sessions/{name}/run", {"code": "a"})
        status, answer = await service.post(f"/v1/sessions/{name}/branch")
        assert status == 201
        await service.post(f"/v1/sessions/{answer['id']}/run", {"code": "b"})
        await service.post(f"/v1/sessions/{name}/run", {"code": "c"})
    assert [session.cells for session in sandbox.sessions] == [["a", "c"], ["a", "b"]]


@pytest.mark.parametrize("reason", ["evicted", "expired", "died", "supervisor_died"])
async def test_a_lost_session_is_a_410_with_its_reason(serve: Any, reason: str) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        name = await opened(service)
        sandbox.lose(sandbox.sessions[0], reason)
        for verb in ("run", "branch", "run"):  # the reason is remembered
            for one, why in ((name, reason), ("nobody", "unknown")):
                status, answer = await service.post(f"/v1/sessions/{one}/{verb}", {"code": "x"})
                failure = answer["error"]
                assert (status, failure["kind"], failure["reason"]) == (410, "session_lost", why)
        assert await service.metric("sessions_lost_total", reason=reason) == 1
        assert await service.metric("sessions") == 0


async def test_a_cell_that_is_killed_has_a_result_and_ends_its_session(serve: Any) -> None:
    async with serve(fake()) as service:
        name = await opened(service)
        status, result = await service.post(f"/v1/sessions/{name}/run", {"code": "hang"})
        assert (status, result["status"]) == (200, "timeout")
        status, answer = await service.post(f"/v1/sessions/{name}/run", {"code": "x"})
    assert (status, answer["error"]["reason"]) == (410, "died")


async def test_a_closed_session_is_gone(serve: Any) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        name = await opened(service)
        async with service.http.delete(f"/v1/sessions/{name}") as answer:
            assert answer.status == 204
        assert sandbox.sessions[0].lost == "closed"
        for call in (
            service.http.delete(f"/v1/sessions/{name}"),
            service.http.post(f"/v1/sessions/{name}/run", json={"code": "x"}),
        ):
            async with call as answer:
                assert (answer.status, (await answer.json())["error"]["reason"]) == (410, "closed")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"code": 1}, "code"),
        ({}, "code"),
        ({"code": "x", "wall_s": "1"}, "wall_s"),
        ({"code": "x", "stdin": "1"}, "stdin"),
        ({"code": "\ud800"}, "code"),
    ],
)
async def test_a_mistake_in_a_cell_leaves_the_session_alone(serve: Any, body: Any, field: str) -> None:
    sandbox = fake()
    async with serve(sandbox) as service:
        name = await opened(service)
        status, answer = await service.post(f"/v1/sessions/{name}/run", body)
        assert (status, answer["error"]["field"]) == (400, field)
        assert (await service.post(f"/v1/sessions/{name}/run", {"code": "x"}))[0] == 200


async def test_an_idle_session_expires(serve: Any, until: Any) -> None:
    sandbox = fake()
    async with serve(sandbox, session_lease_s=0.05) as service:
        name = await opened(service)
        await until(lambda: sandbox.sessions[0].lost)
        status, answer = await service.post(f"/v1/sessions/{name}/run", {"code": "x"})
    assert (status, answer["error"]["reason"]) == (410, "expired")


def far() -> float:
    return asyncio.get_running_loop().time() + 60


async def test_cells_of_a_session_run_one_after_the_other() -> None:
    slow = HeldSandbox()
    table = SessionTable(slow, ServiceMetrics(), OwnerBudget(9))
    name = await table.open("stdlib", DEFAULT_LIMITS, None)
    cells = [asyncio.create_task(table.run(name, str(i), deadline=far())) for i in range(5)]
    await asyncio.sleep(0)
    slow.gate.set()
    await asyncio.gather(*cells)
    assert (slow.most, slow.sessions[0].cells) == (1, ["0", "1", "2", "3", "4"])


async def test_the_least_recently_used_session_makes_room() -> None:
    sandbox = fake()
    table = SessionTable(sandbox, ServiceMetrics(), OwnerBudget(2))
    first, second = [await table.open("stdlib", DEFAULT_LIMITS, None) for _ in range(2)]
    await table.run(first, "x", deadline=far())
    third = await table.open("stdlib", DEFAULT_LIMITS, None)
    with pytest.raises(SessionLost) as loss:
        await table.run(second, "x", deadline=far())
    assert loss.value.reason == "evicted"
    for name in (first, third):
        await table.run(name, "x", deadline=far())
    assert len(table) == 2


async def test_a_busy_session_is_neither_evicted_nor_expired() -> None:
    slow = HeldSandbox()
    table = SessionTable(slow, ServiceMetrics(), OwnerBudget(1), lease_s=0.0)
    name = await table.open("stdlib", DEFAULT_LIMITS, None)
    cell = asyncio.create_task(table.run(name, "x", deadline=far()))
    await asyncio.sleep(0)
    await table.sweep()
    with pytest.raises(Exception, match="all 1 sessions are in use"):
        await table.open("stdlib", DEFAULT_LIMITS, None)
    slow.gate.set()
    assert (await cell).stdout == "1\n"
    assert [session.lost for session in slow.sessions] == [None, "closed"]


async def test_who_waits_for_a_session_that_ends_learns_why() -> None:
    slow = HeldSandbox()
    table = SessionTable(slow, ServiceMetrics(), OwnerBudget(9))
    name = await table.open("stdlib", DEFAULT_LIMITS, None)
    cell = asyncio.create_task(table.run(name, "x", deadline=far()))
    waiting = asyncio.create_task(table.run(name, "y", deadline=far()))
    late = asyncio.create_task(table.run(name, "z", deadline=0.0))
    with pytest.raises(SandboxError, match="deadline"):  # and the others wait on
        await late
    await table.close(name)
    slow.gate.set()
    await asyncio.gather(cell, return_exceptions=True)
    with pytest.raises(SessionLost) as loss:
        await waiting
    assert loss.value.reason == "closed"


def chosen(code: str) -> str:
    return "plot" if "matplotlib" in code else "stdlib"


async def test_a_session_of_no_flavour_gets_its_first_cells() -> None:
    sandbox = fake()
    table = SessionTable(sandbox, ServiceMetrics(), OwnerBudget(9), select_flavour=chosen)
    plots, plain, named = [await table.open(name, DEFAULT_LIMITS, 3) for name in ("auto", "auto", "stdlib")]
    for session in (plots, plain, named):
        for code in ("import matplotlib" if session != plain else "1", "import matplotlib"):
            await table.run(session, code, deadline=far())
    taken = [request.flavour for request in sandbox.requests]
    assert taken == ["plot", "plot", "stdlib", "stdlib", "stdlib", "stdlib"]
    assert {request.seed for request in sandbox.requests} == {3}
    assert [session.lost for session in sandbox.sessions] == ["closed", None, None, None]


async def test_without_room_for_its_flavour_a_session_goes_on_in_another() -> None:
    class Full(FakeSandbox):
        async def open_session(self, **options: Any) -> Any:
            if self.sessions:
                raise SandboxError("no room", kind="full", retryable=True)
            return await super().open_session(**options)

    sandbox = Full({}, otherwise=ok("1"))
    table = SessionTable(sandbox, ServiceMetrics(), OwnerBudget(9), select_flavour=chosen)
    session = await table.open("auto", DEFAULT_LIMITS, None)
    await table.run(session, "import matplotlib", deadline=far())
    assert [request.flavour for request in sandbox.requests] == ["stdlib"]
