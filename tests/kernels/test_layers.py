"""Every hand-written gradient is the one that autograd finds, and every value the plain formula's."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rocstar.kernels import layer_ops, layers

torch.set_num_threads(1)


def leaves(*shapes: Sequence[int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(*s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


@contextlib.contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """What autograd keeps meanwhile."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        yield kept


def tables(num: int, size: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(num, dtype=torch.float64), 0.3 ** torch.arange(size // 2))
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def plain_rotation(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    a, b = x_THD.chunk(2, -1)
    return x_THD * cos_TD[:, None] + torch.cat([-b, a], -1) * sin_TD[:, None]


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


Function = Callable[..., Tensor | tuple[Tensor, ...]]
COS, SIN = tables(5, 6)
GPU_SHAPES: dict[str, Callable[[int], list[tuple[int, ...]]]] = {
    "norm of rows": lambda tokens: [(tokens, 2560), (2560,)],
    "norm of heads": lambda tokens: [(tokens, 8, 128), (128,)],
    "rotation": lambda tokens: [(tokens, 8, 128)],
    "norm and rotation of heads": lambda tokens: [(tokens, 8, 128), (128,)],
    "gated": lambda tokens: [(tokens, 64), (tokens, 1000), (tokens, 1000), (64, 1000)],
}
CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "norm of rows": (lambda x, w: layers.rms_norm(x, w, 1e-6), plain_norm, [(7, 6), (6,)]),
    "norm of heads": (lambda x, w: layers.rms_norm(x, w, 1e-6), plain_norm, [(5, 3, 6), (6,)]),
    "rotation": (lambda x: layers.rotate(x, COS, SIN), lambda x: plain_rotation(x, COS, SIN), [(5, 3, 6)]),
    "norm and rotation of heads": (
        lambda x, w: layers.norm_rotate(x, w, 1e-6, COS, SIN),
        lambda x, w: plain_rotation(plain_norm(x, w), COS, SIN),
        [(5, 3, 6), (6,)],
    ),
    "linears": (
        lambda x, a, b: layers.linears(x, [a, b]),
        lambda x, a, b: (x @ a.T, x @ b.T),
        [(7, 4), (3, 4), (5, 4)],
    ),
    "linears, one with bias": (
        lambda x, a, b, c: layers.linears(x, [a, b], [None, c]),
        lambda x, a, b, c: (x @ a.T, x @ b.T + c),
        [(7, 4), (3, 4), (5, 4), (5,)],
    ),
    "linears of a norm": (
        lambda x, n, a, b: layers.norm_linears(x, n, 1e-6, [a, b]),
        lambda x, n, a, b: (x, plain_norm(x, n) @ a.T, plain_norm(x, n) @ b.T),
        [(7, 4), (4,), (3, 4), (5, 4)],
    ),
    "added": (layers.add_linear, lambda r, x, w: r + x @ w.T, [(7, 3), (7, 4), (3, 4)]),
    "gated": (layers.add_gated, lambda r, g, u, w: r + (F.silu(g) * u) @ w.T, [(7, 4), (7, 3), (7, 3), (4, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_formula_and_gradients_of_finite_differences(name: str) -> None:
    function, plain, shapes = CASES[name]
    inputs = leaves(*shapes)
    torch.testing.assert_close(function(*inputs), plain(*inputs), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("name", CASES)
def test_inputs_and_saved_tensors_are_not_changed(name: str) -> None:
    """Some of it works in place: on its own tensors only, so a second backward gives the same."""
    function, _, shapes = CASES[name]
    inputs = leaves(*shapes)
    before = [x.detach().clone() for x in inputs]
    out = function(*inputs)
    total = sum((x.square().sum() for x in ([out] if isinstance(out, Tensor) else out)), torch.zeros(()))
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    second = torch.autograd.grad(total, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))


def half_norm() -> tuple[Tensor, Tensor, LlamaRMSNorm]:
    """Rows in bfloat16, a gradient for their norms, and the model's own norm."""
    generator = torch.Generator().manual_seed(4)
    x, grad = (torch.randn(9, 3, 48, generator=generator).mul_(3).bfloat16() for _ in range(2))
    norm = LlamaRMSNorm(48, eps=1e-6).bfloat16()
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.2, generator=generator)
    return x.requires_grad_(), grad, norm


def test_a_norm_in_half_precision_has_the_bits_of_the_models_own() -> None:
    x, _, norm = half_norm()
    with saved_tensors() as kept:
        found = layers.rms_norm(x, norm.weight, 1e-6)
    assert torch.equal(found, norm(x))
    assert {t.data_ptr() for t in kept} == {x.data_ptr(), norm.weight.data_ptr()}, "its input alone"


def test_a_norm_in_half_precision_has_gradients_no_further_off_than_autograds() -> None:
    x, grad, norm = half_norm()
    exact = [t.detach().double().requires_grad_() for t in (x, norm.weight)]
    truth = torch.autograd.grad(plain_norm(*exact), exact, grad.double())
    found = torch.autograd.grad(layers.rms_norm(x, norm.weight, 1e-6), (x, norm.weight), grad)
    theirs = torch.autograd.grad(norm(x), (x, norm.weight), grad)
    for mine, other, right in zip(found, theirs, truth, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - right).norm() <= 1.001 * (other - right).norm()


def test_a_norm_and_rotation_have_the_bits_of_one_after_the_other_and_keep_what_the_norm_keeps() -> None:
    x, grad, norm = half_norm()
    cos, sin = (table.bfloat16() for table in tables(9, 48))
    with saved_tensors() as kept:
        both = layers.norm_rotate(x, norm.weight, 1e-6, cos, sin)
    one_by_one = layers.rotate(layers.rms_norm(x, norm.weight, 1e-6), cos, sin)
    assert torch.equal(both, one_by_one)
    found, expected = (torch.autograd.grad(out, (x, norm.weight), grad) for out in (both, one_by_one))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in (x, norm.weight, cos, sin)}


def test_the_residual_of_a_norm_has_the_gradients_sum_of_autograd() -> None:
    x, grad, _ = half_norm()
    x_TC, grad_TC = x.detach().flatten(1).requires_grad_(), grad.flatten(1)
    weight, norm_C = (torch.ones(s, dtype=torch.bfloat16).requires_grad_() for s in ((144, 144), (144,)))
    residual, out = layers.norm_linears(x_TC, norm_C, 1e-6, [weight])
    (together,) = torch.autograd.grad([residual, out], x_TC, [grad_TC, grad_TC], retain_graph=True)
    (alone,) = torch.autograd.grad(out, x_TC, grad_TC)
    assert torch.equal(together, alone + grad_TC) and torch.equal(residual, x_TC)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cpu_runs_plain_torch(dtype: torch.dtype) -> None:
    assert not layer_ops.take(torch.zeros(2, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["norm of rows", "norm of heads", "rotation", "norm and rotation of heads", "gated"])
@pytest.mark.parametrize("tokens", [1, 5, 4099])
def test_kernels_of_a_gpu_match_the_formula(
    name: str, dtype: torch.dtype, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, with rows of a model's sizes; twice the same bits."""
    _, plain, _ = CASES[name]
    shapes = GPU_SHAPES[name](tokens)
    cos, sin = tables(tokens, 128)
    generator = torch.Generator().manual_seed(tokens)
    inputs = [torch.randn(s, generator=generator).mul_(s[-1] ** -0.25).to(dtype) for s in shapes]

    def run(function: Function, device: str, wide: torch.dtype) -> list[Tensor]:
        monkeypatch.setitem(globals(), "COS", cos.to(device, wide))
        monkeypatch.setitem(globals(), "SIN", sin.to(device, wide))
        given = [x.to(device, wide).requires_grad_() for x in inputs]
        out = function(*given)
        assert isinstance(out, Tensor)
        grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(dtype)
        return [out, *torch.autograd.grad(out, given, grad.to(device, wide))]

    right = run(plain, "cpu", torch.float64)
    first, second = (run(CASES[name][0], "cuda", dtype) for _ in range(2))
    assert layer_ops.take(*first)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
    for a, b, exact in zip(first, second, right, strict=True):
        assert torch.equal(a, b)
        assert (a.cpu().double() - exact).norm() < tolerance * exact.norm()
