"""Each policy loss through the learner, on every path of the head, against the oracle on whole logits in float64."""

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.linear_loss import linear_logprobs, linear_loss
from rocstar.kernels.row_loss import of_all_rows
from rocstar.train.algorithm.loss import policy_loss, stopped
from rocstar.train.algorithm.losses import LOSSES
from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.adapters import add_adapters
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import update_metrics
from rocstar.train.learner.own_loss import OwnLoss, check_loss
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import LoraConfig

from ...fakes.tiny import make_example, policy_tokens
from ..algorithm.loss_oracle import CAP, FLOOR, made, oracle_factors, oracle_loss
from .test_learner import VOCAB, gradients, learner, model

TEMPERATURE = 0.7
MASKS = ([0] * 6 + [1, 1, 0, 0, 1], [0] * 6 + [1, 1, 1], [0] * 6 + [1, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 1])
ADVANTAGES = (1.2, -0.7, 0.4, -1.5, 0.9)
GAPS = (0.0, 0.1, 0.0, 1.0, -1.6)
"""Mean distance of the rollout's log-probs from the current ones."""
CASES = [(name, Correction.none) for name in LOSSES] + [("clip", mode) for mode in Correction][1:]
CASES += [("cispo", Correction.negative_mask), ("gspo", Correction.negative_mask)]


def scores(example: Example, policy: Any) -> tuple[Tensor, Tensor]:
    """The log-probs and the entropies of the example's targets, in the type of the policy."""
    logits = policy(input_ids=torch.from_numpy(example.ids)[None], use_cache=False).logits[0, :-1] / TEMPERATURE
    targets, all_logprobs = torch.from_numpy(example.mask[1:]).bool(), torch.log_softmax(logits, -1)
    now = all_logprobs.gather(-1, torch.from_numpy(example.ids[1:])[:, None])[:, 0]
    return now[targets], -(all_logprobs.exp() * all_logprobs).sum(-1)[targets]


@cache
def stale_examples() -> list[Example]:
    """Siblings with one prompt, and two rows without; the rollout's log-probs are of other weights."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(VOCAB, (6,), generator=generator).tolist()
    policy, total, found = model().double(), sum(map(sum, MASKS)), []
    for k, mask in enumerate(MASKS):
        ids = torch.randint(VOCAB, (len(mask),), generator=generator).tolist()
        example = make_example([*prompt, *ids[6:]] if k < 3 else ids, mask, weight=0.5 / total, name=str(k))
        with torch.no_grad():
            noise = 0.35 * torch.randn(sum(mask), generator=generator) + GAPS[k]
            rollout = iter((scores(example, policy)[0] + noise).tolist())
        logprobs = [next(rollout) if m else None for m in mask]
        found.append(dataclasses.replace(example, advantage=ADVANTAGES[k], rollout_logprobs=logprobs))
    return found


def old_logprobs() -> dict[str, Tensor]:
    """Of the batch start, before some update: other than the rollout's and than the current ones."""
    generator = torch.Generator().manual_seed(2)
    policy = model().double()
    with torch.no_grad():
        now = {one.name: scores(one, policy)[0] for one in stale_examples()}
    return {name: now_T + 0.2 * torch.randn(len(now_T), generator=generator) for name, now_T in now.items()}


def micros_of(budget: int, olds: Mapping[str, Tensor] | None) -> list[MicroBatch]:
    micros = pack(stale_examples(), tokens_per_microbatch=budget)
    if olds is None:
        return micros
    parts = [torch.cat([olds[name] for name in micro.names_S]).float() for micro in micros]
    return [dataclasses.replace(m, old_logprobs_T=old_T) for m, old_T in zip(micros, parts, strict=True)]


def expected_gradient(
    name: str, mode: str, olds: Mapping[str, Tensor] | None, alpha: float, build: Callable[[], Any]
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient by whole logits of one row after the other, in float64; a correction acts somewhere."""
    policy = build().double()
    policy.set_attn_implementation("eager")
    total, all_factors = torch.zeros((), dtype=torch.float64), set[float]()
    for example in stale_examples():
        now_T, entropy_T = scores(example, policy)
        rollout_T = torch.from_numpy(example.rollout_logprobs[example.mask])
        old_T = now_T.detach() if olds is None else olds[example.name]
        given = old_T, rollout_T.double(), torch.full_like(old_T, float(example.advantage)), [len(old_T)]
        factors = torch.tensor(oracle_factors(mode, now_T.detach(), *given), dtype=torch.float64)
        all_factors.update(factors.tolist())
        weights = torch.from_numpy(example.weights[example.mask]).double()
        total = total + (weights * (factors * oracle_loss(name, now_T, *given) - alpha * entropy_T)).sum()
    assert (len(all_factors) > 1) == (mode != Correction.none)
    assert (0.0 in all_factors) == (mode in (Correction.icepop, Correction.sequence_mask, Correction.negative_mask))
    torch.autograd.backward(total)
    return float(total.detach()), {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}


def settings(name: str, mode: Correction = Correction.none, alpha: float = 0.0) -> LossSettings:
    loss = made(name)
    return LossSettings(temperature=TEMPERATURE, loss=loss, correction=mode, cap=CAP, floor=FLOOR, entropy_alpha=alpha)


def assert_oracle(
    name: str, mode: Correction, *, later: bool, alpha: float = 0.0, build: Callable[[], Any] = model
) -> None:
    """Packed in one microbatch with shared beginnings and cut into blocks, and in several microbatches."""
    olds = old_logprobs() if later else None
    value, expected = expected_gradient(name, mode, olds, alpha, build)
    for budget in (1000, 12):
        one = Learner(build())
        micros = [*micros_of(budget, olds), empty_microbatch()]
        assert (len(micros) > 3) == (budget == 12)
        stats = [one.policy_backward(micro, settings(name, mode, alpha))[0] for micro in micros]
        assert sum(s.loss for s in stats) == pytest.approx(value, abs=1e-6)
        found = gradients(one)
        assert found.keys() == expected.keys() and max(float(g.abs().max()) for g in expected.values()) > 0.3
        for key, gradient in found.items():
            torch.testing.assert_close(gradient.double(), expected[key], rtol=0, atol=1e-6, msg=key)


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_loss_and_gradient_are_those_of_the_oracle(name: str, mode: Correction, later: bool) -> None:
    assert_oracle(name, mode, later=later)


def with_adapters() -> Any:
    policy: Any = model()
    add_adapters(policy, LoraConfig(rank=4, alpha=12), seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1, generator=generator)
    return policy


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(("name", "mode"), [("clip", Correction.icepop), ("gspo", Correction.negative_mask)])
@pytest.mark.parametrize("build", [model, with_adapters])
def test_the_entropy_term_is_that_of_the_oracle(
    name: str, mode: Correction, later: bool, build: Callable[[], Any]
) -> None:
    """Over all tokens, also those that the correction masks; in one pass over the head, and in two."""
    assert_oracle(name, mode, later=later, alpha=0.6, build=build)


@pytest.mark.parametrize("chunk_rows", [1, 5, 100])
@pytest.mark.parametrize("name", LOSSES)
def test_chunks_and_blocks_that_cut_sequences_change_nothing(
    name: str, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head alone, with gradients in hidden states and weight; a block has three rows."""
    monkeypatch.setattr(torch_ops, "BLOCK_BYTES", 4 * 53 * 3)
    generator, lengths = torch.Generator().manual_seed(4), [9, 1, 14, 7]
    size = sum(lengths)
    hidden_ND, weight_VD = (torch.randn(n, 16, generator=generator).requires_grad_() for n in (size, 53))
    ids_N = torch.randint(53, (size,), generator=generator)
    advantages_N = torch.tensor([1.0, -1.0, -0.5, 0.7]).repeat_interleave(torch.tensor(lengths))
    exact_ND, exact_VD = (x.detach().double().requires_grad_() for x in (hidden_ND, weight_VD))
    exact_N = torch.log_softmax(exact_ND @ exact_VD.T, -1).gather(-1, ids_N[:, None])[:, 0]
    rollout_N = (exact_N.detach() + 0.3 * torch.randn(size, generator=generator)).float()
    weights_N = torch.rand(size, generator=generator) / size / 4
    loss_N = weights_N.double() * oracle_loss(name, exact_N, rollout_N, rollout_N, advantages_N, lengths)

    def loss_of(logprobs_C: Tensor, rows: slice) -> Tensor:
        parts = {"rollout_logprobs_T": rollout_N[rows], "old_logprobs_T": rollout_N[rows]}
        whole = lengths if len(logprobs_C) == size else None
        tokens = policy_tokens(logprobs_C, **parts, advantages_T=advantages_N[rows], lengths_S=whole)
        return policy_loss(made(name), tokens, weights_T=weights_N[rows])

    named = {"chunk_rows": chunk_rows, "backend": "torch"}
    chosen = of_all_rows(loss_of, linear_logprobs(hidden_ND, weight_VD, ids_N, **named))
    for of in (chosen,) if made(name).reads_sequences else (chosen, loss_of):
        loss, _ = linear_loss(hidden_ND, weight_VD, ids_N, of, **named)
        assert float(loss.detach()) == pytest.approx(float(loss_N.detach().sum()), abs=1e-6)
        found = torch.autograd.grad(loss, (hidden_ND, weight_VD))
        for ours, theirs in zip(
            found, torch.autograd.grad(loss_N.sum(), (exact_ND, exact_VD), retain_graph=True), strict=True
        ):
            assert float(theirs.abs().max()) > 1e-3
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_the_metrics_are_the_shares_of_tokens_without_gradient(name: str) -> None:
    """At the first update, where only a loss that starts from the rollout can stop a token."""
    one = learner(lr=1e-9)
    (micro,) = micros_of(1000, None)
    now_T = one.logprobs([micro], TEMPERATURE)[0]
    tokens = micro.tokens_at(now_T.device)(now_T, slice(None))
    low, high = (float((stopped(made(name), tokens) == code).float().mean()) for code in (1, 2))
    metrics = update_metrics(one.policy_step([[micro]], settings(name)))
    assert (metrics["clip/low_fraction"], metrics["clip/high_fraction"]) == pytest.approx((low, high))
    assert (low + high > 0) == (name in ("gspo", "dppo"))


# ---- own functions ----

OWN = """
import torch

def gspo(tokens):
    gaps = torch.split(tokens.logprobs_T - tokens.rollout_logprobs_T, list(tokens.lengths_S))
    s = torch.cat([gap.double().mean().exp().expand(len(gap)) for gap in gaps])
    A = tokens.advantages_T
    return -torch.minimum(s * A, s.clamp(0.85, 1.2) * A).to(A.dtype)

def plain(tokens):
    return -tokens.advantages_T * tokens.logprobs_T * tokens.after_tool_T.logical_not()

def changes_its_input(tokens):
    loss_T = plain(tokens)
    for value_T in (tokens.logprobs_T, tokens.old_logprobs_T, tokens.rollout_logprobs_T, tokens.advantages_T):
        value_T.detach().mul_(3.0)
    tokens.after_tool_T.logical_not_()
    return loss_T

def fails_behind_the_test(tokens):
    if len(tokens.logprobs_T) != 6:
        raise KeyError("later")
    return plain(tokens)

def ends_the_program(tokens):
    return plain(tokens) if len(tokens.logprobs_T) == 6 else exit(0)

def is_of_other_tensors(tokens):
    return plain(tokens) if len(tokens.logprobs_T) == 6 else torch.zeros_like(tokens.logprobs_T).requires_grad_()

def is_complex(tokens):
    return plain(tokens) if len(tokens.logprobs_T) == 6 else plain(tokens) * 1j

async def waits(tokens): return plain(tokens)
def is_no_tensor(tokens): return 3.0
def gives_one_number(tokens): return plain(tokens).sum()
def has_no_gradient(tokens): return plain(tokens).detach()
def does_nothing(tokens): return plain(tokens) * 0
def is_not_finite(tokens): return plain(tokens) / 0
def has_a_broken_gradient(tokens): return (tokens.logprobs_T - tokens.logprobs_T.detach()).sqrt()
def takes_two(tokens, other): return plain(tokens)
class Loss: pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "own_losses.py").write_text(OWN)
    return lambda name: f"{tmp_path}/own_losses.py:{name}"


def test_an_own_function_reads_whole_sequences_and_trains_as_the_built_in_one(own: Callable[[str], str]) -> None:
    check_loss(own("gspo"))
    found = []
    for loss in (made("gspo"), pickle.loads(pickle.dumps(OwnLoss(own("gspo"))))):  # as it goes to another rank
        one = learner()
        one.optimizers.zero_grad()
        for micro in [*micros_of(12, None), empty_microbatch()]:
            one.policy_backward(micro, dataclasses.replace(settings("gspo"), loss=loss))
        found.append(gradients(one))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("is_no_tensor", "TypeError: it returns float, not a tensor"),
        ("gives_one_number", r"it returns shape \(\) for 6 tokens"),
        ("has_no_gradient", "no gradient in logprobs_T"),
        ("does_nothing", "is 0 for every token"),
        ("is_not_finite", "not finite: losses"),
        ("has_a_broken_gradient", "not finite: gradient in logprobs_T"),
        ("takes_two", "cannot be called with PolicyTokens: missing a required argument"),
        ("Loss", "is type, not a function"),
        ("waits", "is a coroutine function, which nothing awaits"),
        ("missing", "the module has no 'missing'"),
    ],
)
def test_a_function_that_gives_no_loss_is_refused_before_the_run(
    name: str, words: str, own: Callable[[str], str]
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        check_loss(own(name))
    assert str(error.value).startswith("rl.loss = ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails_behind_the_test", r"KeyError: 'later' \(own_losses.py, line 22\)"),
        ("ends_the_program", "SystemExit: 0"),
        ("is_of_other_tensors", "RuntimeError: .* appears to not have been used"),
        ("is_complex", "RuntimeError: grad can be implicitly created only for real"),
    ],
)
def test_a_function_that_fails_in_the_run_stops_it_with_its_line(
    name: str, words: str, own: Callable[[str], str]
) -> None:
    """As a value that is not finite does, so that all ranks stop; see test_ranks.py."""
    check_loss(own(name))
    with pytest.raises(NonFiniteGradientError, match=f"rl.loss = .*{words}.*; correct it; no weight was changed"):
        learner().policy_step([micros_of(1000, None)], dataclasses.replace(settings("clip"), loss=OwnLoss(own(name))))


def test_a_function_that_changes_its_input_changes_its_copies(own: Callable[[str], str]) -> None:
    found = []
    for name in ("plain", "changes_its_input"):
        check_loss(own(name))
        chosen = dataclasses.replace(settings("clip"), loss=OwnLoss(own(name)))
        metrics = update_metrics(learner().policy_step([micros_of(1000, None)], chosen))
        found.append(metrics)
    assert found[0] == found[1]
