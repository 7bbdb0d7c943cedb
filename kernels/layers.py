"""The parts of a decoder layer around its matrix products, with gradients written by hand.

Autograd would keep, read and write one tensor per operation. Here the operations between two matrix products
take a few passes over memory: plain torch on any device, one pass of a Triton kernel on a GPU (layer_ops.py).
In half precision values are rounded where the model rounds them; a norm in plain torch has the model's bits.

Legend: T tokens, H heads, D normalised or rotated size, C input and F output features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rocstar.kernels import layer_ops


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last axis. Source: arXiv 1910.07467.

    Half precision is normalised in float32, rounded, and then multiplied by the weight. Backward keeps the
    input in its own type.
    """
    out: Tensor = _RmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    return out


def norm_linears(
    x_TC: Tensor, norm_C: Tensor, eps: float, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    """Return x and `linears` of `rms_norm(x, norm, eps)`, which backward recomputes.

    The first output is the input itself. Its gradient, as of a residual, is added by the norm's backward.
    """
    none = [None] * len(weights)
    given = (*weights, *(biases or none))
    out: tuple[Tensor, ...] = _NormLinears.apply(x_TC, norm_C, eps, len(weights), *given)  # type: ignore[no-untyped-call]
    return out


def norm_rotate(x_THD: Tensor, weight_D: Tensor, eps: float, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """`rotate(rms_norm(x, weight, eps), cos, sin)`."""
    out: Tensor = _NormRotate.apply(x_THD, weight_D, eps, cos_TD, sin_TD)  # type: ignore[no-untyped-call]
    return out


def rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Apply a half-split rotary embedding (arXiv 2104.09864, as in Llama): (a, b) becomes
    (a cos - b sin, b cos + a sin), with a and b the halves of each head.

    Assumes that both halves of `cos_TD` are equal, and both of `sin_TD`, so that it is a rotation.
    """
    out: Tensor = _Rotate.apply(x_THD, cos_TD, sin_TD)  # type: ignore[no-untyped-call]
    return out


def linears(
    x_TC: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    """Return x @ weight.T + bias for each of several (F, C) weights. Their gradients of x are accumulated
    without a tensor for each."""
    none = [None] * len(weights)
    out: tuple[Tensor, ...] = _Linears.apply(x_TC, len(weights), *weights, *(biases or none))  # type: ignore[no-untyped-call]
    return out


def add_linear(residual_TF: Tensor, x_TC: Tensor, weight_FC: Tensor) -> Tensor:
    """Return residual + x @ weight.T, added by the matrix product."""
    out: Tensor = _AddLinear.apply(residual_TF, x_TC, weight_FC)  # type: ignore[no-untyped-call]
    return out


def add_gated(residual_TC: Tensor, gate_TF: Tensor, up_TF: Tensor, weight_CF: Tensor) -> Tensor:
    """Return residual + (silu(gate) * up) @ weight.T. Backward recomputes the product, because it needs
    silu(gate) anyway. Source: SwiGLU, arXiv 2002.05202."""
    out: Tensor = _AddGated.apply(residual_TC, gate_TF, up_TF, weight_CF)  # type: ignore[no-untyped-call]
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight_D)
        ctx.eps = eps
        return _normed(x, weight_D, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D = ctx.saved_tensors
        return *_norm_gradients(x, weight_D, ctx.eps, grad), None


def _normed(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    if layer_ops.take(x, weight_D):
        return layer_ops.norm(x, weight_D, eps)
    if _is_half(x):
        wide, scale = _widened(x, eps)
        return weight_D * wide.mul_(scale).to(x.dtype)
    return (x * _scale(x, eps)).mul_(weight_D)


def _norm_gradients(
    x: Tensor, weight_D: Tensor, eps: float, grad: Tensor, add: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, plus `add`, and of the weight."""
    if layer_ops.take(x, weight_D, grad):
        return layer_ops.norm_grad(x, weight_D, eps, grad, add)
    dx, dweight_D = _plain_norm_gradients(x, weight_D, eps, grad)
    return dx if add is None else dx.add_(add), dweight_D


def _plain_norm_gradients(x: Tensor, weight_D: Tensor, eps: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    if _is_half(x):
        y, scale = _widened(x, eps)
        y.mul_(scale)
        gy = grad * y
        dweight_D = gy.view(-1, size).sum(0).to(weight_D.dtype)
        mean = gy.mul_(weight_D).mean(-1, keepdim=True)
        dx = y.mul_(mean).neg_().addcmul_(grad.float(), weight_D.float()).mul_(scale)
        return dx.to(x.dtype), dweight_D
    scale = _scale(x, eps)
    y = x * scale  # the output before the weight
    gy_ND = (grad * y).view(-1, size)
    # mean(grad * weight * y) of each row, as a matrix product: faster than a dot product per row.
    mean = (gy_ND @ weight_D[:, None]).view(scale.shape).div_(-size)
    return y.mul_(mean).addcmul_(grad, weight_D).mul_(scale), gy_ND.sum(0)


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def _scale(x: Tensor, eps: float) -> Tensor:
    """Return the factor of each row."""
    squares: Tensor = torch.linalg.vecdot(x, x)
    return squares.div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)


def _widened(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the rows in float32 and the factor of each."""
    wide = x.float()
    return wide, wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        return _rotated(x_THD, cos_TD, sin_TD, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor | None, ...]:
        cos_TD, sin_TD = ctx.saved_tensors
        return _rotated(grad_THD, cos_TD, sin_TD, -1.0), None, None


class _NormRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, weight_D: Tensor, eps: float, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        ctx.save_for_backward(x_THD, weight_D, cos_TD, sin_TD)
        ctx.eps = eps
        if layer_ops.take(x_THD, weight_D, cos_TD, sin_TD):
            return layer_ops.norm_rotate(x_THD, weight_D, eps, cos_TD, sin_TD, 1.0)
        return _rotated(_normed(x_THD, weight_D, eps), cos_TD, sin_TD, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor | None, ...]:
        x_THD, weight_D, cos_TD, sin_TD = ctx.saved_tensors
        if layer_ops.take(x_THD, weight_D, cos_TD, sin_TD, grad_THD):
            grads = layer_ops.norm_rotate_grad(x_THD, weight_D, ctx.eps, cos_TD, sin_TD, grad_THD)
        else:
            back_THD = _rotated(grad_THD, cos_TD, sin_TD, -1.0)
            grads = _norm_gradients(x_THD, weight_D, ctx.eps, back_THD)
        return *grads, None, None, None


def _rotated(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor, sign: float) -> Tensor:
    """`sign` -1 rotates back."""
    if layer_ops.take(x_THD, cos_TD, sin_TD):
        return layer_ops.norm_rotate(x_THD, None, 0.0, cos_TD, sin_TD, sign)
    half = x_THD.shape[-1] // 2
    sin_T1h = sin_TD[:, None, :half]
    out = x_THD * cos_TD[:, None]
    out[..., :half].addcmul_(x_THD[..., half:], sin_T1h, value=-sign)
    out[..., half:].addcmul_(x_THD[..., :half], sin_T1h, value=sign)
    return out


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: Tensor, count: int, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        ctx.save_for_backward(x_TC, *weights)
        ctx.has_bias = [bias is not None for bias in biases]
        return _products(x_TC, weights, biases)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, *weights = ctx.saved_tensors
        return _product_gradient(grads, weights), None, *_weight_gradients(grads, x_TC, ctx.has_bias)


class _NormLinears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TC: Tensor, norm_C: Tensor, eps: float, count: int, *weights_and_biases: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        ctx.save_for_backward(x_TC, norm_C, *weights)
        ctx.eps, ctx.has_bias = eps, [bias is not None for bias in biases]
        return x_TC, *_products(_normed(x_TC, norm_C, eps), weights, biases)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TC: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, norm_C, *weights = ctx.saved_tensors
        others = _weight_gradients(grads, _normed(x_TC, norm_C, ctx.eps), ctx.has_bias)
        dnormed_TC = _product_gradient(grads, weights)
        dx_TC, dnorm_C = _norm_gradients(x_TC, norm_C, ctx.eps, dnormed_TC, grad_TC)
        return dx_TC, dnorm_C, None, None, *others


def _products(x_TC: Tensor, weights: Sequence[Tensor | None], biases: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    return tuple(
        F.linear(x_TC, weight, bias)  # type: ignore[arg-type]
        for weight, bias in zip(weights, biases, strict=True)
    )


def _product_gradient(grads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return the gradient of the factor, summed over the weights."""
    dx_TC = grads[0] @ weights[0]
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        dx_TC.addmm_(grad, weight)
    return dx_TC


def _weight_gradients(grads: Sequence[Tensor], x_TC: Tensor, has_bias: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of all weights, then of all biases."""
    dbiases = [grad.sum(0) if has else None for grad, has in zip(grads, has_bias, strict=True)]
    return [*(grad.T @ x_TC for grad in grads), *dbiases]


class _AddLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual_TF: Tensor, x_TC: Tensor, weight_FC: Tensor) -> Tensor:
        ctx.save_for_backward(x_TC, weight_FC)
        return torch.addmm(residual_TF, x_TC, weight_FC.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, ...]:
        x_TC, weight_FC = ctx.saved_tensors
        return grad_TF, grad_TF @ weight_FC, grad_TF.T @ x_TC


class _AddGated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual_TC: Tensor, gate_TF: Tensor, up_TF: Tensor, weight_CF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_TF, up_TF, weight_CF)
        has_kernel = layer_ops.take(gate_TF, up_TF)
        gated_TF = layer_ops.gated(gate_TF, up_TF) if has_kernel else F.silu(gate_TF).mul_(up_TF)
        return torch.addmm(residual_TC, gated_TF, weight_CF.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TC: Tensor) -> tuple[Tensor, ...]:
        gate_TF, up_TF, weight_CF = ctx.saved_tensors
        grad_TF = grad_TC @ weight_CF
        if layer_ops.take(gate_TF, up_TF, grad_TF):
            dgate_TF, gated_TF = layer_ops.gated_grad_(gate_TF, up_TF, grad_TF)
            return grad_TC, dgate_TF, grad_TF, grad_TC.T @ gated_TF
        silu_TF = F.silu(gate_TF)
        dgate_TF = torch.ops.aten.silu_backward(grad_TF * up_TF, gate_TF)
        dup_TF, gated_TF = grad_TF.mul_(silu_TF), silu_TF.mul_(up_TF)
        return grad_TC, dgate_TF, dup_TF, grad_TC.T @ gated_TF
