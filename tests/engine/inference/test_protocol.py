"""Contract 3, asked of the real engine and of the fake by the same code.

Both continue token n with n + 1: the embedded engine through a model that counts, ScriptedPolicy by script.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from rocstar.engine.inference.base import Inference, InferenceError, Sampling, StopReason
from tests.fakes import asking
from tests.fakes.scripted_policy import Reply, Request, ScriptedPolicy

VOCAB = 300
LONG = 200_000


def count(request: Request) -> Reply:
    first = request.ids[-1] + 1
    return Reply(ids=tuple((first + k) % VOCAB for k in range(VOCAB)), stops=False)


@pytest.fixture(params=["embedded", "scripted"])
def start(request: pytest.FixtureRequest, embedded: Any, counting: Any) -> Callable[..., Any]:
    """`async with start(max_running=..) as engine`, for either."""

    @asynccontextmanager
    async def scripted(*, max_running: int = 4, max_length: int = 1 << 20) -> AsyncIterator[ScriptedPolicy]:
        yield ScriptedPolicy(count, token_s=0.0, max_running=max_running, max_length=max_length, vocab_size=VOCAB)

    @asynccontextmanager
    async def real(*, max_running: int = 4, max_length: int = 1 << 20) -> AsyncIterator[Inference]:
        async with embedded(counting(max_length=max_length), max_running=max_running) as engine:
            yield engine

    return real if request.param == "embedded" else scripted


ask = partial(asking.ask, max_new_tokens=5, stop_ids=frozenset({0}), sampling=Sampling(temperature=1.0), seed=7)


async def test_stop_token_is_included(start: Any) -> None:
    async with start() as engine:
        got = await ask(engine, [3, 10], stop_ids=frozenset({13, 99}))
        assert (got.ids, got.finish) == ((11, 12, 13), StopReason.stop)
        assert got.version_spans == ((0, 3, 0),)
        assert got.cached_tokens == 0
        assert len(got.logprobs) == 3 and all(isinstance(x, float) and x <= 0.0 for x in got.logprobs)


@pytest.mark.parametrize(
    ("limit", "ids", "finish"),
    [
        (5, (11, 12, 13, 14, 15), StopReason.length),
        (1, (11,), StopReason.length),
        (7, (11, 12, 13, 14, 15, 16, 17), StopReason.stop),
    ],
)
async def test_limit_cuts_but_a_stop_at_the_limit_is_a_stop(start: Any, limit: int, ids: Any, finish: Any) -> None:
    async with start() as engine:
        got = await ask(engine, [10], max_new_tokens=limit, stop_ids=frozenset({17}))
        assert (got.ids, got.finish) == (ids, finish)


async def test_no_stop_ids_means_length_and_the_callers_list_is_left_alone(start: Any) -> None:
    async with start() as engine:
        ids = [1, 2]
        assert (await ask(engine, ids, stop_ids=frozenset())).finish is StopReason.length
        assert ids == [1, 2]


@pytest.mark.parametrize(
    ("ids", "changes", "kind"),
    [
        ([], {}, "bad_request"),
        ([1], {"max_new_tokens": 0}, "bad_request"),
        ([1], {"seed": -1}, "bad_request"),
        ([1], {"seed": 1 << 64}, "bad_request"),
        ([1] * 30, {"max_new_tokens": 3}, "too_long"),
        ([1, VOCAB], {}, "bad_token"),
        ([-1, 1], {}, "bad_token"),
    ],
)
async def test_bad_requests_are_refused_and_harm_nobody(start: Any, ids: Any, changes: Any, kind: str) -> None:
    async with start(max_length=32) as engine:
        with pytest.raises(InferenceError) as caught:
            await ask(engine, ids, **changes)
        assert (caught.value.kind, caught.value.retryable) == (kind, False)
        assert (await ask(engine, [1] * 30, max_new_tokens=2)).ids == (2, 3)


async def test_second_request_of_a_running_trajectory_is_refused(start: Any, until: Any) -> None:
    async with start() as engine:
        first = asyncio.create_task(ask(engine, [1], max_new_tokens=LONG))
        await until(lambda: engine.load().used > 3)
        with pytest.raises(InferenceError, match="bad_request"):
            await ask(engine, [1])
        await engine.abort("s0/t/0")
        assert (await first).ids[:3] == (2, 3, 4)


async def test_abort_answers_with_what_there_is(start: Any, until: Any) -> None:
    async with start() as engine:
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=LONG, stop_ids=frozenset()))
        await until(lambda: engine.load().used > 4)
        await engine.abort("s0/t/0")
        got = await running
        assert got.finish is StopReason.aborted
        assert got.ids == tuple((2 + k) % VOCAB for k in range(len(got.ids))) and 3 <= len(got.ids) < LONG
        assert len(got.logprobs) == len(got.ids) and got.version_spans == ((0, len(got.ids), 0),)
        assert engine.load().running == 0
        again = await ask(engine, [1, *got.ids], max_new_tokens=1)
        assert again.ids == ((got.ids[-1] + 1) % VOCAB,)


async def test_abort_of_a_waiting_request_is_empty(start: Any, until: Any) -> None:
    async with start(max_running=1) as engine:
        await ask(engine, [1])  # holds the only slot until its release
        waiting = asyncio.create_task(ask(engine, [1], "s0/b/0"))
        await until(lambda: engine.load().waiting == 1)
        await engine.abort("s0/b/0")
        got = await waiting
        assert (got.ids, got.logprobs, got.version_spans, got.finish) == ((), (), (), StopReason.aborted)
        assert engine.load().waiting == 0


async def test_unknown_ids_are_ignored(start: Any) -> None:
    async with start() as engine:
        await engine.abort("s0/nobody/0")
        engine.release("s0/nobody/0")
        assert (await ask(engine, [1])).ids[0] == 2


async def test_slot_belongs_to_a_trajectory_until_release(start: Any, until: Any) -> None:
    async with start(max_running=1) as engine:
        await ask(engine, [1])
        waiting = asyncio.create_task(ask(engine, [5], "s0/b/0"))
        await until(lambda: engine.load().waiting == 1)
        assert (await ask(engine, [1, 2, 3, 4, 5, 6, 7])).ids[0] == 8  # its own next turn needs no new slot
        assert not waiting.done()
        engine.release("s0/t/0")
        assert (await waiting).ids[0] == 6


async def test_release_of_a_running_trajectory_aborts_it(start: Any, until: Any) -> None:
    async with start(max_running=1) as engine:
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=LONG, stop_ids=frozenset()))
        await until(lambda: engine.load().used > 3)
        engine.release("s0/t/0")
        assert (await running).finish is StopReason.aborted
        await until(lambda: engine.load().used == 0)
        assert (await ask(engine, [1], "s0/b/0")).ids[0] == 2


@pytest.mark.parametrize("ahead_s", [-1.0, 0.01])
async def test_deadline_raises_and_frees_the_slot(start: Any, until: Any, ahead_s: float) -> None:
    async with start(max_running=1) as engine:
        deadline = asyncio.get_running_loop().time() + ahead_s
        with pytest.raises(TimeoutError):
            await ask(engine, [1], max_new_tokens=LONG, stop_ids=frozenset(), deadline=deadline)
        await until(lambda: engine.load().running == 0)
        engine.release("s0/t/0")
        assert (await ask(engine, [1], "s0/b/0")).ids[0] == 2
        assert engine.load().running == 0 and engine.load().waiting == 0


async def test_deadline_of_a_waiting_request(start: Any) -> None:
    async with start(max_running=1) as engine:
        await ask(engine, [1])
        with pytest.raises(TimeoutError):
            await ask(engine, [1], "s0/b/0", deadline=asyncio.get_running_loop().time() + 0.01)
        engine.release("s0/b/0")
        engine.release("s0/t/0")
        assert (await ask(engine, [1], "s0/c/0")).ids[0] == 2


async def test_cancelled_request_leaves_nothing_behind(start: Any, until: Any) -> None:
    async with start(max_running=1) as engine:
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=LONG, stop_ids=frozenset()))
        await until(lambda: engine.load().used > 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        engine.release("s0/t/0")
        await until(lambda: engine.load().used == 0)
        assert (await ask(engine, [1], "s0/b/0")).ids[0] == 2


async def test_versions_only_rise(start: Any) -> None:
    async with start() as engine:
        await engine.publish(3)
        assert (await ask(engine, [1])).version_spans == ((0, 5, 3),)
        for version in (3, 2, 0, -1):
            with pytest.raises(ValueError, match="does not follow"):
                await engine.publish(version)
        assert (await ask(engine, [1])).version_spans == ((0, 5, 3),)


async def test_publish_mid_flight_splits_the_spans(start: Any, until: Any) -> None:
    async with start() as engine:
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=LONG, stop_ids=frozenset()))
        await until(lambda: engine.load().used > 3)
        await engine.publish(4)
        seen = engine.load().used
        await until(lambda: engine.load().used > seen + 2)
        await engine.abort("s0/t/0")
        got = await running
        (a, b, before), (c, d, after) = got.version_spans
        assert (a, b, d) == (0, c, len(got.ids)) and (before, after) == (0, 4) and 0 < b < d
        assert got.ids == tuple((2 + k) % VOCAB for k in range(d))


async def test_cached_tokens_of_the_next_turn(start: Any) -> None:
    async with start() as engine:
        first = await ask(engine, [1, 2, 3])
        grown = [1, 2, 3, *first.ids, 50]
        second = await ask(engine, grown)
        assert second.cached_tokens == len(grown) - 2  # all but the last sampled token and the new one
        await engine.publish(1)
        assert (await ask(engine, [*grown, *second.ids, 60])).cached_tokens == 0
        assert (await ask(engine, [9, 9, 9])).cached_tokens == 0  # another text under the same name
        assert (await ask(engine, [9, 9, 9, 10, 11, 12, 13])).cached_tokens == 6  # all known: the last is asked again


async def test_load_counts_tokens_and_requests(start: Any, until: Any) -> None:
    async with start(max_running=2, max_length=100) as engine:
        empty = engine.load()
        assert (empty.total, empty.used, empty.running, empty.waiting) == (200, 0, 0, 0)
        await ask(engine, [1, 2])
        await ask(engine, [1, 2, 3], "s0/b/0")
        waiting = asyncio.create_task(ask(engine, [1], "s0/c/0"))
        await until(lambda: engine.load().waiting == 1)
        full = engine.load()
        assert (full.used, full.running, full.waiting) == (2 + 5 + 3 + 5, 0, 1)
        engine.release("s0/t/0")
        await waiting
        for name in ("s0/b/0", "s0/c/0"):
            engine.release(name)
        await until(lambda: engine.load().used == 0)
        assert engine.load().waiting == 0


async def test_many_requests_share_few_slots(start: Any) -> None:
    async with start(max_running=3) as engine:

        async def one(k: int) -> None:
            ids = [k]
            for _ in range(3):
                got = await ask(engine, ids, f"s0/t/{k}", max_new_tokens=1 + k % 4, stop_ids=frozenset())
                assert got.ids == tuple((ids[-1] + 1 + j) % VOCAB for j in range(1 + k % 4))
                ids += [*got.ids, 2 * k]
            engine.release(f"s0/t/{k}")

        async with asyncio.TaskGroup() as group:
            for k in range(40):
                group.create_task(one(k))
        assert engine.load().running == 0


async def test_tokens_are_told_as_they_come_until_the_release(start: Any) -> None:
    async with start() as engine:
        heard: list[tuple[int, int]] = []
        engine.on_tokens("s0/t/0", lambda place, token, _: heard.append((place, token)))
        got = await ask(engine, [3, 10])
        assert heard == list(enumerate(got.ids))
        again = await ask(engine, [3, 10, *got.ids])
        assert heard[5:] == list(enumerate(again.ids))
        engine.release("s0/t/0")
        await ask(engine, [3, 10])
        assert len(heard) == 10
