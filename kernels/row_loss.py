"""What every implementation of the loss at the head takes and returns; here the loss itself is called.

Legend: N rows of a microbatch, one per predicted token; B some of them, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LossOf = Callable[[Tensor, slice], Tensor]
"""(log-probs_B, their rows of the microbatch) -> what each of them adds to the loss, (B,).

A pure function of torch that autograd can differentiate in the log-probs. It is called once for each row. It
must not wait for the device, and need not look for values that are not finite.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoss:
    """What happened to each row, detached; float32, or float64 where the logits are.

    Invariant: a row whose log-prob is not finite has loss NaN and gradient NaN, so that it cannot pass for a
    number.
    """

    loss_N: Tensor
    """The loss is the sum."""
    logprobs_N: Tensor
    """Natural logarithms of softmax(logits / temperature) at the row's token."""
    entropy_N: Tensor
    """Nats, of softmax(logits / temperature)."""

    @classmethod
    def empty(cls, num_rows: int, like: Tensor) -> RowLoss:
        """Room for the rows of `like`, at least in float32."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        first, second, third = torch.empty(3, num_rows, dtype=dtype, device=like.device)
        return cls(loss_N=first, logprobs_N=second, entropy_N=third)


def loss_and_slope(
    loss_of: LossOf, logprobs_B: Tensor, rows: slice, *, grad: bool, grad_output: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The loss of some rows and its derivative in their log-probs times `grad_output`; without `grad`, zeros.

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
    # The loss may clamp what is not finite, and a clamped value would pass for a number.
    broken_B = ~logprobs_B.isfinite()
    return loss_B.detach().masked_fill(broken_B, math.nan), slope_B.masked_fill(broken_B, math.nan)
