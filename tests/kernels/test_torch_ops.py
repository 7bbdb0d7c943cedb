"""The specification against the definition of the loss, the torch implementation against the specification.

Legend: N rows, V vocabulary.
"""

import dataclasses
import importlib.util
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rocstar.kernels import reference, tokens, torch_ops
from rocstar.kernels.grpo import fused_token_loss_
from rocstar.kernels.testing import FACTORS, Case, check, full_grid, is_caught, pairwise_grid
from rocstar.kernels.tokens import LossSpec, Tokens, merge_row_stats
from rocstar.train.algorithm import loss as definition

GRID = pairwise_grid()


def test_constants_are_those_of_the_definition() -> None:
    for name in ("MAX_LOG_RATIO", "CLIP_NONE", "CLIP_LOW", "CLIP_HIGH", "CLIP_DUAL"):
        assert getattr(tokens, name) == getattr(definition, name)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("has_tis", [False, True])
def test_the_specification_is_the_definition(dual_clip: float | None, has_old: bool, has_tis: bool) -> None:
    case = Case(
        num_rows=60, vocabulary=50, temperature=0.7, dual_clip=dual_clip, has_old=has_old, has_tis=has_tis
    )
    logits_NV, given_tokens, spec = case.build()
    expected = reference.token_loss(logits_NV, given_tokens, spec)
    live_N = given_tokens.weights_N != 0
    row = {name: t[live_N].double() for name, t in given_tokens.per_row().items() if name != "ids_N"}
    x_NV = logits_NV.double().requires_grad_(True)
    result = definition.policy_loss(
        definition.token_logprobs(x_NV, given_tokens.ids_N, spec.temperature)[live_N],
        old_logprobs_T=row.get("old_logprobs_N"),
        advantages_T=row["advantages_N"],
        weights_T=row["weights_N"],
        tis_T=row.get("tis_N"),
        dual_clip=dual_clip,
    )
    torch.autograd.backward(result.loss)
    assert x_NV.grad is not None
    assert torch.allclose(expected.stats.loss_N.sum(), result.loss.detach(), rtol=1e-12)
    assert torch.allclose(expected.dlogits_NV, x_NV.grad, rtol=1e-10, atol=1e-15)
    assert torch.equal(expected.stats.clip_code_N[live_N], result.clip_code_T)
    assert torch.allclose(expected.stats.ratio_N[live_N], result.ratio_T, rtol=1e-12)
    entropy_N = definition.token_entropy(logits_NV.double(), spec.temperature)[live_N]
    assert torch.allclose(expected.stats.entropy_N[live_N], entropy_N, rtol=1e-12)
    if has_old:
        codes = set(expected.stats.clip_code_N.tolist())
        assert codes == {-1, 0, 1, 2} | ({3} if dual_clip else set()), "the case must reach every branch"


def test_every_two_levels_of_the_grid_meet() -> None:
    for a, b in itertools.combinations(FACTORS, 2):
        met = {(getattr(case, a), getattr(case, b)) for case in GRID}
        assert met == set(itertools.product(FACTORS[a], FACTORS[b])), (a, b)
    assert len(GRID) < 20 and len(list(full_grid())) == 3 * 2**10


@pytest.mark.parametrize("case", GRID, ids=range(len(GRID)))
def test_torch_matches_the_specification(case: Case) -> None:
    check(torch_ops.token_loss_, case)


@given(
    st.builds(
        Case,
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
        vocabulary=st.integers(50, 300),
        temperature=st.floats(0.2, 3.0),
        has_old=st.booleans(),
        kl_coef=st.sampled_from([0.0, 0.1]),
        has_tis=st.booleans(),
        entropy_coef=st.sampled_from([0.0, 0.01, -0.01]),
        dual_clip=st.sampled_from([None, 1.5, 3.0]),
        is_masked=st.booleans(),
        shift=st.sampled_from([0.0, 100.0]),
        num_rows=st.integers(4, 40),
        seed=st.integers(0, 2**31),
    )
)
def test_torch_matches_the_specification_anywhere(case: Case) -> None:
    tolerance = {torch.float64: 2e-5, torch.float32: 2e-5, torch.bfloat16: 3e-3}
    check(torch_ops.token_loss_, case, tolerance=tolerance)


# One error of each kind. The second text takes the place of the first.
PLANTED = {
    "temperature left out": ("shifted_BV.div_(temperature)", "pass"),
    "temperature left out of the gradient": ("= grads.dlogprobs_N / temperature", "= grads.dlogprobs_N"),
    "phantom column": ("sum_N=exp_BV.sum(-1)", "sum_N=exp_BV.sum(-1) + (-max_B).exp()"),
    "forbidden column in the entropy": ("shifted_BV.clamp_(min=FLOOR))", "shifted_BV)"),
    "masked row keeps its logits": ("logits_NV[tokens.weights_N == 0] = 0.0", "pass"),
    "masked row read": ("live_L = tokens.weights_N.nonzero()[:, 0]", "live_L = torch.arange(num_rows)"),
    "wrong row": ("tokens.select(rows_B)", "tokens.select(rows_B.flip(0))"),
    "clip has a gradient": ("(code_N == CLIP_NONE) & ", ""),
    "saturated ratio has a gradient": ("& (raw_N.abs() <= MAX_LOG_RATIO)", ""),
    "clip-high in place of clip-low": ("(1 - spec.clip_low) * a_N", "(1 + spec.clip_high) * a_N"),
    "dual clip ignored": ("code_N == CLIP_DUAL, spec.dual_clip * a_N", "code_N == CLIP_DUAL, ratio_N * a_N"),
    "TIS left out of the gradient": ("slope_N * tokens.tis_N", "slope_N"),
    "KL the other way": ("tokens.ref_logprobs_N - logprobs_N", "logprobs_N - tokens.ref_logprobs_N"),
    "KL without gradient": ("dlogprobs_N + spec.kl_coef * dkl_N", "dlogprobs_N"),
    "entropy term with the wrong sign": ("dentropy_N = -spec.entropy_coef", "dentropy_N = spec.entropy_coef"),
    "entropy without mean": ("found.entropy_N() - found.log_sum_N()", "-found.log_sum_N()"),
    "weight squared": ("= tokens.weights_N * dlogprobs_N", "= tokens.weights_N**2 * dlogprobs_N"),
    "ratio against itself": ("logprobs_N - old_N", "logprobs_N - logprobs_N"),
}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"planted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path) -> None:
    old, new = PLANTED[kind]
    text = Path(torch_ops.__file__).read_text()
    assert text.count(old) == 1, "the planted text must occur once"
    (tmp_path / "torch_ops.py").write_text(text.replace(old, new))
    wrong = load(tmp_path / "torch_ops.py")
    assert is_caught(lambda: [check(wrong.token_loss_, case) for case in GRID])


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_shards_of_the_vocabulary_give_the_whole(num_shards: int, entropy_coef: float) -> None:
    case = Case(temperature=0.7, entropy_coef=entropy_coef, has_forbidden=True, shift=-3000.0)
    logits_NV, given_tokens, spec = case.build()
    logits_NV[5, :500] = -math.inf  # its first shards have no token
    given_tokens.ids_N[5] = 900
    expected = reference.token_loss(logits_NV, given_tokens, spec)
    bounds = [case.vocabulary * k // num_shards for k in range(num_shards + 1)]
    parts = [logits_NV[:, a:b].clone() for a, b in itertools.pairwise(bounds)]
    ids_N, weights_N = given_tokens.ids_N, given_tokens.weights_N
    found = [
        torch_ops.row_stats(part, ids_N, weights_N, temperature=0.7, first_id=first)
        for part, first in zip(parts, bounds[:-1], strict=True)
    ]
    whole = merge_row_stats(found[::-1], 0.7)
    grads = torch_ops.token_grads(whole.logprobs_N(0.7), whole.entropy_N(), given_tokens, spec)
    live_N = weights_N != 0
    assert torch.allclose(
        grads.stats.logprobs_N[live_N].double(), expected.stats.logprobs_N[live_N], rtol=1e-6
    )
    assert torch.allclose(grads.stats.entropy_N[live_N].double(), expected.stats.entropy_N[live_N], rtol=1e-6)
    idle = dataclasses.replace(
        grads,
        dlogprobs_N=grads.dlogprobs_N.where(live_N, 0.0),
        dentropy_N=grads.dentropy_N.where(live_N, 0.0),
    )
    for part, first in zip(parts, bounds[:-1], strict=True):
        torch_ops.grad_(part, ids_N, whole, idle, temperature=0.7, first_id=first)
    error = (torch.cat(parts, 1).double() - expected.dlogits_NV).norm() / expected.dlogits_NV.norm()
    assert error < 1e-5


def one_row(x: list[float], **more: Tensor) -> tuple[Tensor, Tokens]:
    values = {"weights_N": torch.ones(1), "advantages_N": torch.ones(1), **more}
    return torch.tensor([x]), Tokens(ids_N=torch.zeros(1, dtype=torch.long), **values)


@pytest.mark.parametrize(
    "row",
    [
        [-math.inf, 1.0, 2.0],
        [math.nan, 1.0, 2.0],
        [0.0, math.nan, 1.0],
        [0.0, math.inf, 1.0],
        [-math.inf] * 3,
    ],
)
@pytest.mark.parametrize("old", [{}, {"old_logprobs_N": torch.tensor([-1.0])}])
def test_a_broken_row_cannot_pass_for_a_number(row: list[float], old: dict[str, Tensor]) -> None:
    logits_NV, given_tokens = one_row(row, **old)
    stats = fused_token_loss_(logits_NV, given_tokens, LossSpec())
    assert not stats.logprobs_N.isfinite().any()
    assert stats.loss_N.isnan().all() and logits_NV.isnan().any()


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (0.2, 0.28)])
def test_a_ratio_of_one_is_not_clipped(low: float, high: float) -> None:
    logits_NV, given_tokens, _ = Case(num_rows=40).build()
    spec = LossSpec(clip_low=low, clip_high=high)
    first = fused_token_loss_(logits_NV.clone(), dataclasses.replace(given_tokens, old_logprobs_N=None), spec)
    again = dataclasses.replace(given_tokens, old_logprobs_N=first.logprobs_N)
    stats = fused_token_loss_(logits_NV, again, spec)
    live_N = given_tokens.weights_N != 0
    assert (stats.ratio_N[live_N] == 1).all() and (stats.clip_code_N[live_N] == 0).all()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ids_N": torch.tensor([3])}, "do not fit the head's vocabulary of 3"),
        ({"ids_N": torch.tensor([-1])}, "do not fit the head's vocabulary of 3"),
        ({"ids_N": torch.tensor([0.0])}, "ids_N must be torch.int64"),
        ({"advantages_N": torch.tensor([math.nan])}, "NaN or infinity in advantages_N"),
        ({"weights_N": torch.tensor([math.inf])}, "NaN or infinity in weights_N"),
        ({"tis_N": torch.ones(2)}, "one value per row"),
        ({"advantages_N": torch.ones(1, dtype=torch.bfloat16)}, "advantages_N must be torch.float32"),
    ],
)
def test_bad_tokens_are_named(change: dict[str, Tensor], complaint: str) -> None:
    logits_NV, given_tokens = one_row([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=complaint):
        fused_token_loss_(logits_NV, dataclasses.replace(given_tokens, **change), LossSpec())


def test_a_masked_row_may_hold_anything() -> None:
    logits_NV, given_tokens = one_row(
        [0.0, 1.0, 2.0], weights_N=torch.zeros(1), advantages_N=torch.tensor([math.nan])
    )
    stats = fused_token_loss_(
        logits_NV, dataclasses.replace(given_tokens, ids_N=torch.tensor([-100])), LossSpec()
    )
    assert stats.loss_N.item() == 0 and not logits_NV.any()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": 0.0},
        {"temperature": math.inf},
        {"clip_low": 1.0},
        {"clip_high": -0.1},
        {"dual_clip": 1.0},
        {"dual_clip": 0.0},
        {"kl_coef": -1.0},
        {"entropy_coef": math.nan},
    ],
)
def test_constants_that_make_no_objective(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        LossSpec(**bad)


def test_kl_needs_a_reference() -> None:
    logits_NV, given_tokens = one_row([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="needs ref_logprobs_N"):
        fused_token_loss_(logits_NV, given_tokens, LossSpec(kl_coef=0.1))
