"""The passes of layers.py as Triton kernels: each reads its inputs once and writes its outputs once.

Arithmetic is in float32. A norm in half precision is rounded where the model rounds it: after normalising,
and after the multiplication by the weight. A rotation is rounded once, at its end.

A program takes a tile of whole rows, THREAD_BYTES per thread; several short rows share a tile. A kernel
that makes a weight's gradient runs a limited number of programs: each adds up its tiles and writes one row of
partial sums, which `sum_rows_kernel` adds. No atomics: equal inputs give equal bits.
With TRITON_INTERPRET=1 at import the same code runs on CPU tensors.

Legend: N rows, D size of a row, h = D / 2, T tokens, H heads, P programs.
"""

# Kernel arguments (pointers, device scalars) have no types outside triton.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

WARP_SIZE = 64 if torch.version.hip else 32
THREAD_BYTES = 32
"""Bytes per thread of each tensor: two 16-byte loads."""
TILE = 2048
"""The fewest numbers of a tile."""
MAX_THREADS = 1024
UNIT_THREADS = {32: 640, 64: 1024}
"""Threads per multiprocessor of a kernel that computes a weight's gradient, by warp size: as many as have
registers at a time. More programs would wait for the first ones and write more partial sums."""
SUM_ROWS, SUM_COLUMNS, SUM_WARPS = 64, 32, 4
GATED_BLOCK, GATED_WARPS = 2048, {32: 4, 64: 2}


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows of a program, and columns, a power of two that holds a whole row."""

    rows: int
    block: int
    num_warps: int
    per_unit: int
    """Programs per multiprocessor of a kernel that makes a weight's gradient."""


@functools.cache
def tile_of(size: int, item_bytes: int, warp_size: int = WARP_SIZE) -> RowTile:
    """The tile for rows of `size` numbers of `item_bytes` bytes."""
    block = max(16, triton.next_power_of_2(size))
    rows = max(1, TILE // block)
    threads = min(MAX_THREADS, rows * block * item_bytes // THREAD_BYTES)
    num_warps = max(1, threads // warp_size)
    return RowTile(rows, block, num_warps, max(1, UNIT_THREADS[warp_size] // (num_warps * warp_size)))


# ---- parts ----


@triton.jit
def _tile(tile, N, ROWS: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Rows of a tile, its columns, and which of its places exist."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    return rows, columns, (rows < N)[:, None] & (columns < SIZE)[None, :]


@triton.jit
def _rounded(x, like):
    """`x` with the values that the element type of a pointer can hold."""
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _turned(a, b, cos, sin):
    """The halves of rows, rotated."""
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _heads(rows, H: tl.constexpr, stride_t, stride_h):
    """Offsets of rows (token, head), (N, 1)."""
    t = rows // H
    return (t.to(tl.int64) * stride_t + (rows - t * H).to(tl.int64) * stride_h)[:, None]


# ---- norms ----


@triton.jit(do_not_specialize=("N",))
def norm_kernel(x_ptr, weight_ptr, out_ptr, N, stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr):
    rows, columns, real = _tile(tl.program_id(0), N, ROWS, BLOCK, D)
    at = rows.to(tl.int64)[:, None]
    weight = tl.load(weight_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at * stride + columns[None, :], mask=real, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    out = _rounded(x * scale, out_ptr) * weight[None, :]
    tl.store(out_ptr + at * D + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=("N",))
def norm_grad_kernel(
    x_ptr, weight_ptr, grad_ptr, add_ptr, dx_ptr, partial_ptr, N, stride, grad_stride, add_stride, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """`ADDS`: another gradient of x is added to the one through the norm."""
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows, columns, real = _tile(tile, N, ROWS, BLOCK, D)
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * stride + columns[None, :], mask=real, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at * grad_stride + columns[None, :], mask=real, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        y = x * scale
        dweight += grad * y
        grad *= weight
        dx = (grad - y * (tl.sum(grad * y, 1) / D)[:, None]) * scale
        if ADDS:
            dx += tl.load(add_ptr + at * add_stride + columns[None, :], mask=real, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at * D + columns[None, :], dx.to(dx_ptr.dtype.element_ty), mask=real)
    tl.store(partial_ptr + tl.program_id(0) * D + columns, tl.sum(dweight, 0), mask=columns < D)


@triton.jit(do_not_specialize=("P",))
def sum_rows_kernel(partial_ptr, out_ptr, P, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out_D = sum of partial_PD over its rows."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, P, ROWS):
        rows = first + tl.arange(0, ROWS)
        real = (rows < P)[:, None] & (columns < D)[None, :]
        total += tl.load(partial_ptr + rows[:, None] * D + columns[None, :], mask=real, other=0.0)
    tl.store(out_ptr + columns, tl.sum(total, 0).to(out_ptr.dtype.element_ty), mask=columns < D)


# ---- norms of heads, and rotation ----


@triton.jit(do_not_specialize=("N",))
def norm_rotate_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, N, stride_t, stride_h, cos_stride, sin_stride, eps, sign,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, H: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """A row is a head of a token; `sign` -1 turns back. Without `NORM` the rotation alone."""
    rows, columns, real = _tile(tl.program_id(0), N, ROWS, BLOCK, HALF)
    x_at = _heads(rows, H, stride_t, stride_h) + columns[None, :]
    a = tl.load(x_ptr + x_at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + x_at + HALF, mask=real, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + _heads(rows, H, cos_stride, 0) + columns[None, :], mask=real, other=0.0)
    sin = tl.load(sin_ptr + _heads(rows, H, sin_stride, 0) + columns[None, :], mask=real, other=0.0)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        w_a = tl.load(weight_ptr + columns, mask=columns < HALF, other=0.0).to(tl.float32)
        w_b = tl.load(weight_ptr + HALF + columns, mask=columns < HALF, other=0.0).to(tl.float32)
        a = _rounded(_rounded(a * scale, out_ptr) * w_a[None, :], out_ptr)
        b = _rounded(_rounded(b * scale, out_ptr) * w_b[None, :], out_ptr)
    a, b = _turned(a, b, cos.to(tl.float32), sin.to(tl.float32) * sign)
    out_at = rows.to(tl.int64)[:, None] * (2 * HALF) + columns[None, :]
    tl.store(out_ptr + out_at, a.to(out_ptr.dtype.element_ty), mask=real)
    tl.store(out_ptr + out_at + HALF, b.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=("N",))
def norm_rotate_grad_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, grad_ptr, dx_ptr, partial_ptr, N,
    stride_t, stride_h, grad_stride_t, grad_stride_h, cos_stride, sin_stride, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    w_a = tl.load(weight_ptr + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    w_b = tl.load(weight_ptr + HALF + columns, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    dw_a = tl.zeros((ROWS, BLOCK), tl.float32)
    dw_b = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows, columns, real = _tile(tile, N, ROWS, BLOCK, HALF)
        x_at = _heads(rows, H, stride_t, stride_h) + columns[None, :]
        a = tl.load(x_ptr + x_at, mask=real, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + x_at + HALF, mask=real, other=0.0).to(tl.float32)
        g_at = _heads(rows, H, grad_stride_t, grad_stride_h) + columns[None, :]
        g_a = tl.load(grad_ptr + g_at, mask=real, other=0.0).to(tl.float32)
        g_b = tl.load(grad_ptr + g_at + HALF, mask=real, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + _heads(rows, H, cos_stride, 0) + columns[None, :], mask=real, other=0.0)
        sin = tl.load(sin_ptr + _heads(rows, H, sin_stride, 0) + columns[None, :], mask=real, other=0.0)
        g_a, g_b = _turned(g_a, g_b, cos.to(tl.float32), -sin.to(tl.float32))
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        a *= scale
        b *= scale
        dw_a += g_a * a
        dw_b += g_b * b
        g_a *= w_a
        g_b *= w_b
        mean = (tl.sum(g_a * a + g_b * b, 1) / (2 * HALF))[:, None]
        out_at = rows.to(tl.int64)[:, None] * (2 * HALF) + columns[None, :]
        tl.store(dx_ptr + out_at, ((g_a - a * mean) * scale).to(dx_ptr.dtype.element_ty), mask=real)
        tl.store(dx_ptr + out_at + HALF, ((g_b - b * mean) * scale).to(dx_ptr.dtype.element_ty), mask=real)
    partial_ptr += tl.program_id(0) * (2 * HALF)
    tl.store(partial_ptr + columns, tl.sum(dw_a, 0), mask=columns < HALF)
    tl.store(partial_ptr + HALF + columns, tl.sum(dw_b, 0), mask=columns < HALF)


# ---- SwiGLU ----


@triton.jit
def gated_kernel(gate_ptr, up_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """silu(gate) * up; silu is rounded before the product, as the model does it."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    out = _rounded(gate * tl.sigmoid(gate), out_ptr) * up
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=at < N)


@triton.jit
def gated_grad_kernel(gate_ptr, up_ptr, grad_ptr, dgate_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """The gradient of the product becomes that of `up`, in place; the product is made again."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    silu = _rounded(gate * share, out_ptr)
    dgate = grad * up * share * (1.0 + gate * (1.0 - share))
    tl.store(out_ptr + at, (silu * up).to(out_ptr.dtype.element_ty), mask=at < N)
    tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=at < N)
    tl.store(grad_ptr + at, (grad * silu).to(grad_ptr.dtype.element_ty), mask=at < N)


# ---- launching; layer_ops.py says what each takes and returns ----


def norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    x_ND, out = _rows(x), torch.empty_like(x, memory_format=torch.contiguous_format)
    num, size = x_ND.shape
    tile = tile_of(size, x.itemsize)
    norm_kernel[(triton.cdiv(num, tile.rows),)](
        x_ND, weight_D.contiguous(), out, num, x_ND.stride(0), eps,
        ROWS=tile.rows, BLOCK=tile.block, D=size, num_warps=tile.num_warps,
    )  # fmt: skip
    return out


def norm_grad(x: Tensor, weight_D: Tensor, eps: float, grad: Tensor, add: Tensor | None) -> tuple[Tensor, Tensor]:
    x_ND, grad_ND = _rows(x), _rows(grad)
    add_ND = grad_ND if add is None else _rows(add)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    num, size = x_ND.shape
    tile = tile_of(size, x.itemsize)
    partial_PD = _partial_sums(x_ND, tile)
    norm_grad_kernel[(len(partial_PD),)](
        x_ND, weight_D.contiguous(), grad_ND, add_ND, dx, partial_PD, num,
        x_ND.stride(0), grad_ND.stride(0), add_ND.stride(0), eps,
        ROWS=tile.rows, BLOCK=tile.block, D=size, ADDS=add is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    return dx, _sum_rows(partial_PD, weight_D)


def norm_rotate(
    x_THD: Tensor, weight_D: Tensor | None, eps: float, cos_TD: Tensor, sin_TD: Tensor, sign: float
) -> Tensor:
    x_THD, cos_TD, sin_TD = _dense(x_THD), _dense(cos_TD), _dense(sin_TD)
    out_THD = torch.empty_like(x_THD, memory_format=torch.contiguous_format)
    tokens, heads, size = x_THD.shape
    tile = tile_of(size, x_THD.itemsize)
    norm_rotate_kernel[(triton.cdiv(tokens * heads, tile.rows),)](
        x_THD, x_THD if weight_D is None else weight_D.contiguous(), cos_TD, sin_TD, out_THD, tokens * heads,
        x_THD.stride(0), x_THD.stride(1), cos_TD.stride(0), sin_TD.stride(0), eps, sign,
        ROWS=tile.rows, BLOCK=triton.next_power_of_2(size // 2), HALF=size // 2, H=heads,
        NORM=weight_D is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    return out_THD


def norm_rotate_grad(
    x_THD: Tensor, weight_D: Tensor, eps: float, cos_TD: Tensor, sin_TD: Tensor, grad_THD: Tensor
) -> tuple[Tensor, Tensor]:
    x_THD, grad_THD, cos_TD, sin_TD = (_dense(x) for x in (x_THD, grad_THD, cos_TD, sin_TD))
    dx_THD = torch.empty_like(x_THD, memory_format=torch.contiguous_format)
    tokens, heads, size = x_THD.shape
    tile = tile_of(size, x_THD.itemsize)
    partial_PD = _partial_sums(dx_THD.view(-1, size), tile)
    norm_rotate_grad_kernel[(len(partial_PD),)](
        x_THD, weight_D.contiguous(), cos_TD, sin_TD, grad_THD, dx_THD, partial_PD, tokens * heads,
        x_THD.stride(0), x_THD.stride(1), grad_THD.stride(0), grad_THD.stride(1),
        cos_TD.stride(0), sin_TD.stride(0), eps,
        ROWS=tile.rows, BLOCK=triton.next_power_of_2(size // 2), HALF=size // 2, H=heads,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return dx_THD, _sum_rows(partial_PD, weight_D)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    gated_kernel[(triton.cdiv(gate.numel(), GATED_BLOCK),)](
        gate, up, out, gate.numel(), BLOCK=GATED_BLOCK, num_warps=GATED_WARPS[WARP_SIZE]
    )
    return out


def gated_grad_(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = gate.contiguous(), up.contiguous()
    if not grad.is_contiguous():
        raise ValueError(f"the gradient must be contiguous, its strides are {grad.stride()}")
    dgate, out = torch.empty_like(gate), torch.empty_like(gate)
    gated_grad_kernel[(triton.cdiv(gate.numel(), GATED_BLOCK),)](
        gate, up, grad, dgate, out, gate.numel(), BLOCK=GATED_BLOCK, num_warps=GATED_WARPS[WARP_SIZE]
    )
    return dgate, out


def _dense(x: Tensor) -> Tensor:
    """With adjacent numbers in each row; a copy if need be."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows(x: Tensor) -> Tensor:
    """(N, D), a copy if the rows are not evenly spaced."""
    return _dense(x.reshape(-1, x.shape[-1]))


def _partial_sums(x_ND: Tensor, tile: RowTile) -> Tensor:
    """Room for one row per program."""
    num_programs = min(_multiprocessors(x_ND.device) * tile.per_unit, triton.cdiv(len(x_ND), tile.rows))
    return torch.empty(num_programs, x_ND.shape[1], dtype=torch.float32, device=x_ND.device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _sum_rows(partial_PD: Tensor, like_D: Tensor) -> Tensor:
    num, size = partial_PD.shape
    out_D = torch.empty(size, dtype=like_D.dtype, device=like_D.device)
    sum_rows_kernel[(triton.cdiv(size, SUM_COLUMNS),)](
        partial_PD, out_D, num, size, ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS, num_warps=SUM_WARPS
    )
    return out_D
