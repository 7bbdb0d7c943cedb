"""Which kernel torch's attention takes on a GPU, for tensors of a GPU that is not there.

Where it can the learner calls the flash kernel for packed sequences itself (kernels/varlen_attention.py). For
all other calls:

    half precision, no mask            flash: keeps its output and a number per query
    a mask, or float32; no grouped heads   memory-efficient: the same
    grouped heads besides              the plain products: keeps scores of all pairs

torch chooses in C++ and by the driver, which is not there; left to itself it would take the plain products
for everything. Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

HALF = (torch.bfloat16, torch.float16)
FLASH_HEAD = 256
"""The largest head of the flash kernel."""
_aten: Any = torch.ops.aten


def kernel_of(q: Tensor, k: Tensor, mask: Tensor | None) -> str:
    """`flash`, `efficient` or `math` for queries and keys_SHLD."""
    is_grouped = q.shape[-3] != k.shape[-3]
    if mask is None and q.dtype in HALF and q.shape[-1] <= FLASH_HEAD:
        return "flash"
    return "math" if is_grouped else "efficient"


def attention_of(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a replacement for `scaled_dot_product_attention`; `plain` is the original function."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        kernel = kernel_of(q, k, attn_mask)
        if isinstance(q, FakeTensor) and not q.is_cuda:
            of_cpu = _aten._scaled_dot_product_flash_attention_for_cpu
            out: Tensor = of_cpu(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
            return out
        if not q.is_cuda or kernel == "math":
            return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if kernel == "flash":
            flash = _aten._scaled_dot_product_flash_attention
            out = flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
            return out
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2])
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        efficient = _aten._scaled_dot_product_efficient_attention
        out = efficient(q, k, v, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
        return out

    return attend


def scratch_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that the backward of the flash kernel allocates and frees. 0 for any other op.

    Float32 gradients of the queries, in half precision those of keys and values for every query head where
    heads are grouped. In a call of S sequences of any lengths 128 rows are between two sequences. Source:
    mha_bwd and mha_varlen_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
    """
    if func not in (
        _aten._scaled_dot_product_flash_attention_backward.default,
        _aten._flash_attention_backward.default,
    ):
        return 0
    is_varlen = func is _aten._flash_attention_backward.default
    _, q, k = args[:3]
    q_heads, k_heads = (x.shape[-2] if is_varlen else x.shape[1] for x in (q, k))
    gap = 128 * (len(args[6]) - 1) * q.shape[-1] * q_heads if is_varlen else 0
    grouped = 2 * k.element_size() * k.numel() // k_heads * q_heads if k_heads != q_heads else 0
    return int(4 * (q.numel() + gap) + grouped)
