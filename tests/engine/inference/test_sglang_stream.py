"""SGLang token by token: what is told is the answer, in order and once; and how a stream fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.inference.base import InferenceError, StopReason, TellsTokens
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.sglang.requests import StreamedReply
from rocstar.engine.inference.weights import DiskWeights
from tests.fakes.asking import ask
from tests.fakes.sglang.fake_model import EOS, VOCAB
from tests.fakes.sglang.fake_server import FakeServer

LONG = 150


Told = list[tuple[int, int]]


@pytest.fixture
def start(sglang: Any) -> Callable[..., Any]:
    """`async with start() as (engine, server, told)`, where `told` has the tokens of "s0/t/0"."""

    @asynccontextmanager
    async def started(**options: Any) -> AsyncIterator[tuple[SGLangEngine, FakeServer, Told]]:
        async with sglang(**options) as (engine, server):
            told: Told = []
            engine.on_tokens("s0/t/0", lambda place, token, _: told.append((place, token)))
            yield engine, server, told

    return started


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("in_bytes", [False, True])
async def test_it_is_the_answer_that_comes_at_once(start: Any, incremental: bool, in_bytes: bool) -> None:
    """Ids, log-probs, versions, cached tokens and why it ended."""
    async with start(incremental=incremental) as (engine, server, told):
        server.faults.in_bytes = in_bytes
        assert isinstance(engine, TellsTokens)
        for changes in ({}, {"max_new_tokens": 1}, {"stop_ids": frozenset(range(VOCAB // 2))}):
            server.scheduler.kv.flush()
            whole = await ask(engine, [5, 6, 7], "s0/unheard/0", **changes)
            server.scheduler.kv.flush()
            told.clear()
            assert await ask(engine, [5, 6, 7], **changes) == whole
            assert told == list(enumerate(whole.ids))
        engine.release("s0/t/0")
        told.clear()
        await ask(engine, [5, 6, 7])
        assert told == [] and not engine._listeners


async def test_places_go_on_behind_the_models_own_end_of_text(start: Any) -> None:
    """The server stops there, and is asked for more."""
    async with start(script=lambda prompt, written: (prompt[-1] + written + 1) % VOCAB) as (engine, _, told):
        got = await ask(engine, [EOS - 2], max_new_tokens=5)
        assert got.ids[:2] == (EOS - 1, EOS) and len(got.ids) == 5
        assert told == list(enumerate(got.ids))


async def test_new_weights_in_the_middle_of_a_stream(start: Any, checkpoints: Any, until: Any) -> None:
    async with start(step_s=0.001) as (engine, _, told):
        running = asyncio.create_task(ask(engine, [1, 2], max_new_tokens=LONG))
        await until(lambda: len(told) > 3)
        await engine.publish(1, DiskWeights(checkpoints["b"]))
        got = await running
        assert [version for _, _, version in got.version_spans] == [0, 1]
        assert told == list(enumerate(got.ids)) and len(told) == LONG


@pytest.mark.parametrize("how", ["cancelled", "late", "released"])
async def test_who_gives_up_ends_it_on_the_server(start: Any, until: Any, how: str) -> None:
    async with start(step_s=0.01) as (engine, server, told):
        deadline = asyncio.get_running_loop().time() + 0.5 if how == "late" else None
        running = asyncio.create_task(ask(engine, [1], max_new_tokens=4000, deadline=deadline))
        await until(lambda: bool(told))
        if how == "released":
            engine.release("s0/t/0")
            assert (await running).finish is StopReason.aborted
        else:
            if how == "cancelled":
                running.cancel()
            with pytest.raises((asyncio.CancelledError, TimeoutError)):
                await running
        # The closed stream, or the abort beside it, ends the request: its last token is 40 s away.
        await until(lambda: server.scheduler.idle)


@pytest.mark.parametrize("events", [0, 3])
async def test_a_stream_that_breaks_off_is_a_failure_of_the_server(start: Any, events: int) -> None:
    async with start() as (engine, server, told):
        server.faults.end_stream = events
        with pytest.raises(InferenceError) as caught:
            await ask(engine, [1])
        assert (caught.value.kind, caught.value.retryable) == ("replica_lost", True)
        assert [place for place, _ in told] == list(range(events))


async def test_what_the_server_refuses_is_refused(start: Any) -> None:
    """With status 200, as streams are."""
    async with start(capacity=256) as (engine, _, _):
        body = {"input_ids": [1] * 300, "sampling_params": {"max_new_tokens": 5}}
        streamed = engine.api.generate_streamed(body, lambda ids: None, gap_s=60.0, excused=lambda: False)
        with pytest.raises(InferenceError) as caught:
            await streamed
        assert (caught.value.kind, caught.value.retryable) == ("too_long", False)


async def test_silence_is_excused_while_a_publish_goes_on_or_somebody_waits(start: Any) -> None:
    async with start() as (engine, _, _):
        assert not engine._may_be_silent()
        engine.paused = True
        assert engine._may_be_silent()
        engine.paused = False


def test_tokens_of_weights_on_trial_are_not_told(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    async def main() -> None:
        replica = Replica(
            lambda port: [], model=DiskWeights(checkpoints["a"]), vocab_size=VOCAB, log_path=tmp_path / "log"
        )
        told: Told = []
        replica.on_tokens("s0/t/0", lambda place, token, _: told.append((place, token)))
        heard = replica.engine._listeners["s0/t/0"]
        heard(0, 5, -1.0)
        with replica.on_trial():
            heard(1, 6, -1.0)
        heard(2, 7, -1.0)
        replica.release("s0/t/0")
        assert told == [(0, 5), (2, 7)] and not replica.engine._listeners

    asyncio.run(main())


def event(pairs: list[tuple[int, float]], total: int, *, ends: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": total} if ends else None,
        "completion_tokens": total,
        "output_token_logprobs": [[logprob, token, None] for token, logprob in pairs],
    }
    if ends:
        meta["weight_versions"] = [{"version": "0", "start": 0, "end": total}]
    return {"text": "", "output_ids": [token for token, _ in pairs], "meta_info": meta}


@given(st.integers(1, 20), st.sets(st.integers(1, 20)), st.booleans(), st.booleans())
def test_the_answer_does_not_depend_on_its_pieces(
    size: int, cuts: set[int], incremental: bool, ends_apart: bool
) -> None:
    """All so far in each event or the new ones alone, several at a time, the last one perhaps empty."""
    pairs = [(k, -float(k)) for k in range(40, 40 + size)]
    whole = event(pairs, size, ends=True)
    streamed, told = StreamedReply(), []
    ends = sorted(cut for cut in cuts | {size} if cut <= size)
    for a, b in zip([0, *ends], ends, strict=False):
        is_last = b == size and not ends_apart
        told += streamed.add(event(pairs[a if incremental else 0 : b], b, ends=is_last))
    if ends_apart:
        told += streamed.add(event([] if incremental else pairs, size, ends=True))
    assert streamed.reply() == whole and told == whole["output_ids"]


@pytest.mark.parametrize(
    "second",
    [
        {"output_ids": [1, 9], "meta_info": {"completion_tokens": 2}},
        {"output_ids": [1], "meta_info": {"completion_tokens": 4}},
        {"output_ids": [], "meta_info": {"completion_tokens": 1}},
        {"meta_info": {"completion_tokens": 3}},
        {"output_ids": [1, 2, 3]},
        "text",
    ],
)
def test_what_does_not_go_on_is_refused(second: Any) -> None:
    streamed = StreamedReply()
    streamed.add(event([(1, 0.0), (2, 0.0)], 2, ends=False))
    with pytest.raises(InferenceError, match="bad_reply"):
        streamed.add(second)


def test_a_stream_without_an_event_is_no_answer() -> None:
    with pytest.raises(InferenceError, match="bad_reply"):
        StreamedReply().reply()
