"""The Triton kernels of triton_layers.py as operators of torch, which have shapes for fake tensors and
compilers.

This module does not import triton. Operators of `torch.library.custom_op` would cost several times as much
per call, and a layer calls seventeen of these per microbatch.

Legend: as in layers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from rocstar.kernels.rows import HAS_TRITON

TYPES = (torch.bfloat16, torch.float16, torch.float32)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def take(*tensors: Tensor) -> bool:
    """Return True if the operators support these tensors: on a GPU, of one type, with triton installed."""
    first = tensors[0]
    return (
        first.is_cuda
        and HAS_TRITON
        and first.dtype in TYPES
        and all(x.is_cuda and x.dtype == first.dtype for x in tensors[1:])
    )


def _operator(*, mutates: tuple[str, ...] = ()) -> Callable[[_Function], _Function]:
    """Register a function of tensors as the operator `rocstar::NAME`, which autograd does not
    differentiate."""

    def made(function: _Function) -> _Function:
        name = f"rocstar::{function.__name__}"
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=mutates))
        torch.library.impl(name, ("cpu", "cuda"), function)
        operator: _Function = getattr(torch.ops.rocstar, function.__name__).default
        return operator

    return made


@_operator()
def norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """See `layers.rms_norm`."""
    from rocstar.kernels import triton_layers

    return triton_layers.norm(x, weight_D, eps)


@_operator()
def norm_grad(x: Tensor, weight_D: Tensor, eps: float, grad: Tensor, add: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of `norm` for x and for the weight. add: another gradient of x, added to the
    first."""
    from rocstar.kernels import triton_layers

    return triton_layers.norm_grad(x, weight_D, eps, grad, add)


@_operator()
def norm_rotate(
    x_THD: Tensor, weight_D: Tensor | None, eps: float, cos_TD: Tensor, sin_TD: Tensor, sign: float
) -> Tensor:
    """See `layers.norm_rotate`. Without a weight there is no norm; `sign` -1 rotates back."""
    from rocstar.kernels import triton_layers

    return triton_layers.norm_rotate(x_THD, weight_D, eps, cos_TD, sin_TD, sign)


@_operator()
def norm_rotate_grad(
    x_THD: Tensor, weight_D: Tensor, eps: float, cos_TD: Tensor, sin_TD: Tensor, grad_THD: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `norm_rotate` for x and for the weight."""
    from rocstar.kernels import triton_layers

    return triton_layers.norm_rotate_grad(x_THD, weight_D, eps, cos_TD, sin_TD, grad_THD)


@_operator()
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    from rocstar.kernels import triton_layers

    return triton_layers.gated(gate, up)


@_operator(mutates=("grad",))
def gated_grad_(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the gate and `gated` again; overwrite `grad` with the gradient of `up`."""
    from rocstar.kernels import triton_layers

    return triton_layers.gated_grad_(gate, up, grad)


def _like_first(first: Tensor, *others: Tensor | float | None) -> Tensor:
    """Return the shape of the output. Raise RuntimeError for tensors on different devices."""
    for other in others:
        if isinstance(other, Tensor) and other.device != first.device:
            raise RuntimeError(
                f"expected all tensors on the same device, {first.device}, and found one on {other.device}"
            )
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def _like_both(first: Tensor, second: Tensor, *others: Tensor | float | None) -> tuple[Tensor, Tensor]:
    return _like_first(first, second, *others), torch.empty_like(second)


for _name in ("norm", "norm_rotate", "gated"):
    torch.library.register_fake(f"rocstar::{_name}", _like_first)
for _name in ("norm_grad", "norm_rotate_grad", "gated_grad_"):
    torch.library.register_fake(f"rocstar::{_name}", _like_both)
