"""How many rows of logits exist at a time.

Each chunk but the first reads and writes the gradient of the weight: few large chunks are faster, small ones
need less memory. Beyond MOST_ROWS that traffic is about 1% of the products on an H100.
"""

from __future__ import annotations

import torch

ROWS_CPU = 256
LEAST_ROWS = 256
MOST_ROWS = 32768
STEP = 256
"""Rows of a chunk are a multiple of it: whole tiles of a matrix product."""
SHARE = 0.5
"""Of the memory that is free; the rest is for what the caller makes before the logits are gone."""


def rows_per_chunk(
    free_bytes: int,
    rows: int,
    *,
    vocabulary: int,
    hidden: int,
    dtype: torch.dtype,
    head_dtype: torch.dtype,
    grad: bool,
) -> int:
    """Rows of each chunk on a device with `free_bytes`: as few chunks as fit, all of about the same size.

    What fits is rounded down to a power of two: free memory differs a little from run to run, and the sums
    over chunks should not.

    Args:
        free_bytes: what can be allocated.
        rows: rows in all.
        vocabulary: columns of the logits.
        hidden: hidden size.
        dtype: of hidden states and weight.
        head_dtype: of the logits.
        grad: whether gradients of hidden states and weight are made.
    """
    row_bytes = vocabulary * head_dtype.itemsize
    kept_bytes = 0
    if grad:
        row_bytes += vocabulary * dtype.itemsize if head_dtype != dtype else 0  # d logits in the model's type
        kept_bytes = (rows + vocabulary) * hidden * dtype.itemsize
    fit = _power_of_two(SHARE * (free_bytes - kept_bytes) / row_bytes)
    if rows > fit and grad:  # then d weight is summed in float32
        kept_bytes += vocabulary * hidden * torch.float32.itemsize
        fit = _power_of_two(SHARE * (free_bytes - kept_bytes) / row_bytes)
    chunks = max(1, -(-rows // fit))
    return max(1, -(-rows // (chunks * STEP))) * STEP


def _power_of_two(most: float) -> int:
    """The largest power of two of rows that is no more than `most`, within the bounds."""
    fit = LEAST_ROWS
    while 2 * fit <= min(most, MOST_ROWS):
        fit *= 2
    return fit


def free_bytes(device: torch.device) -> int:
    """What can be allocated on a GPU: free memory, and what torch's allocator holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
