"""The number of rows of logits that exist at a time.

Each chunk but the first reads and writes the gradient of the weight: few large chunks are faster, small ones
need less memory. Beyond MOST_ROWS this traffic is about 1% of the products on an H100.
"""

from __future__ import annotations

import torch

ROWS_CPU = 256
LEAST_ROWS = 256
MOST_ROWS = 32768
STEP = 256
"""The rows of a chunk are a multiple of it: whole tiles of a matrix product."""
SHARE = 0.5
"""The share of the free memory; the rest is for the caller's tensors that exist beside the logits."""


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
    """Return the rows of each chunk on a device with `free_bytes`: as few chunks as fit, all of about the
    same size.

    The rows that fit are rounded down to a power of two, because free memory differs slightly between runs
    and the sums over chunks should not.

    Args:
        free_bytes: bytes that can be allocated.
        rows: rows in total.
        vocabulary: columns of the logits.
        hidden: hidden size.
        dtype: type of hidden states and weight.
        head_dtype: type of the logits.
        grad: True if gradients of hidden states and weight are computed.
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
    """Return the largest power of two of at most `most` rows, within the bounds."""
    fit = LEAST_ROWS
    while 2 * fit <= min(most, MOST_ROWS):
        fit *= 2
    return fit


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can be allocated on a GPU: free memory and unused memory of torch's allocator."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
