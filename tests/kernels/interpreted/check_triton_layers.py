"""The Triton kernels of layers.py, interpreted on CPU tensors, against formulas in float64 and plain torch.

Run by test_interpreter.py in a process of its own: TRITON_INTERPRET=1 must be set before triton is imported.
The interpreter runs one program after the other: it cannot show a race.

Legend: N rows, D size of a row, T tokens, H heads.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rocstar.kernels import layer_ops, layers, triton_layers

from ..planted import load_planted

EPS = 1e-3  # large enough to be seen if it is left out
# In units of the output's own error: the interpreter cuts bfloat16 off where a device rounds.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1.5e-2}
TYPES = tuple(TOLERANCE)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def strided(x: Tensor) -> Tensor:
    """The same values with a gap behind each of the first axis."""
    wide = x.new_full((x.shape[0], 2, *x.shape[1:]), float("nan"))
    wide[:, 0] = x
    return wide[:, 0]


def tables(tokens: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(tokens).double(), 0.7 ** torch.arange(size // 2))
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def exact_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def exact_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.double().requires_grad_() for x in inputs]
    return list(torch.autograd.grad(function(*leaves), leaves, grad.double()))


def assert_near(found: Tensor, right: Tensor, like: Tensor) -> None:
    assert found.dtype == like.dtype and found.shape == right.shape
    error = (found.double() - right).norm() / right.norm()
    assert error < TOLERANCE[like.dtype], float(error)


def small_tiles(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs for gradients and small tiles: some programs take several tiles, some one."""
    monkeypatch.setattr(module, "UNIT_THREADS", {32: 256, 64: 256})
    monkeypatch.setattr(module, "TILE", 512)
    monkeypatch.setattr(module, "tile_of", module.tile_of.__wrapped__)  # nothing kept of other constants


# ---- each kernel ----


def check_norm(module: Any, shape: Sequence[int], dtype: torch.dtype, place: Callable[[Tensor], Tensor]) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    grad, add = random(*shape, dtype=dtype, seed=2), random(*shape, dtype=dtype, seed=3)
    assert_near(module.norm(place(x), weight, EPS), exact_norm(x.double(), weight.double()), x)
    dx, dweight = exact_gradients(exact_norm, [x, weight], grad)
    for added in (None, add):
        found = module.norm_grad(place(x), weight, EPS, place(grad), None if added is None else place(added))
        assert_near(found[0], dx if added is None else dx + added.double(), x)
        assert_near(found[1], dweight, weight)


def check_norm_rotate(
    module: Any, shape: Sequence[int], dtype: torch.dtype, place: Callable[[Tensor], Tensor]
) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    cos, sin = tables(shape[0], shape[-1], dtype)
    grad = random(*shape, dtype=dtype, seed=2)
    wide = [x.double(), cos.double(), sin.double()]
    for sign in (1.0, -1.0):
        found = module.norm_rotate(place(x), None, EPS, place(cos), place(sin), sign)
        assert_near(found, exact_rotation(wide[0], wide[1], sign * wide[2]), x)

    def both(x: Tensor, weight: Tensor) -> Tensor:
        return exact_rotation(exact_norm(x, weight), *wide[1:])

    found = module.norm_rotate(place(x), weight, EPS, place(cos), place(sin), 1.0)
    assert_near(found, both(wide[0], weight.double()), x)
    dx, dweight = exact_gradients(both, [x, weight], grad)
    found = module.norm_rotate_grad(place(x), weight, EPS, place(cos), place(sin), place(grad))
    assert_near(found[0], dx, x)
    assert_near(found[1], dweight, weight)


def check_gated(module: Any, shape: Sequence[int], dtype: torch.dtype, place: Callable[[Tensor], Tensor]) -> None:
    gate, up, grad = (random(*shape, dtype=dtype, seed=seed) for seed in range(3))

    def exact(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    product = exact(gate.double(), up.double())
    assert_near(module.gated(place(gate), place(up)), product, gate)
    dgate, dup = exact_gradients(exact, [gate, up], grad)
    found = module.gated_grad_(place(gate), place(up), grad)
    assert_near(found[0], dgate, gate)
    assert_near(grad, dup, gate)
    assert_near(found[1], product, gate)


CHECKS: dict[str, tuple[Callable[..., None], list[tuple[int, ...]]]] = {
    # One row, an incomplete tile, several tiles per program (see `few_programs`), columns to spare.
    "norm": (check_norm, [(1, 128), (37, 128), (5, 3, 96), (9, 100), (3, 2560), (2, 7)]),
    "norm and rotation": (check_norm_rotate, [(1, 1, 128), (7, 3, 128), (9, 5, 96), (3, 2, 64), (2, 3, 6)]),
    "gated": (check_gated, [(1, 16), (3, 1000), (2, 7)]),
}
CASES = [(name, shape) for name, (_, shapes) in CHECKS.items() for shape in shapes]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(triton_layers, monkeypatch)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_values_and_gradients(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    CHECKS[name][0](triton_layers, shape, dtype, lambda x: x)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_rows_with_gaps(name: str, shape: tuple[int, ...]) -> None:
    CHECKS[name][0](triton_layers, shape, torch.float32, strided)


@pytest.mark.parametrize("name", CHECKS)
def test_numbers_that_are_not_adjacent(name: str) -> None:
    def transposed(x: Tensor) -> Tensor:
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    CHECKS[name][0](triton_layers, CHECKS[name][1][1], torch.float32, transposed)


def test_many_programs() -> None:
    """The sum of partial sums takes several steps, the last incomplete."""
    rows = triton_layers.SUM_ROWS * 2 + 3
    partial = random(rows, 40, dtype=torch.float32)
    assert_near(triton_layers._sum_rows(partial, partial[0]), partial.double().sum(0), partial)


def test_no_rows() -> None:
    weight = torch.ones(8)
    dx, dweight = triton_layers.norm_grad(torch.zeros(0, 8), weight, EPS, torch.zeros(0, 8), None)
    assert dx.shape == (0, 8) and torch.equal(dweight, torch.zeros(8))
    cos = torch.zeros(0, 8)
    x = torch.zeros(0, 2, 8)
    assert triton_layers.norm_rotate(x, weight, EPS, cos, cos, 1.0).shape == x.shape
    assert torch.equal(triton_layers.norm_rotate_grad(x, weight, EPS, cos, cos, x)[1], torch.zeros(8))
    assert triton_layers.gated(x, x).shape == x.shape


def test_operators_keep_to_their_schemas_and_fake_tensors_have_their_shapes() -> None:
    x, wide, row = (random(*s, dtype=torch.bfloat16) for s in ((5, 3, 16), (5, 3, 32), (16,)))
    cos, sin = tables(5, 16, torch.bfloat16)
    gap = wide[..., :16]
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (layer_ops.norm, (gap, row, EPS)),
        (layer_ops.norm_grad, (gap, row, EPS, x, gap)),
        (layer_ops.norm_rotate, (gap, row, EPS, cos, sin, 1.0)),
        (layer_ops.norm_rotate, (x.transpose(1, 2)[:, :, :2], None, EPS, cos[:, :2], sin[:, :2], -1.0)),
        (layer_ops.norm_rotate_grad, (gap, row, EPS, cos, sin, x)),
        (layer_ops.gated, (gap, x)),
        (layer_ops.gated_grad_, (gap, gap, x)),
    ]
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_gradient_with_gaps_is_refused() -> None:
    x = torch.zeros(4, 8)
    with pytest.raises(ValueError, match="must be contiguous"):
        triton_layers.gated_grad_(x, x, torch.zeros(8, 4).T)


# ---- the functions of layers.py ----


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches the operators on and off for CPU tensors."""
    return lambda on: monkeypatch.setattr(layer_ops, "take", lambda *tensors: on)


def layer(x: Tensor, weights: Sequence[Tensor], cos: Tensor, sin: Tensor) -> Tensor:
    """All functions in a row, as a decoder layer calls them."""
    norm, q_norm, q_proj, gate_proj, up_proj, down_proj = weights
    x, q, k = layers.norm_linears(x, norm, EPS, [q_proj, q_proj])
    q, k = (y.view(len(y), -1, cos.shape[-1]) for y in (q, k))
    q, k = layers.norm_rotate(q, q_norm, EPS, cos, sin), layers.rotate(k, cos, sin)
    x = layers.add_linear(x, (q * k).flatten(1), q_proj)
    x, gate, up = layers.norm_linears(x, norm, EPS, [gate_proj, up_proj])
    x = layers.add_gated(x, gate, up, down_proj)
    return layers.rms_norm(x, norm, EPS)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_layer_is_the_one_of_plain_torch(dtype: torch.dtype, with_triton: Callable[[bool], None]) -> None:
    shapes = [(6, 32), (32,), (16,), (32, 32), (48, 32), (48, 32), (32, 48)]
    inputs = [(random(*s, dtype=torch.float32, seed=k) / s[-1] ** 0.5).to(dtype) for k, s in enumerate(shapes)]
    cos, sin = tables(6, 16, dtype)
    found: list[list[Tensor]] = []
    for on in (False, True):
        with_triton(on)
        x, *weights = (t.clone().requires_grad_() for t in inputs)
        out = layer(x, weights, cos, sin)
        grad = random(6, 32, dtype=dtype, seed=9)
        found.append([out, *torch.autograd.grad(out, [x, *weights], grad)])
    for plain, triton in zip(*found, strict=True):
        error = (plain.double() - triton.double()).norm() / plain.double().norm()
        assert error < 3 * TOLERANCE[dtype], float(error)


# ---- planted errors ----

# One error of each kind. The second text takes the place of the first, wherever it occurs.
PLANTED = {
    "norm without eps": ("/ D + eps)", "/ D)"),
    "norm over the columns of the tile": ("tl.sum(x * x, 1) / D", "tl.sum(x * x, 1) / BLOCK"),
    "norm without weight": ("out_ptr) * weight[None, :]", "out_ptr)"),
    "norm of the first tile": ("_tile(tl.program_id(0), N", "_tile(0, N"),
    "gradient without the mean": ("grad - y * (tl.sum(grad * y, 1) / D)[:, None]", "grad"),
    "gradient of the weight times the weight": ("dweight += grad * y", "dweight += grad * y * weight"),
    "gradient of the first tiles": ("tl.cdiv(N, ROWS), tl.num", "tl.num_programs(0), tl.num"),
    "other gradient left out": ("if ADDS:", "if False:"),
    "partial sums of one program": ("tl.program_id(0) * D + columns", "columns"),
    "sum of the first rows": ("range(0, P, ROWS)", "range(0, ROWS, ROWS)"),
    "one row too many in the sum": ("(rows < P)", "(rows <= P)"),
    "table of another token": ("_heads(rows, H, cos_stride", "_heads(rows, 1, cos_stride"),
    "reflection for rotation": ("b * cos + a * sin", "b * cos - a * sin"),
    "sign left out": ("sin.to(tl.float32) * sign", "sin.to(tl.float32)"),
    "norm of half a head": ("a * a + b * b", "2 * a * a"),
    "weight of the other half": ("weight_ptr + HALF + columns", "weight_ptr + columns"),
    "gradient not rotated back": ("-sin.to(tl.float32)", "sin.to(tl.float32)"),
    "mean of half a head": ("g_a * a + g_b * b", "g_a * a"),
    "gradient of half a weight": ("tl.sum(dw_b, 0)", "tl.sum(dw_a, 0)"),
    "heads without gaps": ("_heads(rows, H, stride_t,", "_heads(rows, H, 2 * HALF * H,"),
    "sigmoid for silu": ("gate * tl.sigmoid(gate)", "tl.sigmoid(gate)"),
    "slope of silu": ("(1.0 + gate * (1.0 - share))", "(1.0 + gate)"),
    "gradient of up without silu": ("(grad * silu)", "(grad * share)"),
    "first block alone": ("tl.program_id(0).to(tl.int64) * BLOCK", "0"),
}


def check_all(module: Any) -> None:
    for place in (lambda x: x, strided):
        for name, shape in CASES:
            CHECKS[name][0](module, shape, torch.float32, place)
    partial = random(triton_layers.SUM_ROWS * 2 + 3, 40, dtype=torch.float32)[:-1]
    assert_near(module._sum_rows(partial, partial[0]), partial.double().sum(0), partial)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_caught(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = load_planted(triton_layers, PLANTED, kind, tmp_path)
    small_tiles(wrong, monkeypatch)
    with pytest.raises(AssertionError):
        check_all(wrong)
