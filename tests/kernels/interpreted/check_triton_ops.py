"""The Triton kernels, interpreted on CPU tensors, against the float64 specification.

Run by test_interpreter.py in a process of its own: TRITON_INTERPRET=1 must be set before triton is imported.
The interpreter runs one program after the other and ignores barriers: it cannot show a race.

Legend: N rows, V vocabulary.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.kernels import reference, torch_ops, triton_ops
from rocstar.kernels.configs import LaunchConfig
from rocstar.kernels.grpo import fused_linear_grpo, fused_token_loss_, ops_for
from rocstar.kernels.testing import (
    TRUNCATING_GRADIENT_TOLERANCE,
    Case,
    check,
    full_grid,
    is_caught,
    pairwise_grid,
)
from rocstar.kernels.tokens import LossSpec, Tokens, TokenStats, merge_row_stats

from ...needs import is_set, time_for

GRID = pairwise_grid()
BLOCKS = (256, 1024)  # 130 columns: one incomplete block; 4097: whole ones and one column more
check_interpreted = functools.partial(check, tolerance=TRUNCATING_GRADIENT_TOLERANCE)


def with_block(module: Any, block: int) -> Any:
    return functools.partial(module.token_loss_, config=LaunchConfig(block=block, num_warps=1))


def test_this_is_the_interpreter() -> None:
    assert triton_ops.INTERPRETED and ops_for(torch.device("cpu"), "triton") is triton_ops


@pytest.mark.parametrize("index", range(len(GRID)))
def test_kernel_matches_the_specification(index: int) -> None:
    check_interpreted(with_block(triton_ops, BLOCKS[index % 2]), GRID[index])


@pytest.mark.parametrize("vocabulary", [10, 16, 255, 256, 257, 50257])
def test_any_vocabulary_size(vocabulary: int) -> None:
    case = Case(vocabulary=vocabulary, num_rows=4, is_masked=False, entropy_coef=0.01, temperature=0.7)
    check_interpreted(with_block(triton_ops, 256 if vocabulary < 1000 else 8192), case)


def test_half_precision() -> None:
    check_interpreted(with_block(triton_ops, 256), Case(dtype=torch.float16, entropy_coef=0.01))


@time_for("ROCSTAR_FULL_GRID").unless(is_set("ROCSTAR_FULL_GRID"))
@pytest.mark.slow
def test_the_full_grid() -> None:
    for case in full_grid():
        check_interpreted(with_block(triton_ops, 4096), case)


# One error of each kind. The second text takes the place of the first.
PLANTED = {
    "temperature left out of the sums": ("d = tl.exp(-tl.abs(delta) * inv_t)", "d = tl.exp(-tl.abs(delta))"),
    "temperature left out of the gradient": ("return d * inv_t", "return d"),
    "phantom columns": (
        'mask=whole + columns < V, other=-float("inf")',
        "mask=whole + columns < V, other=0.0",
    ),
    "incomplete block left out": ("if whole < V:\n        rest", "if False:\n        rest"),
    "incomplete block without gradient": ("if whole < V:\n        c =", "if False:\n        c ="),
    "incomplete block not zeroed": (
        "if whole < V:\n        tl.store(x_ptr + whole + columns, zeros",
        "if False:\n        tl.store(x_ptr + whole + columns, zeros",
    ),
    "forbidden column in the sums": ("tl.where(x < _FLOOR, _FLOOR, x)", "tl.where(x < _FLOOR, 0.0, x)"),
    "lanes not rescaled": ("S = tl.sum(s * scale, 0)", "S = tl.sum(s, 0)"),
    "weighted sum not rescaled": ("(w - s * delta) * d", "w * d"),
    "masked row keeps its logits": (
        "        if GRAD:\n            _write_zeros(x_ptr, V, BLOCK)\n        return",
        "        return",
    ),
    "masked row read": ("if weight == 0.0:", "if weight == -1.0:"),
    "wrong row": ("tl.load(advantages_ptr + row)", "tl.load(advantages_ptr)"),
    "wrong token": ("t = tl.load(ids_ptr + row)\n", "t = tl.load(ids_ptr + row) - 1\n"),
    "clip has a gradient": ("(code == 0) & ", ""),
    "saturated ratio has a gradient": (" & (tl.abs(raw) <= _MAX_LOG_RATIO)", ""),
    "clip without the sign of the advantage": ("is_high = (adv > 0.0) & ", "is_high = "),
    "clip at advantage 0": ("is_low = (adv < 0.0)", "is_low = (adv <= 0.0)"),
    "dual clip ignored": ("is_dual = (adv < 0.0)", "is_dual = (adv < -1e9)"),
    "TIS left out of the gradient": ("-ratio * adv * tis", "-ratio * adv"),
    "TIS in the loss left out": ("-factor * adv * tis", "-factor * adv"),
    "KL the other way": ("away = ref - logp", "away = logp - ref"),
    "KL without gradient": ("slope += ", "slope = slope + 0.0 * "),
    "entropy term with the wrong sign": (
        "slope * weight, -entropy_coef * weight",
        "slope * weight, entropy_coef * weight",
    ),
    "entropy without mean": ("p * (log_p + entropy)", "p * log_p"),
    "weight left out of the gradient": ("slope * weight, -entropy", "slope, -entropy"),
    "ratio of the wrong sign": ("raw = logp - tl.load(old_ptr + row)", "raw = tl.load(old_ptr + row) - logp"),
    "log-sum-exp over entropy": ("entropy = log_s - W / S", "entropy = log_s + W / S"),
}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"planted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path) -> None:
    old, new = PLANTED[kind]
    text = Path(triton_ops.__file__).read_text()
    assert text.count(old) == 1, "the planted text must occur once"
    # One name per kind: triton reads the text of a function back through the file's name.
    path = tmp_path / f"triton_ops_{list(PLANTED).index(kind)}.py"
    path.write_text(text.replace(old, new))
    wrong = load(path)
    assert is_caught(lambda: [check_interpreted(with_block(wrong, 256), case) for case in small_first(GRID)])


def small_first(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: case.vocabulary)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_shards_of_the_vocabulary_give_the_whole(entropy_coef: float) -> None:
    case = Case(temperature=0.7, entropy_coef=entropy_coef, has_forbidden=True, shift=-3000.0)
    logits_NV, tokens, spec = case.build()
    logits_NV[5, :500] = -math.inf  # its first shards have no token
    tokens.ids_N[5] = 900
    expected = reference.token_loss(logits_NV, tokens, spec)
    bounds = [0, 200, 450, 1000]
    parts = [logits_NV[:, a:b].clone() for a, b in itertools.pairwise(bounds)]
    found = [
        triton_ops.row_stats(part, tokens.ids_N, tokens.weights_N, temperature=0.7, first_id=first)
        for part, first in zip(parts, bounds[:-1], strict=True)
    ]
    whole = merge_row_stats(found, 0.7)
    grads = torch_ops.token_grads(whole.logprobs_N(0.7), whole.entropy_N(), tokens, spec)
    live_N = tokens.weights_N != 0
    assert torch.allclose(
        grads.stats.entropy_N[live_N].double(), expected.stats.entropy_N[live_N], rtol=1e-6, atol=0
    )
    grads = dataclasses.replace(
        grads,
        dlogprobs_N=grads.dlogprobs_N.where(live_N, 0.0),
        dentropy_N=grads.dentropy_N.where(live_N, 0.0),
    )
    for part, first in zip(parts, bounds[:-1], strict=True):
        triton_ops.grad_(part, tokens.ids_N, whole, grads, temperature=0.7, first_id=first)
    error = (torch.cat(parts, 1).double() - expected.dlogits_NV).norm() / expected.dlogits_NV.norm()
    assert error < 1e-5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
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
@pytest.mark.parametrize("old", [None, torch.tensor([-1.0])])
def test_a_broken_row_cannot_pass_for_a_number(row: list[float], old: torch.Tensor | None) -> None:
    logits_NV = torch.tensor([row])
    one_N = torch.ones(1)
    tokens = Tokens(
        ids_N=torch.zeros(1, dtype=torch.long), weights_N=one_N, advantages_N=one_N, old_logprobs_N=old
    )
    stats = fused_token_loss_(logits_NV, tokens, LossSpec(), backend="triton")
    assert not stats.logprobs_N.isfinite().any()
    assert stats.loss_N.isnan().all() and logits_NV.isnan().any()


def capped(logprobs_C: torch.Tensor, rows_C: torch.Tensor) -> torch.Tensor:
    """Some factor that depends on log-prob and row."""
    return (logprobs_C + 4.0 + 0.1 * rows_C).exp().clamp(max=2.0)


@pytest.mark.parametrize("tis_of", [None, capped])
def test_fused_linear_is_the_same_with_either_backend(tis_of: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(30, 16, generator=generator).requires_grad_(True)
    weight_VD = torch.randn(130, 16, generator=generator).requires_grad_(True)
    tokens = Tokens(
        ids_N=torch.randint(0, 130, (30,), generator=generator),
        weights_N=(torch.rand(30, generator=generator) > 0.4).float(),
        advantages_N=torch.randn(30, generator=generator),
    )
    results = [
        fused_linear_grpo(
            hidden_ND, weight_VD, tokens, LossSpec(), tis_of=tis_of, backend=backend, chunk_rows=7
        )
        for backend in ("triton", "torch")
    ]
    grads = [torch.autograd.grad(result.loss, (hidden_ND, weight_VD)) for result in results]
    for name in TokenStats.__slots__:
        a_N, b_N = (getattr(result.stats, name).nan_to_num() for result in results)
        assert torch.allclose(a_N, b_N, rtol=1e-5, atol=1e-6), name
    for a, b in zip(*grads, strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


def test_no_rows() -> None:
    tokens = Tokens(
        ids_N=torch.zeros(0, dtype=torch.long), weights_N=torch.zeros(0), advantages_N=torch.zeros(0)
    )
    assert len(fused_token_loss_(torch.zeros(0, 5), tokens, LossSpec(), backend="triton").loss_N) == 0
