"""How far a batch runs ahead of its reader, and who waits for the window."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from rocstar.sandbox.pool import batch as batch_module
from rocstar.sandbox.pool import calls as module
from rocstar.sandbox.pool.batch import PoolBatch, perform_all
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.calls import Call, Calls
from rocstar.sandbox.types import ExecRequest, SandboxError, deadline_error
from tests.fakes.sandbox import ok

from .errors import sandbox_error

WINDOW = 4
REQUESTS = [ExecRequest(code=str(number)) for number in range(500)]


class Silent:
    """Takes every frame."""

    def __init__(self) -> None:
        self.writes: list[int] = []
        """Frames of each."""

    def ready(self) -> bool:
        return True

    def write(self, *pieces: bytes) -> None:
        self.writes.append(len(pieces))


def new_calls(line: Silent | None = None) -> Calls:
    return Calls(line or Silent(), window=WINDOW, max_queued=1000, unclaimed=lambda outcome: None)


def call_of(lane: int, weight: int = 1) -> Call:
    return Call(lambda call_id: [b""], 1.0, restartable=True, lane=lane, weight=weight)


def one_lane(request: object) -> Call:
    return call_of(1)


async def begun(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    """Starts work, which has run until it waits."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def answer_all(calls: Calls, stdout: str = "") -> int:
    """Until the supervisor has nothing left. Returns how many it answered."""
    answered = 0
    while calls.sent:
        calls.settle(next(iter(calls.sent)), ok(stdout))
        calls.send_more()
        answered += 1
    return answered


async def test_a_batch_runs_a_little_ahead_of_its_reader() -> None:
    """All of it ran at once, and the results waited in memory."""
    calls = new_calls()
    batch = perform_all(calls, REQUESTS, one_lane, None)
    first = await begun(anext(batch))
    assert answer_all(calls) == 2 * WINDOW + 16
    assert (await first)[0] == 0 and not calls.sent
    second = await begun(anext(batch))
    assert answer_all(calls) == 1 and (await second)[0] == 1
    await batch.aclose()


async def test_a_batch_starts_nothing_while_much_of_it_is_not_read(monkeypatch: Any) -> None:
    monkeypatch.setattr(batch_module, "MAX_UNREAD_BYTES", 1000)
    calls = new_calls()
    batch = perform_all(calls, REQUESTS, one_lane, None)
    first = await begun(anext(batch))
    ahead = answer_all(calls, "x" * 100)
    await first
    for _ in range(ahead - 11):
        assert (await anext(batch))[1] and not calls.sent
    reading = await begun(anext(batch))
    assert answer_all(calls) > 1 and await reading
    await batch.aclose()


async def test_what_was_read_of_a_batch_counts_no_more_whatever_was_added_to_it() -> None:
    calls = new_calls()
    batch = PoolBatch(calls, REQUESTS[:WINDOW], one_lane, None)
    batch.submit_more()
    for call in calls.sent.values():
        call.output.add_chunk("f", b"x" * 600)
    answer_all(calls, "y" * 100)
    assert batch.unread_bytes == WINDOW * 700
    while batch.ended:
        await batch.add_texts(call := batch.ended.popleft())
        _, outcome = batch.read(call)
        assert outcome.files == {"f": b"x" * 600}  # type: ignore[union-attr]
    assert not batch.unread_bytes and not batch.submitted


async def test_a_failure_behind_the_begin_of_a_file_is_a_failure() -> None:
    calls = new_calls()
    batch = perform_all(calls, REQUESTS[:1], one_lane, None)
    first = await begun(anext(batch))
    ((call_id, call),) = calls.sent.items()
    call.output.add_chunk("f", b"half of")
    calls.settle(call_id, failure := SandboxError("no", kind="too_large", retryable=False))
    assert await first == (0, failure)
    await batch.aclose()


async def test_a_deadline_that_passes_while_a_text_is_made_is_told_of(monkeypatch: Any) -> None:
    """It came out of the batch without an outcome."""
    reading = asyncio.Event()

    async def late_text(taken: CallOutput, result: Any) -> Any:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CallOutput, "add_to", late_text)
    calls, loop = new_calls(), asyncio.get_running_loop()
    batch = perform_all(calls, REQUESTS[:1], one_lane, loop.time() + 3600)
    timeouts: list[asyncio.Timeout] = []

    def timeout_at(when: float | None) -> asyncio.Timeout:
        timeouts.append(asyncio.timeout(None))
        return timeouts[-1]

    monkeypatch.setattr(asyncio, "timeout_at", timeout_at)
    first = await begun(anext(batch))
    ((_, call),) = calls.sent.items()
    call.output.add_chunk("f", b"")
    answer_all(calls)
    await reading.wait()
    timeouts[-1].reschedule(loop.time())
    index, outcome = await first
    assert index == 0 and outcome.kind == "deadline"  # type: ignore[union-attr]
    assert [one async for one in batch] == []


async def test_long_programs_are_sent_one_at_a_time() -> None:
    """To make a frame of sixteen megabytes takes some of the loop's time."""
    line = Silent()
    calls = new_calls(line)
    long = bytes(module.SENT_BYTES)
    for lane in range(WINDOW):
        call = call_of(lane)
        call.encode = lambda call_id: [b"", long]
        await calls.accept(call)
    calls.send_more()
    for sent in range(1, WINDOW + 1):
        assert line.writes == [2] * sent
        await asyncio.sleep(0)
    assert len(calls.sent) == WINDOW


async def test_what_can_be_sent_together_is_written_at_once() -> None:
    """Each write is a system call, and wakes the supervisor."""
    line = Silent()
    calls = new_calls(line)
    batch = perform_all(calls, REQUESTS, one_lane, None)
    first = await begun(anext(batch))
    assert line.writes == [WINDOW]
    for call_id in list(calls.sent)[:3]:
        calls.settle(call_id, ok(""))
    calls.send_more()
    assert line.writes == [WINDOW, 3]
    assert (await first)[0] == 0
    await batch.aclose()


async def test_a_lane_with_nothing_under_way_does_not_wait_for_the_window() -> None:
    calls = new_calls()
    for _ in range(20):
        await calls.accept(call_of(1))
        calls.send_more()
    assert len(calls.sent) == WINDOW
    for _ in range(3):
        await calls.accept(call_of(2))
        calls.send_more()
    assert [call.lane for call in calls.sent.values()] == [1] * WINDOW + [2]
    calls.fail_all(deadline_error())


async def test_what_came_of_a_lost_attempt_is_no_part_of_the_next() -> None:
    """A supervisor that died on the way of a file: it came back twice in one."""
    calls = new_calls()
    performing = await begun(calls.perform(call_of(1), None))
    for piece in (b"half of", b"all of it"):
        calls.requeue_lost()  # nothing is there yet, the first time
        calls.send_more()
        ((call_id, call),) = calls.sent.items()
        call.output.add_chunk("f", piece)
    calls.settle(call_id, ok())
    assert (await performing).files == {"f": b"all of it"}


async def test_the_answer_of_a_caller_that_is_cancelled_as_it_comes_is_nobodys() -> None:
    """It was given to a future that takes none any more, within the supervisor's connection."""
    unclaimed: list[object] = []
    calls = Calls(Silent(), window=WINDOW, max_queued=0, unclaimed=unclaimed.append)
    performing = await begun(calls.perform(call_of(1), None))
    performing.cancel()
    ((call_id, _),) = calls.sent.items()
    calls.settle(call_id, answer := ok())
    with pytest.raises(asyncio.CancelledError):
        await performing
    assert unclaimed == [answer] and calls.room.free == WINDOW


async def test_a_batch_tells_at_its_deadline_of_all_that_have_no_outcome() -> None:
    calls, loop = new_calls(), asyncio.get_running_loop()
    batch = perform_all(calls, REQUESTS[:9], one_lane, loop.time() + 3600)
    first = await begun(anext(batch))
    calls.settle(3, ok())
    assert (await first)[0] == 2
    await batch.aclose()
    batch = perform_all(calls, REQUESTS[:9], one_lane, loop.time() - 1)
    late = [(index, outcome.kind) async for index, outcome in batch]  # type: ignore[union-attr]
    assert late == [(index, "deadline") for index in range(9)]


async def test_a_call_whose_deadline_has_passed_is_not_begun() -> None:
    """Its answer could be there before the loop looked at the clock."""
    calls = Calls(Silent(), window=WINDOW, max_queued=0, unclaimed=lambda outcome: None)
    with sandbox_error("deadline", retryable=True):
        await calls.perform(call_of(1), asyncio.get_running_loop().time())
    assert calls.room.free == WINDOW and not calls.sent


async def test_a_batch_that_finds_no_room_waits_for_it_until_its_deadline() -> None:
    calls = Calls(Silent(), window=WINDOW, max_queued=0, unclaimed=lambda outcome: None)
    for _ in range(WINDOW):
        await calls.accept(call_of(1))
        calls.send_more()
    loop = asyncio.get_running_loop()
    batch = perform_all(calls, REQUESTS[:2], lambda request: call_of(2), loop.time() - 1)
    assert [index async for index, _ in batch] == [0, 1]
    batch = perform_all(calls, REQUESTS[:2], lambda request: call_of(2), None)
    first = await begun(anext(batch))
    assert not calls.room.free and answer_all(calls) == WINDOW
    await asyncio.sleep(0)
    assert answer_all(calls) and (await first)[0] == 0
    await batch.aclose()
    answer_all(calls)
    assert calls.room.free == WINDOW


@pytest.mark.parametrize("passes", [False, True])
async def test_a_call_that_nobody_waits_for_gives_its_place_back_while_others_run_on(passes: bool) -> None:
    """It kept its place, and its program, until its owner's turn came: some that slept and many that gave up
    left nobody a place."""
    calls = Calls(Silent(), window=WINDOW, max_queued=1, unclaimed=lambda outcome: None)
    for _ in range(WINDOW):
        await calls.accept(call_of(1))
        calls.send_more()
    loop = asyncio.get_running_loop()
    for _ in range(5):
        performing = await begun(calls.perform(call_of(1), loop.time() + 0.01 if passes else None))
        if not passes:
            performing.cancel()
        with pytest.raises((SandboxError, asyncio.CancelledError)):
            await performing
        assert len(calls) == WINDOW and calls.room.free == 1
    other = await begun(calls.perform(call_of(2), None))
    assert answer_all(calls) == WINDOW + 1 and (await other).status == "ok"
    assert calls.room.free == WINDOW + 1


async def test_a_call_that_failed_with_all_others_gives_its_place_back_once() -> None:
    calls = Calls(Silent(), window=WINDOW, max_queued=4, unclaimed=lambda outcome: None)
    performing = [asyncio.ensure_future(calls.perform(call_of(1), None)) for _ in range(WINDOW + 4)]
    await asyncio.sleep(0)
    calls.fail_all(SandboxError("no", kind="zygote_start", retryable=True))
    outcomes = await asyncio.gather(*performing, return_exceptions=True)
    assert all(isinstance(outcome, SandboxError) for outcome in outcomes)
    assert calls.room.free == WINDOW + 4 and not len(calls)


async def test_a_call_of_a_lost_supervisor_that_nobody_waits_for_waits_no_more() -> None:
    calls = new_calls()
    performing = await begun(calls.perform(call_of(1), None))
    calls.requeue_lost()
    performing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await performing
    assert not len(calls) and calls.room.free == WINDOW + 1000
