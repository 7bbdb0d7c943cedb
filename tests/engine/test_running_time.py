"""What passed while our own loop stood still is no verdict on a server or a node."""

import asyncio
from typing import Any

import pytest

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.api import Api, Loads
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.requests import LiveRequest
from rocstar.engine.running_time import MAX_BEAT_S, RunningClock, running_timeout
from tests.fakes.scripted_policy import VirtualClockLoop, run_virtual


def stand_still(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.stand_still(seconds)


def test_an_answer_that_came_while_the_loop_stood_still_is_heard() -> None:
    """Both are due when it goes on, the timer and the answer: the answer counts."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for at in (0.5, 8.0, 59.5):
            answer = loop.create_future()

            def block(answer: asyncio.Future[int]) -> None:
                stand_still(90.0)
                loop.call_soon(loop.call_soon, answer.set_result, 1)  # behind the timers that are due

            loop.call_later(at, block, answer)
            async with running_timeout(60.0):
                assert await answer == 1

    run_virtual(main())


def test_a_clock_that_is_read_before_its_beat_leaves_out_a_standstill() -> None:
    async def main() -> float:
        with RunningClock() as clock:
            stand_still(90.0)
            return clock.time()

    assert run_virtual(main()) == MAX_BEAT_S


def test_a_deadline_in_which_the_loop_ran_is_one() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(30.0, stand_still, 100.0)
        begun = loop.time()
        with pytest.raises(TimeoutError):
            async with running_timeout(60.0):
                await loop.create_future()
        assert 158.0 < loop.time() - begun < 163.0

    run_virtual(main())


def test_a_clock_tells_what_the_loop_ran() -> None:
    async def main() -> None:
        with RunningClock() as clock:
            await asyncio.sleep(10.0)
            stand_still(90.0)
            assert clock.time() < 12.0
            await asyncio.sleep(10.0)
            assert 19.0 < clock.time() < 23.0

    run_virtual(main())


def test_healthy_servers_outlive_a_loop_that_was_blocked_for_longer_than_their_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten, of which each is asked at that moment, and answers in time."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in range(10)]

        async def exchange(self: Api, *_: Any) -> bytes:
            content: bytes = await answers[int(self.url)]
            return content

        monkeypatch.setattr(Api, "_exchange", exchange)
        apis = [Api(str(k), timeout_s=60.0) for k in range(10)]
        asked = [asyncio.ensure_future(api.get("/v1/loads")) for api in apis]

        def block() -> None:
            stand_still(61.0)
            for answer in answers:
                loop.call_soon(loop.call_soon, answer.set_result, b"{}")

        loop.call_later(0.2, block)
        return await asyncio.gather(*asked)

    assert run_virtual(main()) == [{}] * 10


def test_a_server_that_does_not_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def exchange(self: Api, *_: Any) -> bytes:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        monkeypatch.setattr(Api, "_exchange", exchange)
        with pytest.raises(InferenceError, match="replica_hung"):
            await Api("x", timeout_s=60.0).get("/v1/loads")
        assert asyncio.get_running_loop().time() < 62.0

    run_virtual(main())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_scheduler_did_not_stand_still_because_we_did(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that is in flight when we are blocked tells of a snapshot from before."""

    async def main() -> InferenceError | None:
        loop = asyncio.get_running_loop()
        engine = SGLangEngine("x", vocab_size=8, hang_timeout_s=60.0)
        engine._live["s0/t/0"] = LiveRequest(rid="r")

        async def loads(self: Api) -> Loads:
            taken_at = 1.0 if hangs else loop.time() // 5  # it is written every five seconds
            await asyncio.sleep(0.4)
            return Loads(total_tokens=1, used_tokens=1, running=1, waiting=0, taken_at=taken_at)

        monkeypatch.setattr(Api, "loads", loads)
        loop.call_later(12.3, stand_still, 90.0)
        watching = asyncio.ensure_future(engine._watch())
        await asyncio.sleep(200.0)
        watching.cancel()
        return engine.broken

    broken = run_virtual(main())
    assert (broken is not None and broken.kind == "replica_hung") == hangs
