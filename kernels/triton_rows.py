"""The sum of each row's readers with a Triton kernel: the gradient of `rows.read_rows` on a GPU.

A program reads a block of columns of one row: the gradients of the row's readers in order, and writes their
sum once. Without atomics and sorting the bits are the same in every run. A row with one reader costs one read
and one write.
"""

# Kernel arguments (pointers, device scalars) have no types outside triton.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 1024
"""The maximum of columns per program."""


@triton.jit
def sum_readers_kernel(a_ptr, b_ptr, begins_ptr, readers_ptr, a_sum_ptr, b_sum_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    a = tl.zeros((BLOCK,), tl.float32)
    b = tl.zeros((BLOCK,), tl.float32)
    for place in range(tl.load(begins_ptr + row), tl.load(begins_ptr + row + 1)):
        at = tl.load(readers_ptr + place).to(tl.int64) * width + columns
        a += tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float32)
        b += tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    at = row * width + columns
    tl.store(a_sum_ptr + at, a.to(a_sum_ptr.dtype.element_ty), mask=inside)
    tl.store(b_sum_ptr + at, b.to(b_sum_ptr.dtype.element_ty), mask=inside)


def launch(width: int, lanes: int) -> tuple[int, int]:
    """Return the columns and warps of a program: 16 bytes of half precision per lane."""
    block = min(MAX_BLOCK, triton.next_power_of_2(width))
    return block, max(1, block // (8 * lanes))


def sum_readers(a_PW: Tensor, b_PW: Tensor, begins_T1: Tensor, readers_P: Tensor) -> tuple[Tensor, Tensor]:
    """See `rows.sum_readers`. Both inputs contiguous."""
    num_rows, width = len(begins_T1) - 1, a_PW.shape[1]
    a_TW, b_TW = a_PW.new_empty(num_rows, width), b_PW.new_empty(num_rows, width)
    block, num_warps = launch(width, lanes=64 if torch.version.hip else 32)
    grid = (num_rows, triton.cdiv(width, block))
    sum_readers_kernel[grid](a_PW, b_PW, begins_T1, readers_P, a_TW, b_TW, width, BLOCK=block, num_warps=num_warps)
    return a_TW, b_TW
