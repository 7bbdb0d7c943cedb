"""The Triton kernels as operators of torch, so that a step can be rehearsed without a GPU.

`triton_ops` launches the kernels. Here each launch is an operator of the library `rocstar` with an
implementation for fake tensors, which only checks shapes. This module does not import triton.
"""

from __future__ import annotations

from torch import Tensor
from torch.library import custom_op

from rocstar.kernels import two_passes
from rocstar.kernels.row_loss import LossOf, RowLoss


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
    """See `two_passes.RowStats`."""
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
) -> None:
    """See `two_passes.Dlogits`."""
    from rocstar.kernels import triton_ops

    triton_ops.launch_dlogits_(dlogits_NV, logits_NV, ids_N, max_N, log_sum_N, slope_N, inv_t)


@row_stats.register_fake
def _fill_nothing(logits_NV: Tensor, *rows: Tensor | float) -> None:
    _check_place(logits_NV, *rows)


@dlogits_.register_fake
def _change_nothing(dlogits_NV: Tensor, logits_NV: Tensor, *rows: Tensor | float) -> None:
    if dlogits_NV.shape != logits_NV.shape:
        raise RuntimeError(f"need a gradient of shape {tuple(logits_NV.shape)}, got {tuple(dlogits_NV.shape)}")
    _check_place(dlogits_NV, *rows)
    _check_place(logits_NV, *rows)


def _check_place(logits_NV: Tensor, *rows: Tensor | float) -> None:
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
) -> RowLoss:
    """See `torch_ops.row_loss_`."""
    return two_passes.row_loss_(
        logits_NV,
        ids_N,
        loss_of,
        temperature=temperature,
        grad=grad,
        grad_output=grad_output,
        first_row=first_row,
        dlogits_NV=dlogits_NV,
        row_stats=row_stats,
        dlogits_=dlogits_,
    )
