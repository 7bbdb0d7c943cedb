"""Large bodies are decoded beside the loop, one of each owner at a time, and what is refused is small."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.service.decode import decode_batch
from rocstar.sandbox.service.errors import Refused, ServiceEnds
from rocstar.sandbox.service.incoming import MIDDLE_BYTES, SMALL_BYTES, Incoming
from rocstar.sandbox.service.rules import Rules

from ...patience import PATIENCE_S

RULES = Rules(flavours=("stdlib",))
LARGE = b"x" * (SMALL_BYTES + 1)


@pytest.fixture
def incoming() -> Iterator[Incoming]:
    made = Incoming(
        max_bytes=1 << 20, max_held_bytes=1 << 20, timeout_s=PATIENCE_S, apart=Apart(RULES, Refused)
    )
    yield made
    made.close()


async def test_bodies_of_one_owner_keep_no_others_waiting(incoming: Incoming) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slowly(body: bytes) -> str:
        begun.release()
        go_on.wait(PATIENCE_S)
        return "slow"

    async with asyncio.timeout(PATIENCE_S):
        many = [asyncio.create_task(incoming.decoded("many", LARGE, slowly)) for _ in range(9)]
        await asyncio.to_thread(begun.acquire)
        assert await incoming.decoded("other", LARGE, len) == len(LARGE)
        many[0].cancel()  # its client goes away: the thread has its work all the same
        assert await incoming.decoded("other", LARGE, len) == len(LARGE)
        assert not begun.acquire(blocking=False)
        go_on.set()
        assert await asyncio.gather(*many[1:]) == ["slow"] * 8


async def test_a_mistake_is_raised_and_the_next_has_its_turn(incoming: Incoming) -> None:
    def fail(body: bytes) -> None:
        raise Refused("wrong", field="body")

    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(Refused):
                await incoming.decoded("one", LARGE, fail)


async def test_what_is_being_decoded_at_the_end_is_refused(incoming: Incoming) -> None:
    """Also what waits for its turn, and what comes later."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slowly(body: bytes) -> None:
        begun.release()
        go_on.wait(PATIENCE_S)

    async with asyncio.timeout(PATIENCE_S):
        decoding = [asyncio.create_task(incoming.decoded("one", LARGE, slowly)) for _ in range(2)]
        await asyncio.to_thread(begun.acquire)
        incoming.end()
        outcomes = await asyncio.gather(*decoding, return_exceptions=True)
        go_on.set()
        with pytest.raises(ServiceEnds):
            await incoming.decoded("one", LARGE, len)
    assert [type(outcome) for outcome in outcomes] == [ServiceEnds] * 2


def test_refused_calls_of_a_batch_keep_no_frames() -> None:
    """Thirty thousand that did held the loop for five seconds, most of it the collector's."""
    body = json.dumps({"requests": [{"code": 1}, {"code": "a\0"}, {"code": "1"}]}).encode()
    calls = decode_batch(body, Rules(flavours=("stdlib",))).requests
    refused = [call for call in calls if isinstance(call, Refused)]
    assert len(refused) == 2
    assert all(one.__traceback__ is None and one.__context__ is None for one in refused)


async def test_a_large_body_is_decoded_in_another_process() -> None:
    """The JSON parser would hold the interpreter's lock for as long as it takes, in whatever thread."""
    sizes: list[int] = []

    class Watched(Apart):
        def call(self, decode: Callable[[bytes], Any], body: bytes) -> Any:
            sizes.append(len(body))
            return super().call(decode, body)

    incoming = Incoming(
        max_bytes=1 << 20, max_held_bytes=1 << 20, timeout_s=PATIENCE_S, apart=Watched(RULES, Refused)
    )
    try:
        for size in (MIDDLE_BYTES, MIDDLE_BYTES + 1):
            body = b'{"requests":[{"code":"1"}]}'.ljust(size)
            call = await incoming.decoded("one", body, partial(decode_batch, rules=RULES, owner="one"))
            assert call.requests[0].code == "1"
        with pytest.raises(Refused, match="not JSON: Extra data at character 28"):
            await incoming.decoded(
                "one", b'{"requests":[{"code":"1"}]} x'.ljust(size), partial(decode_batch, rules=RULES)
            )
    finally:
        incoming.close()
    assert sizes == [MIDDLE_BYTES + 1] * 2


async def test_a_short_body_of_very_many_items_is_decoded_beside_the_loop(incoming: Incoming) -> None:
    """8 KiB of `{}`, each of which is refused, took 40 ms of the loop."""
    for body, beside in ((b"[" + b"{}," * 2000 + b"{}]", True), (b"[" + b"x" * 8000 + b"]", False)):
        assert len(body) <= SMALL_BYTES
        thread = await incoming.decoded("one", body, lambda body: threading.current_thread())
        assert (thread is not threading.main_thread()) is beside
