"""Attention of short sequences on a CPU as plain batched products, a few sequences at a time.

torch's own kernel for CPUs multiplies blocks of 32 queries, each a call of the BLAS. For oneDNN those are too
small: it takes three times as long with them as MKL. Whole score matrices are large enough, and stay in the
cache while some sequences' are worked on. Beyond that torch's kernel is the faster one, with either library.

Legend: S sequences, C of them worked on at once, H query heads, K key-value heads, Q queries, L keys, D head
size, B = C K products of a batch, R rows of all query heads that share a key-value head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rocstar.kernels import cpu_products

MAX_SCORES = 1 << 20
"""Scores of one sequence over all heads at most: 4 MB."""
CHUNK_SCORES = 1 << 18
"""Scores of the sequences that are worked on at once."""


def is_faster(q_SHQD: Tensor, k_SKLD: Tensor) -> bool:
    """Whether `attend` is meant for these."""
    num_scores = q_SHQD.shape[1] * q_SHQD.shape[2] * k_SKLD.shape[2]
    return (
        q_SHQD.device.type == "cpu"
        and q_SHQD.dtype == torch.float32
        and num_scores <= MAX_SCORES
        and cpu_products.are_fast()
    )


def attend(q_SHQD: Tensor, k_SKLD: Tensor, v_SKLD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(q @ k.T * scale + mask) @ v: out_SHQD.

    `mask` is 0 or -inf, of shape (S, 1, Q, L); None: causal, with as many queries as keys. Every query needs
    a key that it sees. The probabilities, S H Q L floats, are kept for backward.
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
    def forward(
        ctx: Any, q_SHQD: Tensor, k_SKLD: Tensor, v_SKLD: Tensor, mask_S1QL: Tensor, scale: float
    ) -> Tensor:
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
    """One matrix per sequence and key-value head, with the rows of all heads that share it: a view."""
    num, heads, rows, size = x_CHQD.shape
    return x_CHQD.view(num * groups, heads // groups * rows, size)
