"""What the embedded engine holds and computes at once: its capacity, bounded forwards, several engines."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rocstar.engine.inference.base import Generation, InferenceError, Sampling
from rocstar.engine.inference.embedded import embedded as embedded_module
from rocstar.engine.inference.embedded import kv as kv_module
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.weights import LiveWeights
from tests.fakes.asking import ask

pytestmark = pytest.mark.usefixtures("_one_torch_thread")


async def test_capacity_is_shared_by_the_rows(embedded: Any, models: Any) -> None:
    async with embedded(models("qwen3"), max_running=4) as engine:
        assert engine.load().total == 4 * 512, "the model's longest text for each"
    async with embedded(models("qwen3"), max_running=4, kv_tokens=1 << 20) as engine:
        assert engine.load().total == 4 * 512, "no more than the model can read"
    async with embedded(models("qwen3"), max_running=3, kv_tokens=250) as engine:
        assert engine.load().total == 250
        with pytest.raises(InferenceError, match="240 \\+ 11 tokens exceed the engine's 250") as caught:
            await ask(engine, [40] * 240, "long", 11)
        assert caught.value.kind == "too_long"
        assert engine.load().held_bytes == 0, "nothing has come yet"
        assert len((await ask(engine, [40] * 80, "fits", 3)).ids) == 3
        load = engine.load()
        assert load.used == 83
        assert load.held_bytes == 128 * 2 * 2 * 2 * 8 * 4, "one slot, 83 tokens in blocks of 64"


async def test_capacity_is_a_share_of_the_memory(embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 bytes per token; half of 100 KiB are 200 tokens."""
    monkeypatch.setattr(embedded_module, "free_bytes", lambda device: 100 << 10)
    async with embedded(models("qwen3"), max_running=4, kv_share=0.5) as engine:
        assert engine.load().total == 200


async def rolled_out(engine: Any) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Six trajectories of two turns at once, 40 to 85 tokens before and 100 to 145 after."""

    async def one(k: int) -> list[Generation]:
        ids = list(range(30, 70 + 9 * k))
        first = await ask(engine, ids, str(k), 40, seed=k)
        second = await ask(engine, [*ids, *first.ids, 33], str(k), 20, seed=k)
        engine.release(str(k))
        return [first, second]

    turns = await asyncio.gather(*(one(k) for k in range(6)))
    return [(got.ids, got.logprobs) for both in turns for got in both]


@pytest.mark.parametrize("is_native", [True, False])
async def test_rows_that_exceed_the_capacity_are_evicted_and_say_the_same(
    is_native: bool, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All six fit at first, and two at the end."""
    if not is_native:
        monkeypatch.setattr(kv_module, "_decode", None)
    async with embedded(models("qwen3"), max_running=6) as engine:
        free = await rolled_out(engine)
        assert engine.rows_evicted == 0
    async with embedded(models("qwen3"), max_running=6, kv_tokens=300) as engine:
        tight = await rolled_out(engine)
        assert engine.rows_evicted > 0 and engine.out_of_memory == 0
        assert engine._kv.num_slots * engine._kv.tokens_per_slot <= 300 + 6 * 64
    assert [ids for ids, _ in tight] == [ids for ids, _ in free]
    for (_, mine), (_, theirs) in zip(tight, free, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=1e-5, rtol=0)


class Memory:
    """Fails every growth of the cache beyond `num_bytes`, and each forward of more than `tokens` tokens."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
        self.num_bytes, self.tokens = limits.get("num_bytes", 1 << 40), limits.get("tokens", 1 << 40)
        make, forward = kv_module.zeros, engine._forward

        def zeros(*arguments: Any) -> Any:
            made = make(*arguments)
            if engine._kv.held_bytes + made.nbytes > self.num_bytes:
                raise MemoryError("planted")
            return made

        def limited(ids_T: Any, *others: Any) -> Any:
            if len(ids_T) > self.tokens:
                raise torch.OutOfMemoryError("planted")
            return forward(ids_T, *others)

        monkeypatch.setattr(kv_module, "zeros", zeros)
        engine._forward = limited


@pytest.mark.parametrize("limits", [{"num_bytes": 150_000}, {"tokens": 120}])
async def test_memory_that_runs_out_lowers_the_rows_and_ends_nothing(
    limits: Any, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Six rows need 6 x 192 tokens x 256 bytes = 295 kB at the end; prompts come 250 tokens at a time."""
    async with embedded(models("qwen3"), max_running=6) as engine:
        free = await rolled_out(engine)
    async with embedded(models("qwen3"), max_running=6) as engine:
        Memory(engine, monkeypatch, **limits)
        tight = await rolled_out(engine)
        assert engine.out_of_memory > 0 and 1 <= engine._max_rows < 6
        await engine.publish(1, LiveWeights(models("qwen3").named_parameters()))
        assert engine._max_rows == 6, "new weights, a new attempt"
    assert [ids for ids, _ in tight] == [ids for ids, _ in free]
    (message,) = [r.getMessage() for r in caplog.records if "memory ran out" in r.getMessage()]
    assert "planted" in message and "engine.max_running" in message


async def test_row_that_does_not_fit_alone_fails_and_the_others_go_on(
    embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(models("qwen3"), max_running=3) as engine:
        Memory(engine, monkeypatch, num_bytes=128 * 256)

        async def one(length: int) -> Generation:
            try:
                return await ask(engine, [40] * length, str(length))
            finally:
                engine.release(str(length))

        asked = [one(length) for length in (20, 300, 30)]
        short, long, other = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(short, Generation) and isinstance(other, Generation)
    assert isinstance(long, InferenceError) and (long.kind, long.retryable) == ("out_of_memory", True)
    assert "300 tokens does not fit alone" in str(long)


async def test_text_to_be_scored_waits_for_memory_once_and_then_fails(
    embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def score(engine: Any, length: int) -> Any:
        return await engine.score([40] * length, sampling=Sampling(), request_id=f"score {length}", deadline=None)

    async with embedded(models("qwen3"), max_running=3) as engine:
        before = await ask(engine, [40] * 50, "row")
        Memory(engine, monkeypatch, tokens=70)
        with pytest.raises(InferenceError, match="out_of_memory: a row of 100 tokens"):
            await score(engine, 100)
        assert engine.out_of_memory == 2 and engine.load().held_bytes == 0
        assert len((await score(engine, 50)).logprobs) == 49
        after = await ask(engine, [40] * 50 + list(before.ids), "row")
        assert after.cached_tokens == 0, "its KV was given up for the text"


async def test_on_a_gpu_the_cache_is_free_while_the_weights_change(
    embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is one in name alone: what a GPU does differently here is to free the memory."""
    async with embedded(models("qwen3"), max_running=3) as engine:
        await ask(engine, [40] * 50, "row")
        held = engine.load().held_bytes
        await engine.rest()
        with engine.hold():
            engine.quiesce()
        assert engine.load().held_bytes == held > 0, "on a CPU it stays"
        monkeypatch.setattr(engine, "_device", SimpleNamespace(type="cuda"))
        monkeypatch.setattr(embedded_module, "free_bytes", lambda device: 500 * 256)
        engine._kv_share = 1.0
        await engine.rest()
        assert (engine.load().held_bytes, engine.load().total) == (0, 500), "what is free now"
        monkeypatch.undo()
        again = await ask(engine, [40] * 60, "row")
        assert again.cached_tokens == 0 and engine.load().held_bytes > 0
        monkeypatch.setattr(engine, "_device", SimpleNamespace(type="cuda"))
        with engine.hold():
            engine.quiesce()
            assert engine.load().held_bytes == 0


class Sizes:
    """The tokens of every forward, and how many of them were to be continued."""

    def __init__(self, engine: Any) -> None:
        self.forwards: list[tuple[int, int]] = []
        forward = engine._forward

        def recorded(ids_T: Any, positions_T: Any, plan: Any, num_logits: int) -> Any:
            self.forwards.append((len(ids_T), num_logits))
            return forward(ids_T, positions_T, plan, num_logits)

        engine._forward = recorded


async def test_long_prompt_enters_in_parts(embedded: Any, models: Any) -> None:
    prompt = list(range(20, 290))
    async with embedded(models("llama"), max_running=2) as engine:
        whole = await ask(engine, prompt, "a")
    async with embedded(models("llama"), max_running=2, prefill_tokens=100) as engine:
        sizes = Sizes(engine)
        parts = await ask(engine, prompt, "a")
    assert sizes.forwards[:3] == [(100, 0), (100, 0), (70, 1)]
    assert parts.ids == whole.ids and parts.cached_tokens == 0
    torch.testing.assert_close(torch.tensor(parts.logprobs), torch.tensor(whole.logprobs), atol=1e-5, rtol=0)


async def test_no_forward_exceeds_the_budget_after_a_publish(embedded: Any, models: Any, until: Any) -> None:
    """Every row's KV is computed again, a bounded number of tokens at a time; tokens and spans stay whole."""
    model, newer = models("qwen3", seed=0), models("qwen3", seed=1)
    async with embedded(model, max_running=6, prefill_tokens=64) as engine:
        sizes = Sizes(engine)
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(ask(engine, list(range(30, 60 + 9 * k)), str(k), 200, seed=k)) for k in range(6)
            ]
            await until(lambda: len(sizes.forwards) >= 60)
            before = len(sizes.forwards)
            await engine.publish(1, LiveWeights(newer.named_parameters()))
        after = sizes.forwards[before:]
    assert all(tokens <= 64 + 6 for tokens, _ in sizes.forwards)
    assert sum(n == 0 for _, n in after) >= 3, "too much for one forward"
    for task in asked:
        got = task.result()
        (a, b, old), (c, d, new) = got.version_spans
        assert (a, old, new, d) == (0, 0, 1, 200) and b == c and 0 < b < 200


async def test_two_engines_in_one_process_do_not_mix(embedded: Any, models: Any) -> None:
    """Two replicas over two copies, each with its device thread, at the same time, with different weights."""

    async def several(engine: Any) -> list[Generation]:
        asked = [ask(engine, list(range(30, 40 + k)), str(k), 40, seed=k) for k in range(5)]
        told = await asyncio.gather(*asked)
        for k in range(5):
            engine.release(str(k))
        return told

    alone = []
    for seed in (0, 1):
        async with embedded(models("qwen3", seed=seed), max_running=5) as engine:
            alone.append(await several(engine))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        async with (
            EmbeddedEngine(models("qwen3", seed=0), max_running=5, thread=one) as first,
            EmbeddedEngine(models("qwen3", seed=1), max_running=5, thread=other) as second,
        ):
            together = await asyncio.gather(several(first), several(second))
            await second.publish(1, LiveWeights(models("qwen3", seed=0).named_parameters()))
            again = [await ask(second, list(range(30, 40)), "new", 40, seed=0)]
            assert (first.version, second.version) == (0, 1)
    for mine, theirs in zip(together, alone, strict=True):
        assert [got.ids for got in mine] == [got.ids for got in theirs]
    assert alone[0][0].ids != alone[1][0].ids
    assert again[0].ids == alone[0][0].ids, "the published weights are the first's"


@pytest.mark.parametrize("num_tokens", [63, 64])
async def test_rows_of_the_capacity_reach_their_longest(
    num_tokens: int, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place that a slot leaves unused is not of `kv_tokens`; behind 64 tokens it takes a block."""
    monkeypatch.setattr(kv_module, "_decode", None)
    async with embedded(models("qwen3"), max_running=6, kv_tokens=6 * num_tokens) as engine:
        rows = (ask(engine, list(range(30, 50 + k)), str(k), num_tokens - 20 - k, seed=k) for k in range(6))
        assert all(len(got.ids) == num_tokens - 20 - k for k, got in enumerate(await asyncio.gather(*rows)))
        assert engine.rows_evicted == 0 and engine._kv.num_slots == 6
        assert engine._kv.tokens_per_slot == (64 if num_tokens == 63 else 128)
