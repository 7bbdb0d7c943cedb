"""The loss of rows of logits in plain torch, in blocks of rows, in place.

Used on a CPU and on devices without Triton. `triton_ops` has the same function.

    logits block ──> max, sum, weighted sum ──> log-probs, entropy ──> loss_of ──> d logits

Legend: N rows, V vocabulary, B rows of one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rocstar.kernels.row_loss import LossOf, RowLoss, loss_and_slope

BLOCK_BYTES = 4 << 20  # of float32 logits at a time: two such buffers stay in the last-level cache
FLOOR = -1e30  # replaces -inf where 0 * -inf would be NaN


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
) -> RowLoss:
    """Return log-prob, entropy and loss of each row; with `grad`, write the gradient of the summed loss in
    the logits.

    Args:
        logits_NV: any floating type; sums are in float32, or float64 for float64. Unchanged without `grad`.
        ids_N: int64, within the vocabulary.
        loss_of, temperature: see `linear_loss`.
        grad, grad_output: whether to compute the gradient, and its factor.
        first_row: the index of the first of these rows for `loss_of` and `entropy_weights_N`.
        dlogits_NV: the output for the gradient, of any floating type; None: overwrites the logits.
        entropy_weights_N: see `linear_loss`.
    """
    num_rows, vocabulary = logits_NV.shape
    dlogits_NV = logits_NV if dlogits_NV is None else dlogits_NV
    found = RowLoss.empty(num_rows, like=logits_NV)
    size = max(1, BLOCK_BYTES // (4 * max(vocabulary, 1)))
    buffers_2BV = found.loss_N.new_empty(2, min(size, num_rows), vocabulary)
    for start in range(0, num_rows, size):
        rows = slice(start, min(start + size, num_rows))
        x_BV, ids_B1 = logits_NV[rows], ids_N[rows, None]
        shifted_BV, exp_BV = buffers_2BV[:, : len(x_BV)]
        max_B1 = x_BV.amax(-1, keepdim=True).to(exp_BV.dtype)
        torch.sub(x_BV, max_B1, out=shifted_BV)
        if temperature != 1:
            shifted_BV.div_(temperature)
        torch.exp(shifted_BV, out=exp_BV)
        sum_B = exp_BV.sum(-1)
        logprobs_B = shifted_BV.gather(1, ids_B1)[:, 0] - sum_B.log()
        named = slice(first_row + rows.start, first_row + rows.stop)
        loss_B, slope_B = loss_and_slope(loss_of, logprobs_B, named, grad=grad, grad_output=grad_output)
        entropy_B = sum_B.log() - _weighted_sum(exp_BV, shifted_BV) / sum_B
        found.loss_N[rows], found.logprobs_N[rows], found.entropy_N[rows] = loss_B, logprobs_B, entropy_B
        at_token_B, scale_B = sum_B, -slope_B / (temperature * sum_B)
        if entropy_weights_N is not None:
            weights_B = entropy_weights_N[named]
            found.loss_N[rows] += weights_B * entropy_B
            # d H / d z_c = -p_c (log p_c + H); the weighted sum left no -inf in `shifted`
            weights_B = weights_B * grad_output
            shifted_BV.mul_(weights_B[:, None]).add_((slope_B + weights_B * (entropy_B - sum_B.log()))[:, None])
            exp_BV.mul_(shifted_BV)
            at_token_B, scale_B = slope_B * sum_B, -1 / (temperature * sum_B)
        if grad:
            # d z_c = slope (1[c = id] - p_c), with p_c = exp_c / sum
            exp_BV.scatter_add_(1, ids_B1, -at_token_B[:, None])
            torch.mul(exp_BV, scale_B[:, None], out=dlogits_NV[rows])
    return found


def _weighted_sum(exp_BV: Tensor, shifted_BV: Tensor) -> Tensor:
    """Return Σ_c z_c e^z_c, in which a forbidden token (-inf) counts as 0."""
    weighted_B: Tensor = torch.linalg.vecdot(exp_BV, shifted_BV)
    if not bool(weighted_B.isfinite().all()):
        weighted_B = torch.linalg.vecdot(exp_BV, shifted_BV.clamp_(min=FLOOR))
    return weighted_B
