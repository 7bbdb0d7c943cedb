"""Reads rows of a tensor for several readers, with one gradient for all of them.

For `x[index]` autograd allocates, fills and adds a gradient of x's size for each reader, and on a CPU it
copies element by element. Here rows are copied as rows and their gradients are accumulated in place.

Legend: T rows, N rows read, P readers of rows, W elements of a row.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op

HAS_TRITON = importlib.util.find_spec("triton") is not None


def gather_rows(x: Tensor, indexes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `x[index]` for each index; a row may be read any number of times.

    Args:
        x: (T, ...).
        indexes: int64, of any shape, each in [0, T).
    """
    found: tuple[Tensor, ...] = _Gather.apply(x, *indexes)  # type: ignore[no-untyped-call]
    return found


def pick_rows(x: Tensor, places_N: Tensor) -> Tensor:
    """Return `x[places]` for distinct places: a permutation or a subset of the rows."""
    found: Tensor = _Pick.apply(x, places_N)  # type: ignore[no-untyped-call]
    return found


def place_rows(x: Tensor, places_N: Tensor, num_rows: int) -> Tensor:
    """Return `num_rows` rows with row n of x at places[n] and zeros elsewhere: the inverse of `pick_rows`."""
    placed: Tensor = _Place.apply(x, places_N, num_rows)  # type: ignore[no-untyped-call]
    return placed


@dataclass(frozen=True, slots=True)
class Readers:
    """Readers of rows, and the readers of each row. All are int32, on one device.

    Reader p reads row rows_P[p]; the readers of row t are readers_P[begins_T1[t] : begins_T1[t + 1]], in
    ascending order.
    """

    rows_P: Tensor
    begins_T1: Tensor
    readers_P: Tensor


def readers_by_row(rows_P: npt.NDArray[np.int64], num_rows: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Return begins_T1 and readers_P of `Readers`."""
    begins_T1 = np.concatenate([[0], np.cumsum(np.bincount(rows_P, minlength=num_rows))])
    return begins_T1, np.argsort(rows_P, kind="stable")


def read_rows(a: Tensor, b: Tensor, readers: Readers) -> tuple[Tensor, Tensor]:
    """Return `a[rows]` and `b[rows]` of two tensors of one shape; the gradient adds each row's readers in
    order.

    On a GPU the gradient is summed in float32 by one kernel for both (triton_rows.py).
    """
    found: tuple[Tensor, Tensor] = _Read.apply(a, b, readers)  # type: ignore[no-untyped-call]
    return found


@custom_op("rocstar::sum_readers", mutates_args=())
def sum_readers(a_PW: Tensor, b_PW: Tensor, begins_T1: Tensor, readers_P: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over each row's readers, of both tensors; in float32, in the order of `readers_P`."""
    from rocstar.kernels import triton_rows

    return triton_rows.sum_readers(a_PW, b_PW, begins_T1, readers_P)


@sum_readers.register_fake
def _sums(a_PW: Tensor, b_PW: Tensor, begins_T1: Tensor, readers_P: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, width = len(begins_T1) - 1, a_PW.shape[1]
    return a_PW.new_empty(num_rows, width), b_PW.new_empty(num_rows, width)


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
            _add_rows_(dx_TD, index.flatten(), grad.reshape(index.numel(), -1))
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


def _add_rows_(x_TW: Tensor, index_N: Tensor, rows_NW: Tensor) -> None:
    """Add rows to the indexed rows of x, in the order of the index."""
    if x_TW.device.type == "cpu":
        x_TW.index_add_(0, index_N, rows_NW)
    else:
        x_TW.index_put_((index_N,), rows_NW, accumulate=True)  # sorts first, so it is deterministic


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places_N: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(places_N)
        return x.new_zeros(num_rows, *x.shape[1:]).index_copy_(0, places_N, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places_N,) = ctx.saved_tensors
        return grad.index_select(0, places_N), None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, readers: Readers) -> tuple[Tensor, Tensor]:
        ctx.readers, ctx.shape = readers, a.shape
        return a.index_select(0, readers.rows_P), b.index_select(0, readers.rows_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        readers = ctx.readers
        a_PW, b_PW = (grad.reshape(len(readers.rows_P), -1) for grad in grads)
        if a_PW.is_cuda and HAS_TRITON:
            sums = sum_readers(a_PW.contiguous(), b_PW.contiguous(), readers.begins_T1, readers.readers_P)
        else:
            sums = tuple(_added(grad, readers) for grad in (a_PW, b_PW))
        return *(x.view(ctx.shape) for x in sums), None


def _added(grad_PW: Tensor, readers: Readers) -> Tensor:
    """`sum_readers` of one tensor in plain torch, which also sums half precision in float32."""
    sum_TW = grad_PW.new_zeros(len(readers.begins_T1) - 1, grad_PW.shape[1])
    _add_rows_(sum_TW, readers.rows_P.long(), grad_PW)
    return sum_TW
