"""Attention of short sequences on a CPU as batched products, a few sequences at a time.

torch's CPU kernel multiplies blocks of 32 queries, each with a BLAS call. These are too small for oneDNN,
which takes three times as long as MKL. Whole score matrices are large enough, and those of a few sequences
stay in the cache. For longer sequences torch's kernel is faster with either library.

Legend: S sequences, C of them at a time, H query heads, K key-value heads, Q queries, L keys, D head
size, B = C K products of a batch, R rows of all query heads that share a key-value head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rocstar.kernels import cpu_products

MAX_SCORES = 1 << 20
"""The maximum of scores of one sequence over all heads: 4 MB."""
CHUNK_SCORES = 1 << 18
"""The scores of the sequences that are computed at a time."""


def is_faster(q_SHQD: Tensor, k_SKLD: Tensor) -> bool:
    """Return True if `attend` is faster than torch's kernel for these."""
    num_scores = q_SHQD.shape[1] * q_SHQD.shape[2] * k_SKLD.shape[2]
    return (
        q_SHQD.device.type == "cpu"
        and q_SHQD.dtype == torch.float32
        and num_scores <= MAX_SCORES
        and cpu_products.are_fast()
    )


def attend(q_SHQD: Tensor, k_SKLD: Tensor, v_SKLD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(q @ k.T * scale + mask) @ v, (S, H, Q, D).

    mask: 0 or -inf, (S, 1, Q, L); None: causal, with as many queries as keys. Every query needs a visible
    key. The probabilities, S H Q L floats, are kept for backward.
    """
    if mask is None:
        num_queries, num_keys = q_SHQD.shape[2], k_SKLD.shape[2]
        hidden_QL = torch.ones(num_queries, num_keys, dtype=torch.bool).triu_(1)
        mask = torch.zeros(num_queries, num_keys).masked_fill_(hidden_QL, float("-inf"))
        mask = mask.expand(len(q_SHQD), 1, -1, -1)
    out: Tensor = _Attend.apply(q_SHQD, k_SKLD, v_SKLD, mask, scale)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_SHQD: Tensor, k_SKLD: Tensor, v_SKLD: Tensor, mask_S1QL: Tensor, scale: float) -> Tensor:
        (num, heads, queries, _), (groups, keys) = q_SHQD.shape, k_SKLD.shape[1:3]
        q, k, v = q_SHQD.contiguous(), k_SKLD.contiguous(), v_SKLD.contiguous()
        out = torch.empty_like(q)
        step = max(1, CHUNK_SCORES // (heads * queries * keys))
        kept = []
        for begin in range(0, num, step):
            part = slice(begin, begin + step)
            q_BRD, k_BLD, v_BLD = (_rows(x[part], groups) for x in (q, k, v))
            scores = torch.bmm(q_BRD, k_BLD.transpose(1, 2)).mul_(scale).view(-1, heads, queries, keys)
            p_BRL = torch.softmax(scores.add_(mask_S1QL[part]), -1).view(len(q_BRD), -1, keys)
            torch.bmm(p_BRL, v_BLD, out=_rows(out[part], groups))
            kept.append(p_BRL)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.step, ctx.scale = step, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_SHQD: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        dout, groups = dout_SHQD.contiguous(), k.shape[1]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for number, p_BRL in enumerate(kept):
            part = slice(number * ctx.step, (number + 1) * ctx.step)
            q_BRD, k_BLD, v_BLD, dout_BRD = (_rows(x[part], groups) for x in (q, k, v, dout))
            dq_BRD, dk_BLD, dv_BLD = (_rows(x[part], groups) for x in (dq, dk, dv))
            torch.bmm(p_BRL.transpose(1, 2), dout_BRD, out=dv_BLD)
            dp_BRL = torch.bmm(dout_BRD, v_BLD.transpose(1, 2))
            ds_BRL = torch._softmax_backward_data(dp_BRL, p_BRL, -1, p_BRL.dtype).mul_(ctx.scale)
            torch.bmm(ds_BRL, k_BLD, out=dq_BRD)
            torch.bmm(ds_BRL.transpose(1, 2), q_BRD, out=dk_BLD)
        return dq, dk, dv, None, None


def _rows(x_CHQD: Tensor, groups: int) -> Tensor:
    """Return a view with one matrix per sequence and key-value head: the rows of all query heads that share
    it."""
    num, heads, rows, size = x_CHQD.shape
    return x_CHQD.view(num * groups, heads // groups * rows, size)
