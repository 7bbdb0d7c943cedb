"""Decoding of large bodies outside the event loop, one of each owner at a time."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rocstar.sandbox.http.bodies import INLINE_BYTES, THREAD_BYTES, BodyReader
from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.service.dialects.native import decode_batch
from rocstar.sandbox.service.validation import ServiceLimits

from ...patience import PATIENCE_S

RULES = ServiceLimits(flavours=("stdlib",))
LARGE = b"x" * (INLINE_BYTES + 1)


def make_reader(pool: type[DecodePool] = DecodePool) -> BodyReader:
    return BodyReader(max_bytes=1 << 20, held=OwnerBudget(1 << 20), timeout_s=PATIENCE_S, decode_pool=pool(RULES))


@pytest.fixture
def body_reader() -> Iterator[BodyReader]:
    made = make_reader()
    yield made
    made.close()


class SlowDecode:
    """Decodes once `goes_on` is set. `begun`: a count of the bodies."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Semaphore(0), threading.Event()

    def __call__(self, body: bytes) -> str:
        self.begun.release()
        self.goes_on.wait(PATIENCE_S)
        return "slow"


async def test_bodies_of_one_owner_keep_no_others_waiting(body_reader: BodyReader) -> None:
    slow = SlowDecode()
    async with asyncio.timeout(PATIENCE_S):
        many = [asyncio.create_task(body_reader.decode("many", LARGE, slow)) for _ in range(9)]
        await asyncio.to_thread(slow.begun.acquire)
        assert await body_reader.decode("other", LARGE, len) == len(LARGE)
        many[0].cancel()  # its client disconnects; the thread goes on
        assert await body_reader.decode("other", LARGE, len) == len(LARGE)
        assert not slow.begun.acquire(blocking=False)
        slow.goes_on.set()
        assert await asyncio.gather(*many[1:]) == ["slow"] * 8


async def test_a_mistake_is_raised_and_the_next_has_its_turn(body_reader: BodyReader) -> None:
    def fail(body: bytes) -> None:
        raise RequestError("wrong", field="body")

    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(RequestError):
                await body_reader.decode("one", LARGE, fail)


async def test_what_is_being_decoded_at_the_end_is_refused(body_reader: BodyReader) -> None:
    """Also what waits for its turn, and what comes later."""
    slow = SlowDecode()
    async with asyncio.timeout(PATIENCE_S):
        decoding = [asyncio.create_task(body_reader.decode("one", LARGE, slow)) for _ in range(2)]
        await asyncio.to_thread(slow.begun.acquire)
        body_reader.end()
        outcomes = await asyncio.gather(*decoding, return_exceptions=True)
        slow.goes_on.set()
        with pytest.raises(RequestError, match="shutting down"):
            await body_reader.decode("one", LARGE, len)
    assert [str(outcome) for outcome in outcomes] == ["the service is shutting down"] * 2


def test_refused_calls_of_a_batch_keep_no_frames() -> None:
    """The garbage collector would traverse the frames of thirty thousand for five seconds."""
    body = json.dumps({"requests": [{"code": 1}, {"code": "a\0"}, {"code": "1"}]}).encode()
    calls = decode_batch(body, RULES).requests
    refused = [call for call in calls if isinstance(call, RequestError)]
    assert len(refused) == 2
    assert all(one.__traceback__ is None and one.__context__ is None for one in refused)


async def test_a_large_body_is_decoded_in_another_process() -> None:
    """In any thread of this one the JSON parser would hold the interpreter's lock."""
    sizes: list[int] = []

    class Watched(DecodePool):
        def call(self, decode: Callable[[bytes], Any], body: bytes) -> Any:
            sizes.append(len(body))
            return super().call(decode, body)

    body_reader, decode = make_reader(Watched), partial(decode_batch, service_limits=RULES)
    batch = b'{"requests":[{"code":"1"}]}'
    try:
        for size in (THREAD_BYTES, THREAD_BYTES + 1):
            call = await body_reader.decode("one", batch.ljust(size), decode)
            assert call.requests[0].code == "1"
        with pytest.raises(RequestError, match="not JSON: Extra data at character 28"):
            await body_reader.decode("one", (batch + b" x").ljust(size), decode)
    finally:
        body_reader.close()
    assert sizes == [THREAD_BYTES + 1] * 2


async def test_a_short_body_of_very_many_items_is_decoded_beside_the_loop(body_reader: BodyReader) -> None:
    """8 KiB of `{}`, each of which is invalid, take 40 ms."""
    for body, beside in ((b"[" + b"{}," * 2000 + b"{}]", True), (b"[" + b"x" * 8000 + b"]", False)):
        assert len(body) <= INLINE_BYTES
        thread = await body_reader.decode("one", body, lambda body: threading.current_thread())
        assert (thread is not threading.main_thread()) is beside
