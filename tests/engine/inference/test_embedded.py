"""The embedded engine against plain forwards of a separate copy of the model with sdpa attention."""

import asyncio
import copy
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.engine.inference.base import Generation, Sampling, StopReason
from rocstar.engine.inference.embedded import decoder, kv, native, sampling
from rocstar.engine.inference.embedded import embedded as embedded_module
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.weights import LiveWeights
from tests.fakes.asking import ask

pytestmark = pytest.mark.usefixtures("_one_torch_thread")

VOCAB = 300
STOP_IDS = frozenset(range(20))
ARCHITECTURES = ["qwen3", "llama", "qwen2"]
LOGPROB_BOUND = 3e-5
"""How far the engine's float32 may be off float64. Over 40 random models of each family, with and without
vector instructions, it was off by at most 1.2e-5: at temperature 0.7 logits reach 10, and that is twelve
units in their last place. A plain forward in float32 was off by up to 1.9e-5, so two that are both right can
be further apart than 1e-5."""


@dataclass(slots=True)
class Attempt:
    """A scripted conversation, and what the engine answered: (ids before the turn, generation)."""

    name: str
    prompt: list[int]
    seed: int
    temperature: float
    tools: list[list[int]]
    turns: list[tuple[list[int], Generation]] = field(default_factory=list)

    async def run(self, engine: Any, max_new_tokens: int = 12) -> None:
        ids = list(self.prompt)
        for tool in [*self.tools, None]:
            sampling = Sampling(temperature=self.temperature)
            options: dict[str, Any] = {"stop_ids": STOP_IDS, "sampling": sampling, "seed": self.seed}
            got = await ask(engine, ids, self.name, max_new_tokens, **options)
            self.turns.append((list(ids), got))
            ids += [*got.ids, *(tool or [])]
        engine.release(self.name)


def attempts() -> list[Attempt]:
    """Ragged prompts, pairs and triples of siblings, all temperatures, tool texts from 1 to 40 tokens."""
    generator = torch.Generator().manual_seed(5)

    def tokens(n: int) -> list[int]:
        return torch.randint(20, VOCAB, (n,), generator=generator).tolist()

    made = []
    for k, (length, siblings) in enumerate([(1, 1), (3, 3), (17, 2), (40, 3), (70, 2), (5, 1)]):
        prompt = tokens(length)
        for sibling in range(siblings):
            made.append(
                Attempt(
                    name=f"s0/t{k}/{sibling}",
                    prompt=prompt,
                    seed=1000 * k + sibling,
                    temperature=[1.0, 0.0, 0.7, 1.3][(k + sibling) % 4],
                    tools=[tokens(n) for n in ([1, 40], [7], [2, 3, 9])[(k + sibling) % 3]],
                )
            )
    return made


async def run_all(start: Any, model: Any, made: list[Attempt], **options: Any) -> list[Attempt]:
    async with start(model, **options) as engine, asyncio.TaskGroup() as group:
        for attempt in made:
            group.create_task(attempt.run(engine))
    return made


@torch.no_grad()
def plain_logits(model: Any, ids: list[int]) -> Tensor:
    """Of a plain forward in float64: one in float32 is itself as far off it as the engine."""
    return copy.deepcopy(model).double()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def check_turn(model: Any, before: list[int], got: Generation, temperature: float) -> None:
    """Contract 1: every log-prob is that of the plain forward; greedy tokens are its argmax."""
    logits_TV = plain_logits(model, [*before, *got.ids])[len(before) - 1 : -1]
    expected = torch.log_softmax(logits_TV / (temperature or 1.0), -1)
    ids_T = torch.tensor(got.ids)
    torch.testing.assert_close(
        torch.tensor(got.logprobs).double(), expected.gather(1, ids_T[:, None])[:, 0], atol=LOGPROB_BOUND, rtol=0
    )
    if temperature == 0:
        assert ids_T.tolist() == logits_TV.argmax(-1).tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("options", [{"max_running": 3}, {"max_running": 16}, {"max_running": 5, "prefill_tokens": 1}])
async def test_logprobs_are_those_of_a_plain_forward(
    architecture: str, options: dict[str, int], embedded: Any, models: Any
) -> None:
    await check_logprobs(architecture, embedded, models, **options)


@pytest.mark.parametrize("missing", ["native forward", "native attention", "fast forward", "all"])
async def test_logprobs_are_the_same_without_what_is_fast(
    missing: str, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, in half precision, or for a model of another family."""
    monkeypatch.setattr(native, "MOST_BYTES", 0)
    if missing in ("native attention", "all"):
        monkeypatch.setattr(kv, "_decode", None)
        monkeypatch.setattr(sampling, "_decode", None)
    if missing in ("fast forward", "all"):
        monkeypatch.setattr(decoder, "FAMILIES", ())
    await check_logprobs("qwen3", embedded, models, max_running=5)


async def test_logprobs_are_the_same_with_two_threads(
    embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MOST_BYTES", 0)
    monkeypatch.setattr(kv, "ROWS_PER_THREAD", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    await check_logprobs("qwen3", embedded, models, max_running=8)


async def check_logprobs(architecture: str, embedded: Any, models: Any, **options: int) -> None:
    done = await run_all(embedded, models(architecture), attempts(), **options)
    plain = models(architecture)
    for attempt in done:
        assert len(attempt.turns) == len(attempt.tools) + 1
        for turn, (before, got) in enumerate(attempt.turns):
            check_turn(plain, before, got, attempt.temperature)
            if turn:
                last = attempt.turns[turn - 1]
                assert got.cached_tokens == len(last[0]) + len(last[1].ids) - 1
    finishes = {got.finish for attempt in done for _, got in attempt.turns}
    assert finishes == {StopReason.stop, StopReason.length}, "the scenario must hold both"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_tokens_do_not_depend_on_the_batch(architecture: str, embedded: Any, models: Any) -> None:
    """Contract 4: neither the number of slots nor the order of arrival changes what is sampled."""
    model = models(architecture)
    told: list[dict[str, Any]] = []
    for max_running, order in [(1, 1), (3, -1), (16, 1)]:
        done = await run_all(embedded, model, attempts()[::order], max_running=max_running)
        told.append({a.name: [got.ids for _, got in a.turns] for a in done})
    assert told[0] == told[1] == told[2]
    sampled = [a.name for a in attempts() if a.temperature > 0 and a.name.startswith("s0/t3")]
    assert len({str(told[0][name]) for name in sampled}) == len(sampled), "siblings differ by their seed"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_bits_do_not_depend_on_the_batch(
    architecture: str, embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the slots, nor on the order of arrival, nor on where a prompt is cut, nor on threads."""
    model, told = models(architecture), []
    for max_running, order, prefill, threads in [(1, 1, 2048, 1), (3, -1, 1, 1), (16, 1, 2048, 3)]:
        monkeypatch.setattr(native._decode, "FORWARD_IS_FAST", True)
        monkeypatch.setattr(native, "TOKENS_PER_THREAD", 2)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        done = await run_all(embedded, model, attempts()[::order], max_running=max_running, prefill_tokens=prefill)
        told.append({a.name: [(got.ids, got.logprobs) for _, got in a.turns] for a in done})
    assert told[0] == told[1] == told[2]


async def test_a_model_too_large_for_it_is_torchs(embedded: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native._decode, "FORWARD_IS_FAST", True)
    assert native.fits(models("qwen3"))
    monkeypatch.setattr(native, "MOST_BYTES", 1000)
    assert not native.fits(models("qwen3"))
    await check_logprobs("qwen3", embedded, models, max_running=5)


async def test_tokens_do_not_depend_on_where_a_turn_was_cut(embedded: Any, models: Any) -> None:
    """The noise of a token belongs to its position in the trajectory, not in the request."""
    async with embedded(models("llama"), max_running=2) as engine:
        whole = await ask(engine, [30, 31], "whole", 20)
        ids = [30, 31]
        for part in (1, 7, 12):
            got = await ask(engine, ids, "parts", part)
            ids += got.ids
    assert tuple(ids[2:]) == whole.ids


async def test_siblings_copy_the_prompt(embedded: Any, models: Any) -> None:
    prompt = list(range(30, 60))
    made = [Attempt(name=f"s0/a/{k}", prompt=prompt, seed=k, temperature=1.0, tools=[]) for k in range(4)]
    await run_all(embedded, models("qwen3"), made, max_running=4)
    assert sorted(a.turns[0][1].cached_tokens for a in made) == [0, 29, 29, 29]


async def test_a_prompt_is_copied_as_long_as_any_sibling_is_there(embedded: Any, models: Any) -> None:
    plain, prompt, found = models("qwen3"), list(range(30, 60)), []
    async with embedded(models("qwen3"), max_running=2) as engine:
        for k in range(5):  # two at a time: the one that computed the prompt leaves first
            attempt = Attempt(name=f"s0/a/{k}", prompt=prompt, seed=k, temperature=1.0, tools=[])
            release, engine.release = engine.release, lambda name: None
            await attempt.run(engine)
            engine.release = release
            if k:
                engine.release(f"s0/a/{k - 1}")
            found.append(attempt.turns[0][1].cached_tokens)
            check_turn(plain, *attempt.turns[0], attempt.temperature)
    assert found == [0, 29, 29, 29, 29]


async def test_siblings_find_no_donor_that_left_its_prompt(embedded: Any, models: Any) -> None:
    """A trajectory's name may be used again with another text: its row is no donor of the old one."""
    model, plain = models("llama"), models("llama")
    async with embedded(model, max_running=4) as engine:
        made = [
            Attempt(name=name, prompt=prompt, seed=3, temperature=1.0, tools=[])
            for name, prompt in [("x", [50, 51, 52, 53]), ("x", [60, 61]), ("y", [50, 51, 52, 53])]
        ]
        for k, attempt in enumerate(made):
            if k < 2:  # no release between the first two
                engine_release, engine.release = engine.release, lambda name: None
                await attempt.run(engine)
                engine.release = engine_release
            else:
                await attempt.run(engine)
    for attempt in made:
        check_turn(plain, *attempt.turns[0], attempt.temperature)


@pytest.mark.parametrize("further", [0, 3])
async def test_a_branch_copies_its_parent_up_to_the_fork(embedded: Any, models: Any, further: int) -> None:
    """The parent's tokens behind the fork are not the branch's, and those of its tool are not computed yet."""
    plain, prompt = models("qwen3"), list(range(30, 60))
    async with embedded(models("qwen3"), max_running=3) as engine:
        first = await ask(engine, prompt, "s0/a/0", 5)
        ids = [*prompt, *first.ids, 20, 21]
        engine.branch("s0/a/0", ["s0/a/0~1.1", "s0/a/0~1.2"])
        if further:
            await ask(engine, ids, "s0/a/0", further)
        for number in (1, 2):
            got = await ask(engine, ids, f"s0/a/0~1.{number}", 4, seed=number)
            check_turn(plain, ids, got, 0.7)
            known = len(ids) - 1 if further or number == 2 else len(ids) - 3
            assert got.cached_tokens == known
        engine.release("s0/a/0~1.2")
        assert list(engine._parents) == ["s0/a/0~1.1"]


async def test_a_branch_of_a_parent_that_left_computes_its_tokens(embedded: Any, models: Any) -> None:
    plain, prompt = models("llama"), list(range(30, 60))
    async with embedded(models("llama"), max_running=2) as engine:
        first = await ask(engine, prompt, "s0/a/0", 5)
        engine.branch("s0/a/0", ["s0/a/0~1.1"])
        engine.release("s0/a/0")
        ids = [*prompt, *first.ids, 20]
        got = await ask(engine, ids, "s0/a/0~1.1", 4)
        assert got.cached_tokens == 0
        check_turn(plain, ids, got, 0.7)


async def test_donors_are_forgotten_with_their_rows(embedded: Any, models: Any, until: Any) -> None:
    async with embedded(models("llama"), max_running=4) as engine:
        for attempt in attempts():
            await attempt.run(engine)
        await until(lambda: engine.load().used == 0)
        assert not engine._slots._donors and not engine._slots.rows and not engine._pending


async def publish_mid_flight(engine: Any, model: Any, newer: Any, make_gate: Any) -> list[Attempt]:
    """New weights arrive while rows of several lengths decode and one waits between its turns."""
    idle = Attempt(name="s0/idle/0", prompt=list(range(40, 52)), seed=9, temperature=1.0, tools=[])
    release, engine.release = engine.release, lambda name: None
    await idle.run(engine)
    made = [
        Attempt(name=f"s0/t/{k}", prompt=list(range(30, 33 + 5 * k)), seed=k, temperature=1.0, tools=[])
        for k in range(3)
    ]
    gate = make_gate(model, stop_at=5)
    async with asyncio.TaskGroup() as group:
        for attempt in made:
            group.create_task(attempt.run(engine, max_new_tokens=40))
        await gate.reached.wait()
        publishing = group.create_task(engine.publish(1, LiveWeights(newer.named_parameters())))
        await asyncio.sleep(0)  # the weights now wait for the thread that the gate holds
        gate.open.set()
        await publishing
    before, got = idle.turns[0]
    idle.prompt = [*before, *got.ids, 33, 34]
    await idle.run(engine)
    engine.release = release
    return [*made, idle]


def check_spans(made: list[Attempt], old: Any, new: Any) -> None:
    mixed = 0
    for attempt in made:
        before, got = attempt.turns[-1]
        ids = [*before, *got.ids]
        for a, b, version in got.version_spans:
            model = new if version else old
            logits = plain_logits(model, ids)[len(before) + a - 1 : len(before) + b - 1]
            told = torch.log_softmax(logits, -1).gather(1, torch.tensor(got.ids[a:b])[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(got.logprobs[a:b]).double(), told, atol=LOGPROB_BOUND, rtol=0)
        assert [s[0] for s in got.version_spans[1:]] == [s[1] for s in got.version_spans[:-1]]
        mixed += [v for *_, v in got.version_spans] == [0, 1]
    assert mixed >= 1, "no row was decoding when the weights came"
    assert made[-1].turns[-1][1].version_spans[0][2] == 1


async def test_publish_invalidates_every_key_and_value(
    embedded: Any, models: Any, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "BURST", 8)
    model = models("qwen3", seed=0)
    async with embedded(model, max_running=4) as engine:
        made = await publish_mid_flight(engine, model, models("qwen3", seed=1), gate)
        assert engine.version == 1
    check_spans(made, models("qwen3", seed=0), models("qwen3", seed=1))


class WaitsForNobody(EmbeddedEngine):
    """The planted bug: the learner writes while a forward reads."""

    def quiesce(self) -> None:
        pass


async def learn_mid_flight(engine: Any, model: Any, newer: Any, make_gate: Any, *, waits: bool) -> list[Attempt]:
    """A learner in a thread of its own changes the shared weights while rows decode."""
    attempts = [
        Attempt(name=f"s0/t/{k}", prompt=list(range(30, 33 + 5 * k)), seed=k, temperature=1.0, tools=[])
        for k in range(3)
    ]
    gate, begun, loop = make_gate(model, stop_at=5), asyncio.Event(), asyncio.get_running_loop()
    held = ExitStack()

    def learn() -> None:
        held.enter_context(engine.hold())
        loop.call_soon_threadsafe(begun.set)
        engine.quiesce()
        with torch.no_grad():
            for mine, its in zip(model.parameters(), newer.parameters(), strict=True):
                mine.copy_(its)

    async with asyncio.TaskGroup() as group:
        for attempt in attempts:
            group.create_task(attempt.run(engine, max_new_tokens=40))
        await gate.reached.wait()
        learning = loop.run_in_executor(None, learn)
        await (begun.wait() if waits else learning)
        gate.open.set()  # the forward that it held reads the weights now
        await learning
        await engine.publish(1)
        held.close()
    late = Attempt(name="s0/late/0", prompt=list(range(40, 52)), seed=9, temperature=1.0, tools=[])
    await late.run(engine)
    return [*attempts, late]


async def test_a_learner_beside_the_engine_changes_no_weight_that_is_read(
    embedded: Any, models: Any, gate: Any
) -> None:
    model = models("qwen3", seed=0)
    async with embedded(model, max_running=4) as engine:
        made = await learn_mid_flight(engine, model, models("qwen3", seed=1), gate, waits=True)
    check_spans(made, models("qwen3", seed=0), models("qwen3", seed=1))


async def test_a_weight_changed_in_a_forward_would_be_seen(embedded: Any, models: Any, gate: Any) -> None:
    model = models("qwen3", seed=0)
    async with embedded(model, cls=WaitsForNobody, max_running=4) as engine:
        made = await learn_mid_flight(engine, model, models("qwen3", seed=1), gate, waits=False)
    with pytest.raises(AssertionError, match="not close"):
        check_spans(made, models("qwen3", seed=0), models("qwen3", seed=1))


async def test_publish_without_source_serves_the_shared_weights(embedded: Any, models: Any) -> None:
    model = models("llama", seed=0)
    async with embedded(model, max_running=2) as engine:
        first = Attempt(name="a", prompt=[40, 41, 42], seed=1, temperature=1.0, tools=[])
        await first.run(engine)
        with torch.no_grad():  # what a learner that shares the tensors does
            for mine, other in zip(model.parameters(), models("llama", seed=1).parameters(), strict=True):
                mine.copy_(other)
        await engine.publish(1)
        second = Attempt(name="a", prompt=[40, 41, 42], seed=1, temperature=1.0, tools=[])
        await second.run(engine)
    check_turn(models("llama", seed=0), *first.turns[0], 1.0)
    check_turn(models("llama", seed=1), *second.turns[0], 1.0)


async def test_finished_rows_are_replaced_as_they_end(embedded: Any, models: Any, until: Any) -> None:
    """With two slots, a long row and many short ones, the short ones pass through beside the long one."""
    async with embedded(models("llama"), max_running=2) as engine:

        async def one(name: str, limit: int) -> None:
            await ask(engine, [30], name, limit)
            order.append(name)
            engine.release(name)

        order: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(one("long", 80))
            for k in range(8):
                group.create_task(one(f"short{k}", 4))
        assert order == [*(f"short{k}" for k in range(8)), "long"]


async def test_idle_slots_and_a_waiting_request_do_not_spin(embedded: Any, counting: Any, until: Any) -> None:
    async with embedded(counting(), max_running=1) as engine:
        bursts = 0
        burst = engine._burst

        def counted() -> Any:
            nonlocal bursts
            bursts += 1
            return burst()

        engine._burst = counted
        await ask(engine, [1], "a", 2)
        waiting = asyncio.create_task(ask(engine, [5], "b", 2))
        await until(lambda: len(engine._waiting) == 1)
        for _ in range(3):  # let the bursts that were under way end
            await asyncio.get_running_loop().run_in_executor(engine._thread, lambda: None)
        before = bursts
        for _ in range(50):
            await asyncio.get_running_loop().run_in_executor(engine._thread, lambda: None)
        assert bursts == before and not waiting.done()
        engine.release("a")
        assert (await waiting).ids == (6, 7)
