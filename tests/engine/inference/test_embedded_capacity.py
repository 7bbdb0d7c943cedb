"""What the embedded engine holds and computes at once: its capacity, bounded forwards, several engines."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rocstar.engine.inference.base import Generation, InferenceError, Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.weights import LiveWeights

pytestmark = pytest.mark.usefixtures("_one_torch_thread")


async def ask(engine: Any, ids: list[int], name: str, max_new_tokens: int = 12, seed: int = 3) -> Generation:
    got: Generation = await engine.generate(
        ids,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset(),
        sampling=Sampling(),
        seed=seed,
        request_id=name,
        deadline=None,
    )
    return got


async def test_capacity_is_that_of_the_slots(embedded: Any, models: Any) -> None:
    async with embedded(models("qwen3"), max_running=4) as engine:
        assert engine.load().total == 4 * 512, "the model's longest text for each"
    async with embedded(models("qwen3"), max_running=4, kv_tokens=1 << 20) as engine:
        assert engine.load().total == 4 * 512, "no more than the model can read"
    async with embedded(models("qwen3"), max_running=3, kv_tokens=250) as engine:
        assert engine.load().total == 3 * 83
        with pytest.raises(InferenceError, match="80 \\+ 4 tokens exceed a slot's 83") as caught:
            await ask(engine, [40] * 80, "long", 4)
        assert caught.value.kind == "too_long"
        assert len((await ask(engine, [40] * 80, "fits", 3)).ids) == 3
        assert engine.load().used == 83
        assert engine._kv.tokens_per_slot == 128, "83 in blocks of 64"


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
                group.create_task(ask(engine, list(range(30, 60 + 9 * k)), str(k), 200, k)) for k in range(6)
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
        asked = [ask(engine, list(range(30, 40 + k)), str(k), 40, k) for k in range(5)]
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
            again = [await ask(second, list(range(30, 40)), "new", 40, 0)]
            assert (first.version, second.version) == (0, 1)
    for mine, theirs in zip(together, alone, strict=True):
        assert [got.ids for got in mine] == [got.ids for got in theirs]
    assert alone[0][0].ids != alone[1][0].ids
    assert again[0].ids == alone[0][0].ids, "the published weights are the first's"
