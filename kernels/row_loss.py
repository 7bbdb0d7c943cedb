"""The interface of all implementations of the loss at the head, and the call of the loss function.

Legend: N rows of a microbatch, one per predicted token; B some of them, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LossOf = Callable[[Tensor, slice], Tensor]
"""(log-probs_B, their rows of the microbatch) -> the contribution of each to the loss, (B,).

A pure function of torch that autograd can differentiate in the log-probs. It is called once for each row,
must not synchronize with the device, and need not handle values that are not finite.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoss:
    """The detached values of each row, in float32, or float64 for float64 logits.

    Invariant: a row whose log-prob is not finite has loss NaN and gradient NaN, so that the error is visible.
    """

    loss_N: Tensor
    """The loss is the sum."""
    logprobs_N: Tensor
    """Natural logarithms of softmax(logits / temperature) at the row's token."""
    entropy_N: Tensor
    """Nats, of softmax(logits / temperature)."""

    @classmethod
    def empty(cls, num_rows: int, like: Tensor) -> RowLoss:
        """Return uninitialized values on the device of `like`, at least float32."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        first, second, third = torch.empty(3, num_rows, dtype=dtype, device=like.device)
        return cls(loss_N=first, logprobs_N=second, entropy_N=third)


def loss_and_slope(
    loss_of: LossOf, logprobs_B: Tensor, rows: slice, *, grad: bool, grad_output: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the loss of some rows, and its derivative in their log-probs times `grad_output` (zeros without
    `grad`).

    Raises:
        ValueError: `loss_of` did not return one value per row.
    """
    with torch.enable_grad():
        leaf_B = logprobs_B.detach().requires_grad_(grad)
        loss_B = loss_of(leaf_B, rows)
        loss = loss_B.sum()
    if loss_B.shape != leaf_B.shape:
        raise ValueError(f"loss_of must return shape {tuple(leaf_B.shape)}, got {tuple(loss_B.shape)}")
    slope_B = torch.autograd.grad(loss, leaf_B)[0] if grad else torch.zeros_like(leaf_B)
    if grad_output != 1:
        slope_B = slope_B * grad_output
    # The loss may clamp values that are not finite, which would hide them.
    broken_B = ~logprobs_B.isfinite()
    return loss_B.detach().masked_fill(broken_B, math.nan), slope_B.masked_fill(broken_B, math.nan)


def of_all_rows(loss_of: LossOf, logprobs_N: Tensor) -> LossOf:
    """Return a loss with the values and slopes of `loss_of` at `logprobs_N`, which is called once with all rows.

    For a loss in which rows depend on each other, as those of a sequence: it needs all log-probs before the gradient
    of any of them, and serves a second pass that makes the same log-probs again.
    """
    loss_N, slope_N = loss_and_slope(loss_of, logprobs_N, slice(0, len(logprobs_N)), grad=True)
    return lambda logprobs_B, rows: loss_N[rows] + slope_N[rows] * (logprobs_B - logprobs_B.detach())
