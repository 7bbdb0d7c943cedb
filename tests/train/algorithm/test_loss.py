"""The clipped loss against its formula, its gradient, and its edges.

Legend: `_T` tokens, `_V` vocabulary.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.train.algorithm.aggregate import token_weights
from rocstar.train.algorithm.loss import (
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_NONE,
    MAX_LOG_RATIO,
    imitation_loss,
    logprobs_and_entropy,
    policy_loss,
    ratios,
    stopped,
)
from rocstar.train.algorithm.losses.clip import Clip

from ...fakes.tiny import CLIP, policy_tokens


def random_tokens(num_tokens: int = 40, seed: int = 0) -> dict[str, Any]:
    """Tokens in float64 with ratios on both sides of both bounds, and weights that are not constant."""
    generator = torch.Generator().manual_seed(seed)

    def normal_T() -> Tensor:
        return torch.randn(num_tokens, generator=generator, dtype=torch.float64)

    old_T = -normal_T().abs()
    return {
        "logprobs_T": old_T + 0.5 * normal_T(),
        "old_logprobs_T": old_T,
        "advantages_T": normal_T(),
        "weights_T": normal_T().abs() / num_tokens,
        "tis_T": normal_T().abs(),
    }


def clip_loss(
    logprobs_T: Tensor,
    *,
    weights_T: Tensor,
    tis_T: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    **given: Any,
) -> Tensor:
    loss, tokens = Clip(clip_low=clip_low, clip_high=clip_high), policy_tokens(logprobs_T, **given)
    return policy_loss(loss, tokens, weights_T=weights_T, factors_T=tis_T)


def equation_6(tokens: dict[str, Any], low: float, high: float) -> Tensor:
    """Eq. 6 as it is printed, with min and clip, one token at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for logprob, old, advantage, weight, tis in zip(*tokens.values(), strict=True):
        ratio = torch.exp(logprob - old)
        term = torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        total = total - weight * tis * term
    return total


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (0.0, 0.0), (0.1, 3.0)])
def test_loss_and_gradient_are_those_of_equation_6(low: float, high: float) -> None:
    tokens = random_tokens()
    ours_T, theirs_T = (tokens["logprobs_T"].clone().requires_grad_() for _ in range(2))
    ours = clip_loss(**(tokens | {"logprobs_T": ours_T}), clip_low=low, clip_high=high).sum()
    theirs = equation_6(tokens | {"logprobs_T": theirs_T}, low, high)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.autograd.backward([ours, theirs])
    torch.testing.assert_close(ours_T.grad, theirs_T.grad, rtol=1e-12, atol=1e-14)
    given = {name: tokens[name] for name in ("old_logprobs_T", "advantages_T")}
    code_T = stopped(Clip(clip_low=low, clip_high=high), policy_tokens(ours_T, **given))
    assert ours_T.grad is not None and code_T.any()
    assert torch.equal(ours_T.grad == 0, code_T != CLIP_NONE)


def test_gradient_agrees_with_finite_differences() -> None:
    tokens = random_tokens()
    logprobs_T = tokens.pop("logprobs_T").requires_grad_()
    assert torch.autograd.gradcheck(lambda x_T: clip_loss(x_T, **tokens), (logprobs_T,), eps=1e-7, atol=1e-6)


def test_only_the_current_logprobs_and_constants_get_gradient() -> None:
    tokens = {name: value.requires_grad_() for name, value in random_tokens().items()}
    torch.autograd.backward(clip_loss(**tokens).sum())
    assert tokens["logprobs_T"].grad is not None
    assert tokens["old_logprobs_T"].grad is None
    assert tokens["tis_T"].grad is None


def one_token(log_ratio: float, advantage: float, *, low: float = 0.2, high: float = 0.28) -> int:
    """The clip code of a single float64 token whose old log-prob is 0."""
    now_T, old_T, advantages_T = (torch.tensor([x], dtype=torch.float64) for x in (log_ratio, 0.0, advantage))
    tokens = policy_tokens(now_T, old_logprobs_T=old_T, advantages_T=advantages_T)
    return int(stopped(Clip(clip_low=low, clip_high=high), tokens))


def test_a_ratio_exactly_on_a_bound_is_not_clipped_and_one_ulp_beyond_is() -> None:
    above = float(torch.tensor(0.2, dtype=torch.float64).exp())  # 1 + (above - 1) == above exactly
    below = float(torch.tensor(-0.2, dtype=torch.float64).exp())
    high, low = above - 1, 1 - below
    assert one_token(0.2, 1.0, high=high) == CLIP_NONE
    assert one_token(0.2, 1.0, high=high - 2.0**-52) == CLIP_HIGH
    assert one_token(-0.2, -1.0, low=low) == CLIP_NONE
    assert one_token(-0.2, -1.0, low=low - 2.0**-53) == CLIP_LOW


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "code"),
    [
        (1.0, 1.0, CLIP_HIGH),
        (1.0, -1.0, CLIP_NONE),  # made likelier although bad: the gradient must undo it
        (2.0, -1.0, CLIP_NONE),
        (-1.0, 1.0, CLIP_NONE),
        (-1.0, -1.0, CLIP_LOW),
        (1.0, 0.0, CLIP_NONE),
        (-1.0, 0.0, CLIP_NONE),
        (0.0, 1.0, CLIP_NONE),
    ],
)
def test_the_sign_of_the_advantage_decides_which_bound_acts(log_ratio: float, advantage: float, code: int) -> None:
    assert one_token(log_ratio, advantage) == code


def test_without_old_logprobs_the_ratio_is_exactly_1_and_gradient_flows() -> None:
    given = random_tokens()
    logprobs_T = given["logprobs_T"].float().requires_grad_()
    advantages_T, weights_T = given["advantages_T"].float(), given["weights_T"].float()
    tokens = policy_tokens(logprobs_T, advantages_T=advantages_T)
    assert torch.equal(ratios(logprobs_T, tokens.old_logprobs_T), torch.ones(40))
    assert not stopped(Clip(clip_low=0.0, clip_high=0.0), tokens).any()
    loss_T = policy_loss(CLIP, tokens, weights_T=weights_T)
    assert torch.equal(loss_T, -weights_T * advantages_T)
    torch.autograd.backward(loss_T.sum())
    torch.testing.assert_close(logprobs_T.grad, -weights_T * advantages_T)


def test_four_microbatches_equal_one() -> None:
    lengths = [3, 17, 1, 19]
    tokens = random_tokens(sum(lengths))
    weights = torch.tensor(token_weights(lengths), dtype=torch.float64)
    tokens["weights_T"] = weights.repeat_interleave(torch.tensor(lengths))
    whole_T, parts_T = (tokens["logprobs_T"].clone().requires_grad_() for _ in range(2))
    whole = clip_loss(**(tokens | {"logprobs_T": whole_T})).sum()
    torch.autograd.backward(whole)
    pieces = {name: value.split(lengths) for name, value in (tokens | {"logprobs_T": parts_T}).items()}
    total = 0.0
    for i in range(4):
        part = clip_loss(**{name: piece[i] for name, piece in pieces.items()}).sum()
        torch.autograd.backward(part)
        total += part.item()
    assert total == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(parts_T.grad, whole_T.grad, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("with_old", [True, False])
def test_zero_tokens_give_loss_0_that_reaches_the_parameters(with_old: bool) -> None:
    parameter_V = torch.ones(5, requires_grad=True)
    logits_TV = parameter_V.expand(7, 5)[:0]
    logprobs_T, _ = logprobs_and_entropy(logits_TV, torch.zeros(0, dtype=torch.int64), 1.0)
    empty_T = torch.zeros(0)
    loss = clip_loss(
        logprobs_T,
        old_logprobs_T=empty_T if with_old else None,
        advantages_T=empty_T,
        weights_T=empty_T,
        tis_T=empty_T,
    ).sum()
    assert loss.item() == 0.0
    torch.autograd.backward(loss)
    assert parameter_V.grad is not None
    assert torch.equal(parameter_V.grad, torch.zeros(5))


def test_a_token_of_weight_0_adds_nothing() -> None:
    tokens = random_tokens()
    masked = torch.arange(40) % 3 == 0
    tokens["weights_T"][masked] = 0.0
    logprobs_T = tokens["logprobs_T"].clone().requires_grad_()
    with_masked = clip_loss(**(tokens | {"logprobs_T": logprobs_T})).sum()
    torch.autograd.backward(with_masked)
    without = clip_loss(**{name: value[~masked] for name, value in tokens.items()}).sum()
    torch.testing.assert_close(with_masked, without, rtol=1e-12, atol=0.0)
    assert logprobs_T.grad is not None
    assert not logprobs_T.grad[masked].any()
    assert logprobs_T.grad[~masked].any()


def test_tis_multiplies_the_term_of_its_token() -> None:
    tokens = random_tokens()
    tis_T = tokens.pop("tis_T")
    scaled = clip_loss(**(tokens | {"weights_T": tokens["weights_T"] * tis_T}))
    torch.testing.assert_close(clip_loss(**tokens, tis_T=tis_T), scaled, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_extreme_ratio_leaves_loss_and_gradient_finite(log_ratio: float, advantage: float) -> None:
    logprobs_T, zero_T = torch.tensor([log_ratio], requires_grad=True), torch.zeros(1)
    advantages_T = torch.tensor([advantage])
    ratio_T = ratios(logprobs_T, zero_T)
    loss_T = clip_loss(logprobs_T, old_logprobs_T=zero_T, advantages_T=advantages_T, weights_T=torch.ones(1))
    torch.autograd.backward(loss_T.sum())
    expected = math.exp(math.copysign(MAX_LOG_RATIO, log_ratio))
    assert ratio_T.item() == pytest.approx(expected, rel=1e-5)
    assert logprobs_T.grad is not None
    assert loss_T.isfinite().all()
    assert logprobs_T.grad.item() == 0.0


def test_tensors_that_would_broadcast_are_rejected() -> None:
    tokens = random_tokens()
    with pytest.raises(ValueError, match="one length"):
        clip_loss(**(tokens | {"advantages_T": tokens["advantages_T"][:1]}))
    with pytest.raises(ValueError, match="1-D"):
        clip_loss(**{name: value.unsqueeze(0) for name, value in tokens.items()})


def test_half_precision_is_rejected() -> None:
    tokens = random_tokens()
    with pytest.raises(ValueError, match="got logprobs_T in torch"):
        clip_loss(**(tokens | {"logprobs_T": tokens["logprobs_T"].bfloat16()}))


def test_imitation_is_weighted_cross_entropy() -> None:
    logits_TV = torch.randn(6, 11, generator=torch.Generator().manual_seed(1), requires_grad=True)
    ids_T, weights_T = torch.arange(6), torch.arange(6) / 10
    loss_T = imitation_loss(logprobs_and_entropy(logits_TV, ids_T, 1.0)[0], weights_T=weights_T)
    expected_T = weights_T * torch.nn.functional.cross_entropy(logits_TV, ids_T, reduction="none")
    torch.testing.assert_close(loss_T, expected_T)
    (ours_TV,), (theirs_TV,) = (torch.autograd.grad(x.sum(), logits_TV) for x in (loss_T, expected_T))
    torch.testing.assert_close(ours_TV, theirs_TV)
    with pytest.raises(ValueError, match="one length"):
        imitation_loss(loss_T, weights_T=weights_T[:1])


# --- Log-probs and entropy -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropy_follow_their_definitions(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_TV = 3 * torch.randn(6, 11, generator=generator)
    ids_T = torch.randint(11, (6,), generator=generator)
    probabilities_TV = torch.softmax(logits_TV.double() / temperature, dim=-1)
    logprobs_T = probabilities_TV.log()[torch.arange(6), ids_T].float()
    entropy_T = -(probabilities_TV * probabilities_TV.log()).sum(-1).float()

    found_T, entropy_found_T = logprobs_and_entropy(logits_TV, ids_T, temperature)
    torch.testing.assert_close(found_T, logprobs_T)
    torch.testing.assert_close(entropy_found_T, entropy_T)


def test_gradient_flows_to_logprobs_and_not_to_entropy() -> None:
    logits_TV = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    ids_T = torch.tensor([0, 8, 3, 3])
    logprobs_T, entropy_T = logprobs_and_entropy(logits_TV, ids_T, 0.7)
    assert logprobs_T.requires_grad
    assert not entropy_T.requires_grad
    assert torch.autograd.gradcheck(lambda x_TV: logprobs_and_entropy(x_TV, ids_T, 0.7)[0], (logits_TV,))


def test_bfloat16_logits_are_widened_before_the_softmax() -> None:
    logits_TV = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids_T = torch.tensor([1, 2, 3])
    logprobs_T, _ = logprobs_and_entropy(logits_TV, ids_T, 0.9)
    assert logprobs_T.dtype == torch.float32
    assert torch.equal(logprobs_T, logprobs_and_entropy(logits_TV.float(), ids_T, 0.9)[0])


def test_a_forbidden_token_adds_no_entropy() -> None:
    _, entropy_T = logprobs_and_entropy(torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([0]), 1.0)
    torch.testing.assert_close(entropy_T, torch.tensor([math.log(2.0)]))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_rejected(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        logprobs_and_entropy(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), temperature)
