"""Each policy loss and correction against the oracle in float64: value, gradient, and whose gradient is stopped.

Legend: `_T` tokens, `_S` sequences.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.train.algorithm.loss import CLIP_HIGH, CLIP_LOW, PolicyTokens, policy_loss, stopped
from rocstar.train.algorithm.losses import LOSSES
from rocstar.train.algorithm.losses.dppo import Dppo
from rocstar.train.algorithm.off_policy import Correction, correct
from rocstar.train.recipe.rl_config import CONSTANTS, RlConfig

from ...fakes.tiny import policy_tokens
from .loss_oracle import CAP, FLOOR, made, oracle_factors, oracle_loss

LENGTHS = (5, 1, 9, 0, 3, 7)


def stale_tokens(seed: int, *, dtype: torch.dtype = torch.float64) -> PolicyTokens:
    """Tokens whose rollout, old and current log-probs all differ; sequences of both signs, one of advantage 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal_T() -> Tensor:
        return torch.randn(sum(LENGTHS), generator=generator, dtype=torch.float64)

    rollout_T = -normal_T().abs()
    old_T = rollout_T + 0.3 * normal_T()
    advantages_S = torch.tensor([1.3, -0.4, 0.8, 1.0, 0.0, -1.1], dtype=torch.float64)
    return PolicyTokens(
        logprobs_T=(old_T + 0.3 * normal_T()).to(dtype).requires_grad_(),
        old_logprobs_T=old_T.to(dtype),
        rollout_logprobs_T=rollout_T.to(dtype),
        advantages_T=advantages_S.repeat_interleave(torch.tensor(LENGTHS)).to(dtype),
        after_tool_T=normal_T() > 0,
        lengths_S=LENGTHS,
    )


def by_token(tokens: PolicyTokens) -> PolicyTokens:
    """With an advantage for each token, as a teacher or forks give them; both signs in a sequence."""
    signs_T = torch.arange(len(tokens.advantages_T)).remainder(3) - 1
    return replace(tokens, advantages_T=tokens.advantages_T * signs_T)


def given(tokens: PolicyTokens) -> tuple[Any, ...]:
    return tokens.old_logprobs_T, tokens.rollout_logprobs_T, tokens.advantages_T, tokens.lengths_S


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_oracle(name: str, seed: int) -> None:
    tokens = by_token(stale_tokens(seed)) if seed % 2 else stale_tokens(seed)
    other_T = tokens.logprobs_T.detach().clone().requires_grad_()
    ours_T, theirs_T = made(name)(tokens), oracle_loss(name, other_T, *given(tokens))
    torch.testing.assert_close(ours_T, theirs_T, rtol=1e-12, atol=1e-14)
    torch.autograd.backward([ours_T.sum(), theirs_T.sum()])
    torch.testing.assert_close(tokens.logprobs_T.grad, other_T.grad, rtol=1e-12, atol=1e-14)
    assert other_T.grad is not None
    stopped_T = stopped(made(name), tokens)
    is_down_T = tokens.advantages_T < 0
    assert torch.equal(stopped_T == CLIP_LOW, (other_T.grad == 0) & is_down_T)
    assert torch.equal(stopped_T == CLIP_HIGH, (other_T.grad == 0) & (tokens.advantages_T > 0))
    assert name == "gspo" or bool(stopped_T.any()) == (name in ("clip", "dppo"))


@pytest.mark.parametrize("name", LOSSES)
def test_float32_is_within_1e_6_and_tokens_without_advantage_do_nothing(name: str) -> None:
    tokens, exact = stale_tokens(7, dtype=torch.float32), stale_tokens(7)
    ours_T = made(name)(tokens)
    assert ours_T.dtype == torch.float32
    theirs_T = oracle_loss(name, exact.logprobs_T, *given(exact))
    torch.testing.assert_close(ours_T.double(), theirs_T, rtol=0, atol=1e-6)
    (slope_T,), (exact_T,) = (
        torch.autograd.grad(x.sum(), one.logprobs_T) for x, one in ((ours_T, tokens), (theirs_T, exact))
    )
    torch.testing.assert_close(slope_T.double(), exact_T, rtol=0, atol=1e-6)
    assert not slope_T[tokens.advantages_T == 0].any()


def test_both_bounds_of_gspo_stop_whole_sequences() -> None:
    now_T, lengths = torch.tensor([0.4, 0.0, 0.4, 0.0, -0.4, 0.0, -0.4, 0.0]), (2, 2, 2, 2)
    advantages_T = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    tokens = policy_tokens(now_T, rollout_logprobs_T=torch.zeros(8), advantages_T=advantages_T, lengths_S=lengths)
    assert stopped(made("gspo"), tokens).tolist() == [CLIP_HIGH] * 2 + [0] * 4 + [CLIP_LOW] * 2


def test_an_unlikely_token_is_never_stopped_by_dppo() -> None:
    rollout_T = torch.full((2,), math.log(1e-3))
    tokens = policy_tokens(rollout_T + 3.0, rollout_logprobs_T=rollout_T, advantages_T=torch.tensor([1.0, -1.0]))
    assert not stopped(Dppo(low=0.2, high=0.2), tokens).any(), "20 times as likely, and 0.02 more probability"


@pytest.mark.parametrize("name", LOSSES)
def test_an_extreme_ratio_and_no_tokens_leave_everything_finite(name: str) -> None:
    for size in (0, 4):
        now_T = torch.tensor([-90.0, -0.0, -90.0, -0.0][:size], requires_grad=True)
        rollout_T = torch.tensor([-0.0, -90.0, -0.0, -90.0][:size])
        advantages_T = torch.tensor([1.0, 1.0, -1.0, -1.0][:size])
        lengths = [1] * size or [0]
        tokens = policy_tokens(
            now_T, rollout_logprobs_T=rollout_T, old_logprobs_T=rollout_T, advantages_T=advantages_T, lengths_S=lengths
        )
        loss_T = policy_loss(made(name), tokens, weights_T=torch.ones(size))
        (slope_T,) = torch.autograd.grad(loss_T.sum(), now_T)
        assert loss_T.isfinite().all() and slope_T.isfinite().all() and slope_T.shape == (size,)


@pytest.mark.parametrize("name", [name for name in LOSSES if made(name).reads_sequences])
def test_parts_of_sequences_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="need whole sequences"):
        made(name)(policy_tokens(torch.zeros(3)))


def test_every_loss_has_its_constants_in_the_recipe() -> None:
    assert list(LOSSES) == list(CONSTANTS)
    for name in LOSSES:
        assert LOSSES[name](**RlConfig(loss=name).constants()), name


# ---- corrections ----


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", [mode for mode in Correction if mode != Correction.none])
def test_the_factor_is_that_of_the_definition(mode: Correction, seed: int) -> None:
    tokens = stale_tokens(seed)
    found = correct(tokens, mode=mode, cap=CAP, floor=FLOOR)
    expected = oracle_factors(mode, tokens.logprobs_T, *given(tokens))
    assert found.weights_T is not None and not found.weights_T.requires_grad
    assert found.weights_T.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert torch.equal(found.is_masked_T, torch.tensor(expected) == 0)


def test_the_sequence_mask_leaves_out_likely_sequences_alone() -> None:
    old_T, lengths = torch.tensor([0.2, 0.2, 0.2, 0.1, -9.0]) - 10, (3, 1, 1)
    tokens = policy_tokens(old_T, rollout_logprobs_T=torch.full((5,), -10.0), lengths_S=lengths)
    found = correct(tokens, mode=Correction.sequence_mask, cap=1.5, floor=0.5)
    assert found.is_masked_T.tolist() == [True] * 3 + [False] * 2
    assert found.weights_T is not None
    assert found.weights_T.tolist() == pytest.approx([0, 0, 0, math.exp(0.1), math.exp(-9)], rel=1e-4)


def test_the_negative_mask_reads_the_current_policy_and_spares_what_was_right() -> None:
    now_T, old_T = torch.tensor([-1.0, -0.2, -1.0, -0.2]), torch.zeros(4)
    advantages_T = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    tokens = policy_tokens(
        now_T, old_logprobs_T=old_T, rollout_logprobs_T=old_T, advantages_T=advantages_T, lengths_S=(2, 2)
    )
    found = correct(tokens, mode=Correction.negative_mask, cap=CAP, floor=math.exp(-0.5))
    assert found.weights_T is not None and found.weights_T.tolist() == [0.0, 0.0, 1.0, 1.0]
    wider = correct(tokens, mode=Correction.negative_mask, cap=CAP, floor=math.exp(-0.7))
    assert wider.weights_T is not None and wider.weights_T.tolist() == [1.0] * 4
