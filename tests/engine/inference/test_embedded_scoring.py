"""Log-probs of given ids against plain forwards, and tokens that are told as they come."""

import asyncio
from functools import partial
from typing import Any

import pytest
import torch

from rocstar.engine.inference.base import InferenceError, Sampling, ScoresPrompts, TellsTokens
from rocstar.engine.inference.embedded import embedded as embedded_module
from rocstar.engine.inference.weights import LiveWeights
from tests.fakes import asking

from .test_embedded import LOGPROB_BOUND, VOCAB, plain_logits

pytestmark = pytest.mark.usefixtures("_one_torch_thread")

IDS = torch.randint(20, VOCAB, (50,), generator=torch.Generator().manual_seed(1)).tolist()
ask = partial(asking.ask, sampling=Sampling())
SCORE: dict[str, Any] = {"sampling": Sampling(), "deadline": None}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
async def test_scores_are_those_of_a_plain_forward(
    architecture: str, temperature: float, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 1, in chunks of 16 ids while other requests decode."""
    monkeypatch.setattr(embedded_module, "MAX_LOGITS", 16 * VOCAB)
    sampling = Sampling(temperature=temperature)
    async with embedded(models(architecture), max_running=2) as engine, asyncio.TaskGroup() as group:
        assert isinstance(engine, ScoresPrompts) and isinstance(engine, TellsTokens)
        for name in "ab":
            group.create_task(ask(engine, [30], name, 9))
        scored = group.create_task(engine.score(IDS, sampling=sampling, request_id="c", deadline=None))
        single = group.create_task(engine.score([30], sampling=sampling, request_id="d", deadline=None))
    logits_TV = plain_logits(models(architecture), IDS)[:-1]
    expected_TV = torch.log_softmax(logits_TV / (temperature or 1.0), -1)
    got = scored.result()
    for values, ids in ((got.logprobs, IDS[1:]), (got.best_logprobs, list(got.best_ids))):
        wanted = expected_TV.gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(values).double(), wanted, atol=LOGPROB_BOUND, rtol=0)
    assert list(got.best_ids) == expected_TV.argmax(-1).tolist()
    assert single.result().logprobs == ()


async def test_scores_of_what_was_written_are_its_log_probs(embedded: Any, models: Any) -> None:
    """The slots are as they were: the same request, after a score under its name, gives the same tokens."""
    async with embedded(models("qwen3"), max_running=2) as engine:
        before = await ask(engine, IDS, "a", 12)
        scores = await engine.score([*IDS, *before.ids], request_id="b", **SCORE)
        after = await ask(engine, IDS, "b", 12)
    assert after.ids == before.ids
    written = torch.tensor(scores.logprobs[len(IDS) - 1 :])
    torch.testing.assert_close(written, torch.tensor(before.logprobs), atol=LOGPROB_BOUND, rtol=0)


async def test_a_publish_begins_a_score_anew(
    embedded: Any, models: Any, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score is of one version: what was computed under the weights before is computed again."""
    monkeypatch.setattr(embedded_module, "MAX_LOGITS", 16 * VOCAB)
    model, newer = models("qwen3", seed=0), models("qwen3", seed=1)
    held = gate(model, stop_at=1)
    async with embedded(model, max_running=2) as engine:
        scored = asyncio.create_task(engine.score(IDS, request_id="a", **SCORE))
        await held.reached.wait()
        published = asyncio.create_task(engine.publish(1, LiveWeights(newer.named_parameters())))
        await asyncio.sleep(0)
        held.open.set()
        got, _ = await asyncio.gather(scored, published)
    logits_TV = plain_logits(newer, IDS)[:-1]
    wanted = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(got.logprobs).double(), wanted, atol=LOGPROB_BOUND, rtol=0)


async def test_a_score_ends_when_nobody_wants_it(embedded: Any, models: Any, gate: Any) -> None:
    model = models("llama")
    held = gate(model, stop_at=1)
    async with embedded(model, max_running=2) as engine:
        tasks = [asyncio.create_task(engine.score(IDS, request_id=name, **SCORE)) for name in "abc"]
        await held.reached.wait()
        await engine.abort("b")
        with pytest.raises(InferenceError, match="was aborted"):
            await tasks[1]
        tasks[2].cancel()
        held.open.set()
        assert len((await tasks[0]).logprobs) == len(IDS) - 1
        await asyncio.wait([tasks[2]])
        with pytest.raises(TimeoutError):
            await engine.score(IDS, sampling=Sampling(), request_id="d", deadline=0.0)
        await ask(engine, [30], "e", 2)
        assert not engine._scores and not engine._pending
    with pytest.raises(InferenceError, match="the engine was left"):
        await engine.score(IDS, request_id="f", **SCORE)


async def test_every_row_hears_its_own_tokens_in_order(embedded: Any, models: Any) -> None:
    heard: dict[str, list[tuple[int, int, float]]] = {"a": [], "b": []}
    async with embedded(models("qwen3"), max_running=4) as engine:
        for name, told in heard.items():
            engine.on_tokens(name, lambda *token, told=told: told.append(token))

        async def one(name: str, ids: list[int]) -> Any:
            got = await ask(engine, ids, name, 20)
            return got, list(heard.get(name, ()))  # all of them before the answer

        done = await asyncio.gather(one("a", [30, 31]), one("b", [32]), one("c", [33]))
        engine.release("a")
        await ask(engine, [30, 31], "a", 2)
    for got, told in done[:2]:
        assert told == list(zip(range(20), got.ids, got.logprobs, strict=True))
    assert len(heard["a"]) == 20
