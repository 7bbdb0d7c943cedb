"""The loss of rows of logits in two passes over them; the passes are parameters.

    row_stats ──> log-probs, entropy, max, log of sum ──> loss_of, in torch ──> slope ──> dlogits_

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rocstar.kernels.row_loss import LossOf, RowLoss, loss_and_slope


class RowStats(Protocol):
    """Writes log-prob, entropy, maximum and log of the sum of each row."""

    def __call__(
        self,
        logits_NV: Tensor,
        ids_N: Tensor,
        logprobs_N: Tensor,
        entropy_N: Tensor,
        max_N: Tensor,
        log_sum_N: Tensor,
        inv_t: float,
    ) -> None: ...


class Dlogits(Protocol):
    """Writes the gradient of the loss in the logits, given its slope in the log-probs."""

    def __call__(
        self,
        dlogits_NV: Tensor,
        logits_NV: Tensor,
        ids_N: Tensor,
        max_N: Tensor,
        log_sum_N: Tensor,
        slope_N: Tensor,
        inv_t: float,
    ) -> None: ...


def row_loss_(
    logits_NV: Tensor,
    ids_N: Tensor,
    loss_of: LossOf,
    *,
    temperature: float,
    grad: bool,
    grad_output: float,
    first_row: int,
    dlogits_NV: Tensor | None,
    row_stats: RowStats,
    dlogits_: Dlogits,
) -> RowLoss:
    """See `torch_ops.row_loss_`. Sums are in float32 for any type of logits."""
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
    if grad:
        dlogits_(dlogits_NV, logits_NV, ids_N, max_N, log_sum_N, slope_N.contiguous(), inv_t)
    return found
