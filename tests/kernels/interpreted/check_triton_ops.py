"""The Triton kernels, interpreted on CPU tensors, against the definition of the loss in float64.

Run by test_interpreter.py in a process of its own: TRITON_INTERPRET=1 must be set before triton is imported.
The interpreter runs one program after the other and ignores barriers: it cannot show a race.

Legend: N rows, V vocabulary.
"""

import functools
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.kernels import torch_ops, triton_ops, triton_registered
from rocstar.kernels.configs import LaunchConfig
from rocstar.kernels.linear_loss import linear_logprobs, linear_loss, ops_for
from rocstar.kernels.row_loss import RowLoss, of_all_rows
from rocstar.train.algorithm.losses import LOSSES

from ...needs import is_set
from ...train.algorithm.loss_oracle import made, oracle_loss
from ..planted import load_planted

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu.cases import TRUNCATING_GRADIENT_TOLERANCE, Case, check, grid, is_caught

# The interpreter takes rows one by one, and four of a case are special.
GRID = [replace(case, num_rows=6) for case in grid(half=not is_set("ROCSTAR_FULL_GRID"))]
BLOCKS = (1024, 2048)  # 130 columns: one incomplete block; 4097: whole ones and one column more
check_interpreted = functools.partial(check, tolerance=TRUNCATING_GRADIENT_TOLERANCE)


def with_block(module: Any, block: int) -> Any:
    return functools.partial(module.row_loss_, config=LaunchConfig(block=block, num_warps=1))


def test_this_is_the_interpreter() -> None:
    assert triton_ops.INTERPRETED and ops_for(torch.device("cpu"), "triton") is triton_registered


@pytest.mark.parametrize("index", range(len(GRID)))
def test_kernel_matches_the_definition(index: int) -> None:
    case = GRID[index]
    check_interpreted(with_block(triton_ops, BLOCKS[case.has_old]), case)  # which the kernels do not see


@pytest.mark.parametrize("vocabulary", [10, 16, 255, 256, 257, 50257])
def test_any_vocabulary_size(vocabulary: int) -> None:
    case = Case(vocabulary=vocabulary, num_rows=4, temperature=0.7)
    check_interpreted(with_block(triton_ops, 256 if vocabulary < 1000 else 8192), case)


@pytest.mark.parametrize("name", LOSSES)
def test_every_policy_loss_goes_through_the_kernel(name: str) -> None:
    """Chunks cut the sequence; a loss that reads it whole has the log-probs of a pass before."""
    logits_NV, rows = Case(vocabulary=130, num_rows=6).build()
    hidden_ND, weight_VD, exact_NV = logits_NV.requires_grad_(), torch.eye(130), logits_NV.detach().double()
    exact_N = torch.log_softmax(exact_NV.requires_grad_(), -1).gather(-1, rows.ids_N[:, None])[:, 0]
    old_N = exact_N.detach().float() + torch.tensor([0.4, -0.3, 0.2, 0.1, -0.5, 0.3])
    rows = replace(rows, loss=made(name), old_logprobs_N=old_N)
    loss_N = rows.weights_N.double() * oracle_loss(name, exact_N, old_N, old_N, rows.advantages_N, [6])
    named: dict[str, Any] = {"backend": "triton", "chunk_rows": 4}
    loss_of = of_all_rows(rows.loss_of, linear_logprobs(hidden_ND, weight_VD, rows.ids_N, **named))
    for of in (loss_of,) if rows.loss.reads_sequences else (loss_of, rows.loss_of):
        loss, _ = linear_loss(hidden_ND, weight_VD, rows.ids_N, of, **named)
        (wanted_NV,) = torch.autograd.grad(loss_N.sum(), exact_NV, retain_graph=True)
        (found_NV,) = torch.autograd.grad(loss, hidden_ND)
        assert wanted_NV.abs().max() > 1e-3
        torch.testing.assert_close(found_NV.double(), wanted_NV, rtol=1e-5, atol=1e-6)


def test_half_precision() -> None:
    check_interpreted(with_block(triton_ops, 256), Case(dtype=torch.float16))


# One error of each kind. The second text takes the place of the first.
PLANTED = {
    "temperature left out of the sums": ("z = (x - new[:, None]) * inv_t", "z = x - new[:, None]"),
    "temperature left out of the gradient": ("tl.load(slope_ptr + row) * inv_t", "tl.load(slope_ptr + row)"),
    "phantom columns": ('mask=whole + columns < V, other=-float("inf")', "mask=whole + columns < V, other=0.0"),
    "incomplete block left out": ("if whole < V:\n        rest", "if False:\n        rest"),
    "incomplete block without gradient": ("if whole < V:\n        c =", "if False:\n        c ="),
    "forbidden column in the sums": ("e * tl.maximum(z, _FLOOR)", "e * z"),
    "groups not rescaled": ("tl.sum(s * scale, 0)", "tl.sum(s, 0)"),
    "sum not rescaled": ("s = s * scale + tl.sum(e, 1)", "s = s + tl.sum(e, 1)"),
    "weighted sum not moved": ("(w + s * moved) * scale + tl.sum(e", "w * scale + tl.sum(e"),
    "weighted sum of groups not moved": ("tl.sum((w + s * moved) * scale, 0)", "tl.sum(w * scale, 0)"),
    "maximum of the block alone": ("new = tl.maximum(m, tl.max(x, 1))", "new = tl.max(x, 1)"),
    "power of e for a power of two": ("inv_t * _LOG2_E, BLOCK)", "inv_t, BLOCK)"),
    "wrong row": ("tl.load(slope_ptr + row)", "tl.load(slope_ptr)"),
    "wrong token": ("tl.load(x_ptr + tl.load(ids_ptr + row))", "tl.load(x_ptr + tl.load(ids_ptr))"),
    "wrong token in the gradient": (
        "t = tl.load(ids_ptr + row).to(tl.int32)",
        "t = tl.load(ids_ptr + row).to(tl.int32) - 1",
    ),
    "entropy without gradient": ("pull += weight * tl.maximum(log2_p, _FLOOR)", "pass"),
    "entropy of a forbidden column": ("tl.maximum(log2_p, _FLOOR)", "log2_p"),
    "entropy in units of ln 2": ("tl.load(weight_ptr + row) * inv_t * _LN_2", "tl.load(weight_ptr + row) * inv_t"),
    "entropy of another row": ("tl.load(pull_ptr + row)", "tl.load(pull_ptr)"),
    "log-sum-exp over entropy": ("log_s - W * _LN_2 / S", "log_s + W * _LN_2 / S"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path) -> None:
    wrong = load_planted(triton_ops, PLANTED, kind, tmp_path)
    assert is_caught(lambda: [check_interpreted(with_block(wrong, 256), case) for case in GRID])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "row", [[-math.inf, 1.0, 2.0], [math.nan, 1.0, 2.0], [0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3]
)
def test_a_broken_row_cannot_pass_for_a_number(row: list[float]) -> None:
    logits_NV = torch.tensor([row, [0.0, 1.0, 2.0]])
    found = triton_ops.row_loss_(
        logits_NV,
        torch.zeros(2, dtype=torch.long),
        lambda x, _: x.clamp(-20, 20).nan_to_num(),
        temperature=1.0,
        grad=True,
    )
    assert not found.logprobs_N[0].isfinite()
    assert found.loss_N[0].isnan() and logits_NV[0].isnan().any()
    assert found.loss_N[1].isfinite() and logits_NV[1].isfinite().all()


def some_loss(logprobs_C: torch.Tensor, rows: slice) -> torch.Tensor:
    """A loss that depends on log-prob and row."""
    return (logprobs_C + 4.0 + 0.1 * torch.arange(30)[rows]).exp().clamp(max=2.0)


@pytest.mark.parametrize(
    ("dtype", "head_dtype", "tolerance"), [(torch.float32, None, 1e-5), (torch.float16, torch.float32, 2e-3)]
)
def test_linear_loss_is_the_same_with_either_backend(
    dtype: torch.dtype, head_dtype: torch.dtype | None, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_ND, weight_VD = (
        torch.randn(num, 16, generator=generator).to(dtype).requires_grad_(True) for num in (30, 130)
    )
    ids_N = torch.randint(0, 130, (30,), generator=generator)
    results = [
        linear_loss(hidden_ND, weight_VD, ids_N, some_loss, head_dtype=head_dtype, backend=backend, chunk_rows=7)
        for backend in ("triton", "torch")
    ]
    grads = [torch.autograd.grad(loss, (hidden_ND, weight_VD)) for loss, _ in results]
    for name in RowLoss.__slots__:
        a_N, b_N = (getattr(rows, name) for _, rows in results)
        assert torch.allclose(a_N, b_N, rtol=1e-5, atol=1e-6), name
    for a, b in zip(*grads, strict=True):
        assert (a - b).norm() < tolerance * b.norm()


def test_a_gradient_of_another_type_leaves_the_logits() -> None:
    """What a float32 head of a half-precision model needs; the rows of both have strides of their own."""
    generator = torch.Generator().manual_seed(0)
    logits_NV = torch.randn(5, 320, generator=generator)[:, :300]
    before_NV, ids_N = logits_NV.clone(), torch.tensor([0, 1, 2, 298, 299])
    written_NV = torch.full((5, 400), 7.0, dtype=torch.float16)
    given = {"temperature": 0.7, "grad": True, "grad_output": 2.0, "first_row": 0}
    found = triton_ops.row_loss_(logits_NV, ids_N, some_loss, dlogits_NV=written_NV[:, :300], **given)
    assert torch.equal(logits_NV, before_NV) and bool((written_NV[:, 300:] == 7).all())
    expected = torch_ops.row_loss_(before_NV, ids_N, some_loss, **given)
    torch.testing.assert_close(found.loss_N, expected.loss_N)
    torch.testing.assert_close(written_NV[:, :300].float(), before_NV, rtol=1e-3, atol=1e-4)


def test_no_rows() -> None:
    ids_N = torch.zeros(0, dtype=torch.long)
    found = triton_ops.row_loss_(torch.zeros(0, 5), ids_N, some_loss, temperature=1.0, grad=True)
    assert len(found.loss_N) == 0


def test_columns_that_are_not_adjacent_are_refused() -> None:
    ids_N = torch.zeros(5, dtype=torch.long)
    with pytest.raises(ValueError, match="must be adjacent"):
        triton_ops.row_loss_(torch.zeros(9, 5).T, ids_N, some_loss, temperature=1.0, grad=True)
