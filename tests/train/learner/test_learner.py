"""The update does what the definition says, whatever way its tokens are packed, split or shared out."""

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rocstar.kernels.row_loss import LossOf, RowLoss
from rocstar.train.algorithm.loss import imitation_loss, logprobs_and_entropy, policy_loss
from rocstar.train.algorithm.off_policy import AFTER_TOOL, ELSEWHERE, Correction, Gate
from rocstar.train.learner import learner as module
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LocalEngine, LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.scratch import build_model

from ...fakes.tiny import ADAMW, CLIP, SCRATCH, make_example, scale_matrices

VOCAB = 40
SETTINGS = LossSettings(temperature=0.7, loss=CLIP, correction=Correction.none)
MASKS = ([0, 0, 0, 1, 1, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 0, 1])


def model(seed: int = 0) -> PreTrainedModel:
    """Weights large enough that the output is not uniform."""
    made = build_model(SCRATCH, VOCAB, seed=seed)
    scale_matrices(made)
    return made


def learner(
    kind: Callable[..., Any] = Learner, *, lr: float = 1e-2, clip: float = math.inf, world_size: int = 1
) -> Any:
    made = kind(model(), world_size=world_size)
    made.use(dataclasses.replace(ADAMW, lr=lr, weight_decay=0.0, grad_clip=clip))
    return made


def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(1)
    total = sum(map(sum, MASKS))
    made = []
    for k, mask in enumerate(MASKS):
        ids = torch.randint(VOCAB, (len(mask),), generator=generator).tolist()
        logprobs, advantage = [-1.0 if m else None for m in mask], [1.2, -0.7, 0.4, -1.5, 0.9][k]
        one = make_example(ids, mask, weight=1 / total, rollout_logprobs=logprobs, advantage=advantage, name=str(k))
        made.append(one)
    return made


def weights_of(made: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in made.model.parameters()]


def is_same(before: list[Tensor], made: Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


def gradients(made: Learner) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}


def policy_gradient(made: Learner, micros: list[MicroBatch]) -> tuple[dict[str, Tensor], LossStats]:
    made.optimizers.zero_grad()
    total = LossStats()
    for micro in micros:
        total.add(made.policy_backward(micro, SETTINGS)[0])
    return gradients(made), total


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys() and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=atol, msg=name)


def test_many_microbatches_equal_one() -> None:
    made = learner()
    whole, stats = policy_gradient(made, pack(examples(), tokens_per_microbatch=1000))
    for budget in (4, 11, 16):
        micros = pack(examples(), tokens_per_microbatch=budget)
        assert len(micros) > 1
        found, other = policy_gradient(made, micros)
        assert_close(found, whole, atol=2e-6)  # of gradients up to 0.94: float32 rounds more than 1e-7
        for name in LossStats.SUMS:
            assert getattr(other, name) == pytest.approx(getattr(stats, name), abs=1e-5), name


def test_packed_equals_the_definition_one_padded_row_at_a_time() -> None:
    """The reference: plain Hugging Face attention, all logits, masked by multiplication."""
    made = learner()
    found, stats = policy_gradient(made, pack(examples(), tokens_per_microbatch=1000))
    plain = model()
    plain.set_attn_implementation("eager")
    loss = torch.zeros(())
    longest = max(map(len, MASKS))
    for example in examples():
        padding = longest - len(example.ids)
        ids = torch.tensor([[*example.ids, *[0] * padding]])
        attention = torch.tensor([[1] * len(example.ids) + [0] * padding])
        logits = plain(input_ids=ids, attention_mask=attention, use_cache=False).logits[0]
        logprobs, _ = logprobs_and_entropy(
            logits[: len(example.ids) - 1], torch.tensor(example.ids[1:]), SETTINGS.temperature
        )
        ratio = (logprobs - logprobs.detach()).exp()
        loss = loss - (torch.tensor(example.weights[1:]) * ratio * example.advantage).sum()
    torch.autograd.backward(loss)
    assert_close(found, {n: p.grad for n, p in plain.named_parameters() if p.grad is not None})
    assert stats.loss == pytest.approx(float(loss.detach()), abs=1e-6)


def broken(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("the page was changed")


@pytest.mark.parametrize(
    ("definition", "step"),
    [
        (policy_loss, lambda made, micros: made.policy_step([micros], SETTINGS)),
        (imitation_loss, lambda made, micros: made.imitation_step(micros)),
    ],
)
def test_the_page_is_the_loss_that_runs(
    definition: Any, step: Callable[..., LossStats], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train/algorithm/loss.py` made to raise, whoever imported it by whatever name, fails a step."""
    monkeypatch.setattr(definition, "__code__", broken.__code__)
    with pytest.raises(RuntimeError, match="the page was changed"):
        step(learner(), pack(examples(), tokens_per_microbatch=1000))


def test_from_main_to_the_loss_are_four_files() -> None:
    """Each is imported by name in the one before it, so a reader opens no other."""
    path = (
        "rocstar.train.main",
        "rocstar.train.loop",
        "rocstar.train.learner.learner",
        "rocstar.train.algorithm.loss",
    )
    for name, imported in itertools.pairwise(path):
        text = inspect.getsource(importlib.import_module(name))
        assert f"from {imported} import" in text, (name, imported)


def test_what_the_policy_did_not_write_is_no_target() -> None:
    """The last token is no input: without loss it may be any token."""
    made, example = learner(), examples()[3]
    assert example.mask[-1] == 0
    before, _ = policy_gradient(made, pack([example], tokens_per_microbatch=100))
    ids = [*example.ids[:-1], (example.ids[-1] + 1) % VOCAB]
    other = dataclasses.replace(example, ids=ids, rollout_logprobs=[*example.rollout_logprobs[:-1], -7.0])
    after, _ = policy_gradient(made, pack([other], tokens_per_microbatch=100))
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_tool_token_has_no_say_in_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever weight, log-prob or advantage it is given, the gradient is the same to the last bit, and as
    many rows go through the head as the policy wrote tokens."""
    made, rows = learner(), []
    seen: list[int] = []
    real = module.linear_loss

    def counted(
        hidden_TD: Tensor, weight_VD: Tensor, ids_T: Tensor, loss_of: LossOf, **named: Any
    ) -> tuple[Tensor, RowLoss]:
        seen.append(len(hidden_TD))
        return real(hidden_TD, weight_VD, ids_T, loss_of, **named)

    monkeypatch.setattr(module, "linear_loss", counted)
    for example in examples():
        is_loss = [bool(m) for m in example.mask]
        rows.append(
            dataclasses.replace(
                example,
                weights=[w if m else 7.0 for w, m in zip(example.weights, is_loss, strict=True)],
                rollout_logprobs=[p if m else -9.0 for p, m in zip(example.rollout_logprobs, is_loss, strict=True)],
            )
        )
    found = []
    for batch in (examples(), rows):
        made.optimizers.zero_grad()
        (micro,) = pack(batch, tokens_per_microbatch=1000)
        made.policy_backward(micro, settings("token"))
        found.append(gradients(made))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert seen == [sum(map(sum, MASKS))] * 2


def test_an_empty_microbatch_adds_exactly_nothing() -> None:
    made = learner()
    micros = pack(examples(), tokens_per_microbatch=16)
    expected, stats = policy_gradient(made, micros)
    found, other = policy_gradient(made, [*micros, empty_microbatch()])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert stats == other
    alone, nothing = policy_gradient(made, [empty_microbatch()])
    assert alone.keys() == expected.keys(), "a rank without tokens must still take part in every reduction"
    assert not any(gradient.any() for gradient in alone.values())
    assert nothing.loss == nothing.tokens == 0


def test_the_loss_is_scaled_by_the_ranks_that_average_it() -> None:
    micros = pack(examples(), tokens_per_microbatch=1000)
    one, stats = policy_gradient(learner(), micros)
    two, others = policy_gradient(learner(world_size=2), micros)
    assert all(torch.equal(two[name], 2 * one[name]) for name in one)
    assert stats.loss == others.loss


# ---- steps ----


class Spy(Learner):
    """Writes down the old log-probs of every microbatch."""

    def policy_backward(self, micro: MicroBatch, settings: LossSettings) -> tuple[LossStats, Tensor]:
        self.__dict__.setdefault("seen", []).append(micro.old_logprobs_T)
        return super().policy_backward(micro, settings)


def test_one_update_needs_no_old_logprobs() -> None:
    made = learner(Spy, clip=1.0)
    stats = made.policy_step([pack(examples(), tokens_per_microbatch=16)], SETTINGS)
    assert set(made.__dict__["seen"]) == {None}
    assert stats.max_ratio == 1.0 and stats.clipped_low == stats.clipped_high == 0
    assert stats.mismatch.num_tokens() == stats.tokens == sum(map(sum, MASKS))


def test_later_updates_have_the_logprobs_of_the_batch_start() -> None:
    made = learner(Spy, clip=1.0)
    first, second = (pack(part, tokens_per_microbatch=16) for part in (examples()[:2], examples()[2:]))
    expected = made.logprobs(second, SETTINGS.temperature)
    stats = made.policy_step([first, second], SETTINGS)
    seen = made.__dict__["seen"]
    assert seen[: len(first)] == [None] * len(first)
    for found, old in zip(seen[len(first) :], expected, strict=True):
        assert torch.equal(found, old)
    assert len(stats.grad_norms) == 2
    assert stats.max_ratio > 1.0 and stats.clipped_low + stats.clipped_high > 0, "the clip can act"
    assert stats.mismatch.num_tokens() == stats.tokens, "each token once, of whichever update"


def test_mismatch_is_rollout_minus_learner() -> None:
    made = learner()
    micros = pack(examples(), tokens_per_microbatch=1000)
    logprobs = made.logprobs(micros, SETTINGS.temperature)[0]
    stats = made.policy_step([micros], SETTINGS)
    gaps = -1.0 - logprobs
    after = micros[0].after_tool_T
    assert stats.mismatch.kl() == pytest.approx(float(gaps.mean()), abs=1e-5)
    assert stats.mismatch.kl(AFTER_TOOL) == pytest.approx(float(gaps[after].mean()), abs=1e-5)
    assert stats.mismatch.kl(ELSEWHERE) == pytest.approx(float(gaps[~after].mean()), abs=1e-5)
    worst = int(gaps.abs().argmax())
    found = stats.worst[0]
    assert (found.token, found.learner_logprob) == (int(micros[0].targets_T[worst]), float(logprobs[worst]))
    assert [w.gap for w in stats.worst] == sorted((w.gap for w in stats.worst), reverse=True)
    for token in stats.worst:
        example = examples()[int(token.trajectory)]
        assert example.ids[token.position] == token.token and example.mask[token.position]


def test_the_imitation_loss_is_the_weighted_cross_entropy() -> None:
    made = learner()
    micros = pack(examples(), tokens_per_microbatch=1000)
    logprobs = made.logprobs(micros, 1.0)[0]
    stats = made.imitation_step(micros)
    assert stats.loss == pytest.approx(-float(logprobs.sum()), rel=1e-5)
    after = made.logprobs(micros, 1.0)[0]
    assert float((micros[0].weights_T * after).sum()) > float((micros[0].weights_T * logprobs).sum())


@pytest.mark.parametrize(
    "step",
    [
        lambda made, micros: made.imitation_step(micros),
        lambda made, micros: made.policy_step([micros], settings("token")),
        lambda made, micros: made.policy_step([micros[:1], micros[1:]], settings("sequence")),
    ],
)
def test_a_gradient_that_is_not_finite_changes_nothing(step: Callable[[Learner, list[MicroBatch]], object]) -> None:
    made = learner()
    good = pack(examples(), tokens_per_microbatch=1000)
    made.imitation_step(good)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    state = [{k: v.clone() for k, v in s.items()} for s in made.optimizers.optimizers[0].state.values()]
    lr = made.optimizers.schedule_state()
    with torch.no_grad():
        made.model.get_submodule("model.norm").weight[3] = before["model.norm.weight"][3] = math.nan
    with pytest.raises(NonFiniteGradientError, match="no weight was changed") as stopped:
        step(made, pack(examples(), tokens_per_microbatch=16))
    assert all(torch.equal(p.nan_to_num(7), before[n].nan_to_num(7)) for n, p in made.model.named_parameters())
    for now, then in zip(made.optimizers.optimizers[0].state.values(), state, strict=True):
        assert all(torch.equal(now[k], then[k]) for k in then)
    assert made.optimizers.schedule_state() == lr
    assert not gradients(made), "a bad gradient must not be left for the next step"
    assert stopped.value.parts and all(math.isnan(part.loss) for part in stopped.value.parts)


@pytest.mark.parametrize("correction", list(Correction))
@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advantages", math.nan),
        ("advantages", -math.inf),
        ("rollout_logprobs", -math.inf),
        ("weights", math.nan),
        ("ids", VOCAB),
        ("ids", -1),
    ],
)
def test_a_batch_that_holds_no_number_is_refused_before_its_first_update(
    correction: str, update: int, name: str, value: float
) -> None:
    made = learner()
    parts = [pack(rows, tokens_per_microbatch=1000)[0] for rows in (examples()[:2], examples()[2:])]
    field = {"ids": "targets_T"}.get(name, f"{name}_T")
    values = getattr(parts[update], field).clone()
    values[1] = value
    parts[update] = dataclasses.replace(parts[update], **{field: values})
    before = weights_of(made)
    with pytest.raises(NonFiniteGradientError, match=f"in {name}; no weight was changed") as stopped:
        made.policy_step([[part] for part in parts], settings(correction))
    assert [part.micro for part in stopped.value.parts] == parts and not gradients(made)
    assert is_same(before, made)


def test_a_later_update_that_overflows_says_that_weights_were_changed() -> None:
    made = learner()
    rows = [*examples()[:2], *(dataclasses.replace(example, advantage=1e30) for example in examples()[2:])]
    before = weights_of(made)
    with pytest.raises(NonFiniteGradientError, match=r"norm inf.*; 1 earlier updates of the batch"):
        made.policy_step([pack(part, tokens_per_microbatch=1000) for part in (rows[:2], rows[2:])], SETTINGS)
    assert not is_same(before, made)


def test_a_norm_that_overflows_stops_a_step_whose_losses_are_numbers() -> None:
    made = learner()
    rows = [dataclasses.replace(example, advantage=1e30) for example in examples()]
    before = weights_of(made)
    with pytest.raises(NonFiniteGradientError, match="gradient norm inf") as stopped:
        made.policy_step([pack(rows, tokens_per_microbatch=16)], SETTINGS)
    assert all(math.isfinite(part.loss) for part in stopped.value.parts)
    assert is_same(before, made)


@pytest.mark.parametrize("clip", [1e-3, math.inf])
def test_the_norm_is_told_as_it_was_and_clipped(clip: float) -> None:
    made = learner(clip=clip)
    micros = pack(examples(), tokens_per_microbatch=1000)
    expected, _ = policy_gradient(made, micros)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    stats = made.policy_step([micros], SETTINGS)
    left = math.sqrt(sum(float(g.square().sum()) for g in gradients(made).values()))
    assert stats.grad_norms == pytest.approx([norm], rel=1e-5)
    assert left == pytest.approx(min(clip, norm), rel=1e-3)


def test_whoever_works_beside_the_learner_is_told_of_each_batch_and_of_nothing_else() -> None:
    made, told = learner(), []

    @contextlib.contextmanager
    def learning() -> Iterator[None]:
        told.append("begin")
        yield
        told.append("end")

    made.engine = LocalEngine(learning=learning)
    micros = pack(examples(), tokens_per_microbatch=1000)
    made.imitation_step(micros)
    assert not told
    made.policy_step([micros, micros], SETTINGS)
    assert told == ["begin", "end"]


def test_who_watches_sees_how_many_microbatches_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second update's twice: measured before the first one, then learned."""
    made, seen = learner(), []
    through = PolicyModel.__call__

    def watched(*arguments: Any) -> Any:
        seen.append(made.gone_through)
        return through(*arguments)

    monkeypatch.setattr(PolicyModel, "__call__", watched)
    first, second = (pack(examples()[:3], tokens_per_microbatch=12), pack(examples()[3:], tokens_per_microbatch=6))
    total = len(first) + 2 * len(second)
    made.policy_step([first, second], SETTINGS)
    assert len(first) > 1 and seen == [(done, total) for done in range(total)]
    assert made.gone_through == (0, 0)
    made.imitation_step(pack(examples(), tokens_per_microbatch=12))
    assert made.gone_through[1] == 0, "nothing of a batch is shown when none is learned"


def test_a_step_begins_without_the_gradient_of_the_last() -> None:
    micros = pack(examples(), tokens_per_microbatch=16)
    made, twice = learner(lr=1e-9), learner(lr=1e-9)
    once = made.policy_step([micros], SETTINGS).grad_norms
    both = [twice.policy_step([micros], SETTINGS).grad_norms for _ in range(2)]
    assert list(itertools.chain(*both)) == pytest.approx(once * 2, rel=1e-4)


# ---- off-policy ----


def with_rollout(made: Learner, gap: float) -> list[Example]:
    """The examples with rollout log-probs `gap` above the learner's own."""
    rows = examples()
    changed = []
    for example in rows:
        micro = pack([example], tokens_per_microbatch=100)[0]
        own = iter(made.logprobs([micro], SETTINGS.temperature)[0].tolist())
        logprobs = [next(own) + gap if m else None for m in example.mask]
        changed.append(dataclasses.replace(example, rollout_logprobs=logprobs))
    return changed


def settings(correction: str, *, cap: float = 2.0, floor: float = 0.5, gate: Gate | None = None) -> LossSettings:
    return dataclasses.replace(SETTINGS, correction=Correction(correction), cap=cap, floor=floor, gate=gate)


@pytest.mark.parametrize(
    ("correction", "gap", "factor"),
    [
        ("token", 0.5, math.exp(-0.5)),
        ("token", -0.5, math.exp(0.5)),
        ("token", -1.0, 2.0),
        ("icepop", 0.5, math.exp(-0.5)),
        ("icepop", 1.0, 0.0),
        ("icepop", -1.0, 0.0),
        ("none", 1.0, 1.0),
    ],
)
def test_the_gradient_has_the_factor_of_the_correction(correction: str, gap: float, factor: float) -> None:
    made = learner()
    plain, _ = policy_gradient(made, pack(examples(), tokens_per_microbatch=1000))
    made.optimizers.zero_grad()
    for micro in pack(with_rollout(made, gap), tokens_per_microbatch=16):
        made.policy_backward(micro, settings(correction))
    found = gradients(made)
    assert plain.keys() == found.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, factor * plain[name], rtol=1e-4, atol=1e-6)


def test_the_factor_of_a_trajectory_is_the_product_over_its_tokens() -> None:
    made = learner()
    rows = with_rollout(made, -0.02)
    scaled = []
    for example in rows:
        factor = math.exp(0.02 * sum(example.mask))
        scaled.append(dataclasses.replace(example, weights=[w * factor for w in example.weights]))
    expected, _ = policy_gradient(made, pack(scaled, tokens_per_microbatch=16))
    made.optimizers.zero_grad()
    for micro in pack(rows, tokens_per_microbatch=16):
        made.policy_backward(micro, settings("sequence"))
    # The rollout log-probs are those of rows by themselves: rounding enters the factor.
    assert_close(gradients(made), expected, atol=5e-6)


def test_the_correction_is_of_the_batch_start_and_the_ratio_of_now() -> None:
    """old = now + 0.1, rollout = old - 0.2: the ratio is exp(-0.1), the factor exp(0.2)."""
    made = learner()
    micro = pack(with_rollout(made, -0.1), tokens_per_microbatch=1000)[0]
    old_T = made.logprobs([micro], SETTINGS.temperature)[0] + 0.1
    stats, _ = made.policy_backward(dataclasses.replace(micro, old_logprobs_T=old_T), settings("token"))
    plain = -float((micro.weights_T * micro.advantages_T).sum())
    assert stats.loss == pytest.approx(plain * math.exp(-0.1) * math.exp(0.2), rel=1e-4)
    assert stats.mismatch.num_tokens() == 0, "measured with all others, before the first update"


def test_all_updates_are_measured_at_the_batch_start() -> None:
    made = learner(Spy, clip=1.0)
    rows = with_rollout(made, 0.25)
    first, second = (pack(part, tokens_per_microbatch=16) for part in (rows[:2], rows[2:]))
    stats = made.policy_step([first, second], settings("token"))
    assert stats.mismatch.kl() == pytest.approx(0.25, abs=1e-5)
    assert stats.mismatch.ratio_p99() == pytest.approx(math.exp(0.25), rel=0.01)
    assert stats.max_ratio > 1.05, "the ratio of the second update has moved"


def test_the_distance_to_the_start_policy_is_of_the_batch_start_and_changes_no_bit() -> None:
    made, other = learner(), learner()
    made.start = Learner(model())
    measuring = dataclasses.replace(SETTINGS, measures_start=True)
    parts = [pack(rows, tokens_per_microbatch=16) for rows in (examples()[:2], examples()[2:])]
    before = [t for part in parts for t in made.logprobs(part, SETTINGS.temperature)]
    first, second = (made.policy_step(parts, measuring) for _ in range(2))
    assert [other.policy_step(parts, SETTINGS).start_tokens for _ in range(2)] == [0.0, 0.0]
    assert first.start_kl == pytest.approx(0.0, abs=1e-9) and second.start_kl > 1e-3
    assert first.start_tokens == second.start_tokens == sum(map(sum, MASKS))
    assert is_same(weights_of(other), made)
    after = [t for part in parts for t in made.start.logprobs(part, SETTINGS.temperature)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the start stays"


@pytest.mark.parametrize("num_updates", [1, 2])
def test_the_third_bad_step_changes_no_weight_and_a_good_one_does_again(num_updates: int) -> None:
    gated = settings("none", gate=Gate(kl=0.05, ratio_p99=2.0, steps=3))
    made = learner(lr=1e-3)
    bad_steps, moved, norms = 0, [], []
    for gap in (0.2, 0.2, 0.2, -0.2, 0.0, 0.2):
        rows = with_rollout(made, gap)
        parts = [rows] if num_updates == 1 else [rows[:2], rows[2:]]
        before, schedule = weights_of(made), made.optimizers.schedule_state()
        stats = made.policy_step([pack(p, tokens_per_microbatch=16) for p in parts], gated, bad_steps)
        bad_steps = stats.bad_steps
        same = is_same(before, made)
        assert same == stats.is_paused == (made.optimizers.schedule_state() == schedule)
        moved.append(not same)
        norms.append(len(stats.grad_norms))
        assert not stats.is_paused or not gradients(made), "nothing is left for the next step"
    assert moved == [True, True, False, False, True, True]
    assert norms == [num_updates * m for m in moved]
