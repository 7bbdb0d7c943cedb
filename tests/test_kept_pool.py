"""A supervisor outlives a pool only where nothing of that pool is left in it."""

import asyncio
from collections.abc import Iterator

import pytest

from rocstar.sandbox.types import ExecRequest, Limits

from .kept_pool import KeptPool
from .patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: list[object] = []
    monkeypatch.setattr(KeptPool, "kept", kept)
    yield
    for one in KeptPool.kept:
        one.end()


async def supervisor_of(pool: KeptPool, code: str) -> int:
    async with pool:
        result = await pool.run(ExecRequest(code=code, limits=Limits(wall_s=PATIENCE_S)))
        assert (result.stdout, pool.tier != "") == ("42\n", True)
        return pool.supervisor_pid


def test_the_next_pool_has_the_supervisor_of_the_last_on_a_loop_of_its_own() -> None:
    pids = {asyncio.run(supervisor_of(KeptPool(max_sessions=0), "print(6 * 7)")) for _ in range(3)}
    assert len(pids) == len(KeptPool.kept) == 1


@pytest.mark.parametrize("max_sessions", [0, 1])
def test_what_had_a_call_or_may_have_sessions_ends_with_its_pool(max_sessions: int) -> None:
    async def left() -> None:
        async with KeptPool(max_sessions=max_sessions) as pool:
            if max_sessions == 0:
                call = asyncio.ensure_future(pool.run("import time; time.sleep(600)"))
                while not pool._calls.sent:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0)
                call.cancel()
            process = pool._restarter._supervisor._process  # type: ignore[union-attr]
        assert process.returncode is not None

    asyncio.run(left())
    assert KeptPool.kept == []
