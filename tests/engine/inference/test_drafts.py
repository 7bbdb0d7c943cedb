"""Drafts change no token: neither its id nor its log-prob, wherever a forward samples it."""

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch

from rocstar.engine.inference.base import Generation, Sampling
from rocstar.engine.inference.embedded import drafts, kv, native
from rocstar.engine.inference.embedded.drafts import Drafts, ForwardTime
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.embedded.rows import DecodeRequest, Row
from rocstar.engine.inference.weights import LiveWeights
from tests.fakes.asking import ask

pytestmark = pytest.mark.usefixtures("_one_torch_thread")

STOP_IDS = frozenset(range(15))
FREE = ForwardTime(fixed=1e6, token=1.0, position=0.0)
"""Times with which drafts cost nothing."""
SAMPLED = Counter[str]()
"""`behind drafts`: the tokens that forwards gave rows beyond one each."""
Told = dict[tuple[str, int], Generation]
"""By row, and length of the text before."""


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if native._decode is not None:
        monkeypatch.setattr(native._decode, "FORWARD_IS_FAST", True)
    monkeypatch.setattr(ForwardTime, "of", lambda model: FREE)
    logits, add = EmbeddedEngine._logits, DecodeRequest.add

    def counted_logits(engine: Any, rows: Any, *given: Any) -> Any:
        SAMPLED["behind drafts"] -= len(rows)
        return logits(engine, rows, *given)

    def counted_add(request: DecodeRequest, *given: Any) -> Any:
        SAMPLED["behind drafts"] += 1
        return add(request, *given)

    monkeypatch.setattr(EmbeddedEngine, "_logits", counted_logits)
    monkeypatch.setattr(DecodeRequest, "add", counted_add)
    SAMPLED.clear()


class Oracle:
    """Knows what rows will say, and drafts it: any number of tokens, often with a wrong one among them."""

    def __init__(self, told: Told, seed: int) -> None:
        self._told, self._rng = told, random.Random(seed)

    def propose(self, rows: list[Row], capacity: int) -> list[list[int]]:
        return [self._draft(row)[: capacity - len(row.ids)] for row in rows]

    def _draft(self, row: Row) -> list[int]:
        assert row.request is not None
        at = len(row.request.new_ids)
        turn = self._told[row.row_id, len(row.ids) - at]
        draft = [*turn.ids[at : at + self._rng.randrange(9)], *self._rng.choices(range(300), k=self._rng.randrange(2))]
        if draft and self._rng.random() < 0.3:
            draft[self._rng.randrange(len(draft))] = self._rng.randrange(300)
        return draft

    def learn(self, row: Row) -> None:
        pass


async def roll_out(
    start: Any, model: Any, *, told: Told | None = None, seed: int = 0, max_new_tokens: int = 24, **options: Any
) -> tuple[Told, Any]:
    """What rows of every temperature say in two turns, and the engine that they said it to."""
    said: Told = {}
    SAMPLED.clear()
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(20, 300, (n,), generator=generator).tolist() for n in (2, 11, 40)]

    async def one(engine: Any, name: str, ids: list[int], temperature: float, noise: int) -> None:
        for tool in ([50, 51, 52], []):
            sampling = Sampling(temperature=temperature)
            got = await ask(engine, ids, name, max_new_tokens, stop_ids=STOP_IDS, sampling=sampling, seed=noise)
            said[name, len(ids)] = got
            ids = [*ids, *got.ids, *tool]
        engine.release(name)

    async with start(model, **options) as engine:
        if told is not None:
            engine._drafts = Oracle(told, seed)
        async with asyncio.TaskGroup() as group:
            for k, temperature in itertools.product(range(12), [0.0, 0.3, 0.7, 1.3]):
                name = f"s0/t{k % 3}/{k}-{temperature}"
                group.create_task(one(engine, name, prompts[k % 3], temperature, 7 * k))
    return said, engine


def bits(told: Told) -> dict[tuple[str, int], Any]:
    return {turn: (got.ids, got.logprobs, got.finish) for turn, got in told.items()}


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen2"])
async def test_tokens_have_the_same_bits_whatever_is_drafted(architecture: str, embedded: Any, models: Any) -> None:
    """Right and wrong drafts, behind stop ids and beyond the last token, with prompts in the same forward."""
    model = models(architecture)
    plain, _ = await roll_out(embedded, model, max_running=16)
    for seed, max_running in enumerate([1, 5, 48, 48]):
        drafted, _ = await roll_out(embedded, model, told=plain, seed=seed, max_running=max_running)
        assert bits(drafted) == bits(plain)
        assert SAMPLED["behind drafts"] > 150


async def test_siblings_draft_for_each_other(embedded: Any, models: Any) -> None:
    model = models("qwen3")
    plain, _ = await roll_out(embedded, model, max_running=8)
    assert SAMPLED["behind drafts"] == 0
    for most, threads in [(1, 1), (8, 1), (8, 3)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "TOKENS_PER_THREAD", 2)
            patch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            drafted, _ = await roll_out(embedded, model, max_running=8, drafts=most, lockstep=True)
        assert bits(drafted) == bits(plain)
        assert SAMPLED["behind drafts"] > 0


async def test_eviction_and_publishes_change_no_token(embedded: Any, models: Any) -> None:
    model = models("qwen3")
    plain, _ = await roll_out(embedded, model, max_running=16)

    drafted, engine = await roll_out(embedded, model, told=plain, max_running=48, kv_tokens=130)
    # How many rows are evicted depends on when requests arrive: 11 to 15 in six runs.
    assert engine.rows_evicted > 0 and SAMPLED["behind drafts"] > 150, engine.rows_evicted
    assert bits(drafted) == bits(plain)
    async with embedded(model, max_running=4, drafts=8) as engine:
        step, calls = engine._step, itertools.count(1)

        def publishing() -> Any:
            if next(calls) % 4 == 0:
                engine._load_weights(engine.version + 1, LiveWeights(dict(model.named_parameters())))
            return step()

        engine._step = publishing
        got = [await ask(engine, [30, 31, 32], f"s0/t/{k}", 40) for k in range(3)]
    assert len({g.ids for g in got}) == len({g.logprobs for g in got}) == 1
    for g in got:
        ends = [end for _, end, _ in g.version_spans]
        assert [begin for begin, *_ in g.version_spans] == [0, *ends[:-1]] and ends[-1] == len(g.ids)
    assert len(got[0].version_spans) > len(got[2].version_spans) > 1, "drafts save forwards"


async def test_each_token_is_heard_once_in_order(embedded: Any, models: Any) -> None:
    heard: list[tuple[int, int, float]] = []
    async with embedded(models("qwen3"), max_running=1, drafts=8) as engine:
        await ask(engine, [30, 31, 32], "a", 40)
        engine.release("a")
        engine.on_tokens("b", lambda *news: heard.append(news))
        got = await ask(engine, [30, 31, 32], "b", 40)
    assert SAMPLED["behind drafts"] > 20
    assert heard == list(zip(range(40), got.ids, got.logprobs, strict=True))


async def test_torch_samples_the_same_up_to_rounding(
    embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is too large for native.py, on two threads."""
    monkeypatch.setattr(native, "MOST_BYTES", 0)
    monkeypatch.setattr(kv, "ROWS_PER_THREAD", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = models("qwen3")
    plain, _ = await roll_out(embedded, model, max_running=16)
    drafted, _ = await roll_out(embedded, model, told=plain, max_running=16)
    assert SAMPLED["behind drafts"] > 150
    for turn, a in plain.items():
        b = drafted[turn]
        assert a.ids == b.ids and a.finish == b.finish
        assert max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)) < 1e-5
    async with embedded(model, max_running=1, drafts=8, lockstep=True) as engine:
        assert engine._drafts is None, "the same seed gives the same bits in lockstep"


async def test_drafted_tokens_have_the_distribution_of_the_model(embedded: Any, models: Any) -> None:
    """Chi-square of the first two tokens of 2,000 siblings, for whom the first is drafted."""
    plain = models("qwen3")
    with torch.no_grad():
        first = (plain(torch.tensor([[30, 31, 32]])).logits[0, -1] / 0.7).softmax(-1)
        second = (plain(torch.tensor([[30, 31, 32, a] for a in range(300)])).logits[:, -1] / 0.7).softmax(-1)
    async with embedded(models("qwen3"), max_running=64, drafts=2) as engine, asyncio.TaskGroup() as group:

        async def two(k: int) -> tuple[int, ...]:
            got = await ask(engine, [30, 31, 32], str(k), 2, seed=k)
            engine.release(str(k))
            return got.ids

        tasks = [group.create_task(two(k)) for k in range(2000)]
    assert SAMPLED["behind drafts"] > 0
    seen, expected = Counter(task.result() for task in tasks), 2000 * first[:, None] * second
    large = (expected > 5).nonzero().tolist()
    terms = [(seen[a, b] - float(expected[a, b])) ** 2 / float(expected[a, b]) for a, b in large]
    assert len(terms) > 10
    assert sum(terms) < len(terms) + 4 * (2 * len(terms)) ** 0.5, "the mean and four standard deviations"


def test_threads_share_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft attends to keys that the token before it has just written."""
    monkeypatch.setattr(kv, "ROWS_PER_THREAD", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    cache: Any = None
    plan = kv.SlotPlan(cache, torch.zeros(8), 1, [4, 4, 4, 4, 2, 2, 2, 7], [])
    assert plan._parts == [(0, 4), (4, 7), (7, 8)]


def row_of(name: str, ids: list[int], prompt: int, *, left: int = 100) -> Row:
    request: Any = DecodeRequest(
        row_id=name,
        ids=ids,
        max_new_tokens=left,
        stop_ids=frozenset({9}),
        temperature=1.0,
        seed=0,
        future=None,  # type: ignore[arg-type]
    )
    return Row(row_id=name, slot=0, ids=ids, prefix=tuple(ids[: prompt - 1]), request=request)


def test_a_draft_follows_a_sibling_within_its_limits() -> None:
    said = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    made = Drafts(4, FREE)
    for k in range(2):
        made.learn(row_of(f"a/{k}", said, 4))
    assert made.propose([row_of("a/2", [1, 2, 3, 4], 4)], 99) == [[5, 6, 7, 8]]
    assert made.propose([row_of("a/2", [1, 2, 3, 4], 4, left=3)], 99) == [[5, 6]]
    assert made.propose([row_of("a/2", [1, 2, 3, 4], 4)], 5) == [[5]]
    assert made.propose([row_of("a/2", [1, 2, 3, 4, 6, 7, 8], 4)], 99) == [[9]], "nothing follows a stop id"
    assert made.propose([row_of("b/0", [1, 2, 3, 5], 4)], 99) == []
    assert made.propose([row_of("b/1", [5, 1, 2, 3, 4], 5)], 99) == [], "another prompt is another task"
    assert made.propose([row_of("c/0", [20, 21, 22, 23, 20, 21, 22], 7)], 99) == [[23, 20, 21, 22]], "its own text"


def test_no_more_is_drafted_than_is_worth_its_time() -> None:
    """Two rows whose next token is certain, at times in which a token is cheap, and then dear."""
    said = list(range(10, 90))
    for token_time, expected in [(1.0, 8), (500.0, 1), (5000.0, 0)]:
        made = Drafts(8, ForwardTime(fixed=1000.0, token=token_time, position=0.0))
        for k in range(3):
            made.learn(row_of(f"a/{k}", said, 4))
        found = made.propose([row_of("a/3", said[:4], 4) for _ in range(2)], 99)
        assert [len(draft) for draft in found] == ([expected] * 2 if expected else []), token_time


def test_a_search_that_finds_nothing_pauses() -> None:
    made = Drafts(8, FREE)
    strange = row_of("a/0", [1, 2, 3, 4], 4)
    assert made.propose([strange], 99) == []
    made.learn(row_of("b/0", list(range(1, 30)), 5))
    known = row_of("b/1", [1, 2, 3, 4, 5], 5)
    found = [made.propose([known], 99) for _ in range(20)]
    assert not any(found[: drafts.PAUSE])
    assert all(found[drafts.PAUSE :])


def test_the_texts_of_old_tasks_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MOST_FOLLOWERS", 100)
    made = Drafts(8, FREE)
    for task in range(50):
        made.learn(row_of(f"{task}/0", list(range(task, task + 30)), 5))
        assert sum(map(len, made._tasks.values())) <= 100 + 30
    assert made.propose([row_of("49/1", list(range(49, 54)), 5)], 99)[0]
    assert not made.propose([row_of("3/1", list(range(3, 8)), 5)], 99)
