"""The loss of rows of logits in two passes over them, with the Triton kernels as operators of torch, so that a
step can be rehearsed without a GPU.

    row_stats ──> log-probs, entropy, max, log of sum ──> loss_of, in torch ──> slope ──> dlogits_

`triton_ops` launches the kernels. Here each launch is an operator of the library `rocstar` with an
implementation for fake tensors, which only checks shapes. This module does not import triton.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.library import custom_op

from rocstar.kernels.row_loss import LossOf, RowLoss, loss_and_slope


@custom_op("rocstar::row_stats", mutates_args=("logprobs_N", "entropy_N", "max_N", "log_sum_N"))
def row_stats(
    logits_NV: Tensor,
    ids_N: Tensor,
    logprobs_N: Tensor,
    entropy_N: Tensor,
    max_N: Tensor,
    log_sum_N: Tensor,
    inv_t: float,
) -> None:
    """Write log-prob, entropy, maximum and log of the sum of each row."""
    from rocstar.kernels import triton_ops

    triton_ops.launch_row_stats(logits_NV, ids_N, logprobs_N, entropy_N, max_N, log_sum_N, inv_t)


@custom_op("rocstar::dlogits_", mutates_args=("dlogits_NV",))
def dlogits_(
    dlogits_NV: Tensor,
    logits_NV: Tensor,
    ids_N: Tensor,
    max_N: Tensor,
    log_sum_N: Tensor,
    slope_N: Tensor,
    inv_t: float,
    pull_N: Tensor | None = None,
    entropy_weights_N: Tensor | None = None,
) -> None:
    """Write the gradient of the loss in the logits, given its slope in the log-probs and its weight of the entropy.

    pull_N: slope + weight * entropy, given with `entropy_weights_N`.
    """
    from rocstar.kernels import triton_ops

    triton_ops.launch_dlogits_(
        dlogits_NV, logits_NV, ids_N, max_N, log_sum_N, slope_N, inv_t, pull_N, entropy_weights_N
    )


@row_stats.register_fake
def _fill_nothing(logits_NV: Tensor, *rows: Tensor | float) -> None:
    _check_place(logits_NV, *rows)


@dlogits_.register_fake
def _change_nothing(dlogits_NV: Tensor, logits_NV: Tensor, *rows: Tensor | float | None) -> None:
    if dlogits_NV.shape != logits_NV.shape:
        raise RuntimeError(f"need a gradient of shape {tuple(logits_NV.shape)}, got {tuple(dlogits_NV.shape)}")
    _check_place(dlogits_NV, *rows)
    _check_place(logits_NV, *rows)


def _check_place(logits_NV: Tensor, *rows: Tensor | float | None) -> None:
    """Raise RuntimeError unless all tensors are on the device of the logits and have one number per row."""
    for row in rows:
        if isinstance(row, Tensor) and row.device != logits_NV.device:
            raise RuntimeError(
                f"expected all tensors on the same device, {logits_NV.device}, and found one on {row.device}"
            )
        if isinstance(row, Tensor) and row.shape != logits_NV.shape[:1]:
            raise RuntimeError(f"need one number per row, {len(logits_NV)}, got {tuple(row.shape)}")


def row_loss_(
    logits_NV: Tensor,
    ids_N: Tensor,
    loss_of: LossOf,
    *,
    temperature: float,
    grad: bool,
    grad_output: float = 1.0,
    first_row: int = 0,
    dlogits_NV: Tensor | None = None,
    entropy_weights_N: Tensor | None = None,
    row_stats: Callable[..., None] = row_stats,
    dlogits_: Callable[..., None] = dlogits_,
) -> RowLoss:
    """See `torch_ops.row_loss_`. Sums are in float32 for any type of logits. row_stats, dlogits_: the two passes
    over the logits."""
    num_rows = len(logits_NV)
    dlogits_NV = logits_NV if dlogits_NV is None else dlogits_NV
    for given in (logits_NV, dlogits_NV):
        if given.stride(1) != 1:
            raise ValueError(f"the columns of a row must be adjacent, got strides {given.stride()}")
    found = RowLoss.empty(num_rows, like=logits_NV)
    if not num_rows:
        return found
    ids_N, inv_t = ids_N.contiguous(), 1.0 / temperature
    max_N, log_sum_N = torch.empty_like(found.loss_N), torch.empty_like(found.loss_N)
    row_stats(logits_NV, ids_N, found.logprobs_N, found.entropy_N, max_N, log_sum_N, inv_t)
    named = slice(first_row, first_row + num_rows)
    loss_N, slope_N = loss_and_slope(loss_of, found.logprobs_N, named, grad=grad, grad_output=grad_output)
    found.loss_N.copy_(loss_N)
    pull_N = weights_N = None
    if entropy_weights_N is not None:
        found.loss_N.add_(entropy_weights_N[named] * found.entropy_N)
        weights_N = entropy_weights_N[named] * grad_output
        pull_N = slope_N + weights_N * found.entropy_N
    if grad:
        dlogits_(dlogits_NV, logits_NV, ids_N, max_N, log_sum_N, slope_N.contiguous(), inv_t, pull_N, weights_N)
    return found
