"""Rows of a tensor for several readers, with one gradient for all of them.

`x[index]` gives each reader's gradient a tensor of x's own size, which autograd makes, fills and adds up;
on a CPU it moves numbers one by one as well. Here rows are moved as rows, and their gradients are added where
they belong.

Legend: T rows, N rows read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gather_rows(x: Tensor, indexes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`x[index]` of each index; a row may be read any number of times.

    Args:
        x: (T, ...).
        indexes: int64, of any shape, each in [0, T).
    """
    found: tuple[Tensor, ...] = _Gather.apply(x, *indexes)  # type: ignore[no-untyped-call]
    return found


def pick_rows(x: Tensor, places_N: Tensor) -> Tensor:
    """`x[places]` where no place is named twice: rows in another order, or some of them."""
    found: Tensor = _Pick.apply(x, places_N)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *indexes: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*indexes)
        ctx.shape = x.shape
        return tuple(x.index_select(0, i.flatten()).view(*i.shape, *x.shape[1:]) for i in indexes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        indexes = ctx.saved_tensors
        dx_TD = grads[0].new_zeros(ctx.shape[0], ctx.shape[1:].numel())
        for index, grad in zip(indexes, grads, strict=True):
            index_N, grad_ND = index.flatten(), grad.reshape(index.numel(), -1)
            if dx_TD.device.type == "cpu":
                dx_TD.index_add_(0, index_N, grad_ND)  # in the order of the index, whoever computes it
            else:
                dx_TD.index_put_(
                    (index_N,), grad_ND, accumulate=True
                )  # has a form that does not depend on time
        return dx_TD.view(ctx.shape), *[None] * len(indexes)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places_N: Tensor) -> Tensor:
        ctx.save_for_backward(places_N)
        ctx.shape = x.shape
        return x.index_select(0, places_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (places_N,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_copy_(0, places_N, grad), None
