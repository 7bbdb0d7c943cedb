"""The torch implementation against the definition of the loss, which is also the loss that it calls.

Legend: N rows, V vocabulary.
"""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rocstar.kernels import torch_ops
from rocstar.kernels.row_loss import loss_and_slope

from .planted import load_planted

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu.cases import Case, check, grid, is_caught

GRID = list(grid())


@pytest.mark.parametrize("case", GRID, ids=range(len(GRID)))
def test_torch_matches_the_definition(case: Case) -> None:
    check(torch_ops.row_loss_, case)


def test_the_cases_reach_every_branch_of_the_loss() -> None:
    _, rows = Case(num_rows=60).build()
    assert rows.old_logprobs_N is not None
    moved = rows.old_logprobs_N + 0.3
    slopes = [loss_and_slope(rows.loss_of, x, slice(None), grad=True)[1] for x in (moved, moved - 0.6)]
    assert all(0 < int((slope == 0).sum()) < 60 for slope in slopes), "clipped above, clipped below, free"


@given(
    st.builds(
        Case,
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
        vocabulary=st.integers(50, 300),
        temperature=st.floats(0.2, 3.0),
        has_old=st.booleans(),
        shift=st.sampled_from([0.0, 100.0]),
        num_rows=st.integers(4, 40),
        seed=st.integers(0, 2**31),
    )
)
def test_torch_matches_the_definition_anywhere(case: Case) -> None:
    # One rounding to bfloat16 may cost 2**-8, and one row may have all of the gradient.
    tolerance = {torch.float64: 2e-5, torch.float32: 2e-5, torch.bfloat16: 4e-3}
    check(torch_ops.row_loss_, case, tolerance=tolerance)


def test_several_blocks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ops, "BLOCK_BYTES", 4 * 1000 * 5)
    check(torch_ops.row_loss_, Case(num_rows=23))


# One error of each kind. The second text takes the place of the first.
PLANTED = {
    "temperature left out": ("shifted_BV.div_(temperature)", "pass"),
    "temperature left out of the gradient": ("(temperature * sum_B)", "sum_B"),
    "phantom column": ("sum_B = exp_BV.sum(-1)", "sum_B = exp_BV.sum(-1) + (-max_B1[:, 0]).exp()"),
    "forbidden column in the entropy": ("shifted_BV.clamp_(min=FLOOR))", "shifted_BV)"),
    "entropy without mean": ("- _weighted_sum(exp_BV, shifted_BV) / sum_B", ""),
    "token left out of the gradient": ("exp_BV.scatter_add_(1, ids_B1, -at_token_B[:, None])", "pass"),
    "wrong token": ("ids_N[rows, None]", "ids_N[rows, None] - 1"),
    "wrong row": ("slice(first_row + rows.start, first_row + rows.stop)", "slice(num_rows - len(x_BV), num_rows)"),
    "gradient upside down": ("-slope_B / (", "slope_B / ("),
    "entropy without value": ("found.loss_N[rows] += weights_B * entropy_B", "pass"),
    "entropy without gradient": ("exp_BV.mul_(shifted_BV)", "exp_BV.mul_(slope_B[:, None])"),
    "entropy of unnormalised probabilities": ("(entropy_B - sum_B.log())", "entropy_B"),
    "entropy of another row": ("entropy_weights_N[named]", "entropy_weights_N[: len(x_BV)]"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = load_planted(torch_ops, PLANTED, kind, tmp_path)
    monkeypatch.setattr(wrong, "BLOCK_BYTES", 4 * 1000 * 4)  # four rows: an error between blocks shows
    assert is_caught(lambda: [check(wrong.row_loss_, case) for case in GRID])


BROKEN = [[-math.inf, 1.0, 2.0], [math.nan, 1.0, 2.0], [0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3]


@pytest.mark.parametrize("row", BROKEN)
@pytest.mark.parametrize("loss", [lambda x: -x, lambda x: x.clamp(-20, 20).nan_to_num().exp()])
def test_a_broken_row_cannot_pass_for_a_number(row: list[float], loss: Any) -> None:
    """Whatever the loss makes of it; the row beside it keeps its numbers."""
    logits_NV = torch.tensor([row, [0.0, 1.0, 2.0]])
    found = torch_ops.row_loss_(
        logits_NV, torch.zeros(2, dtype=torch.long), lambda x, _: loss(x), temperature=1.0, grad=True
    )
    assert not found.logprobs_N[0].isfinite()
    assert found.loss_N[0].isnan() and logits_NV[0].isnan().any()
    assert found.loss_N[1].isfinite() and logits_NV[1].isfinite().all()


def test_no_rows() -> None:
    def never(logprobs_B: Tensor, rows: slice) -> Tensor:
        raise AssertionError

    ids_N = torch.zeros(0, dtype=torch.long)
    assert len(torch_ops.row_loss_(torch.zeros(0, 5), ids_N, never, temperature=1.0, grad=True).loss_N) == 0


def test_a_loss_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must return shape \(3,\), got \(\)"):
        loss_and_slope(lambda x, _: x.sum(), torch.zeros(3), slice(0, 3), grad=True)
