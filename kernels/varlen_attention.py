"""Causal attention of packed sequences of any lengths in one call of torch's flash kernel.

The queries of a sequence are its last tokens: query i of Q sees the keys 0 to i + L - Q of its L keys. That
is the kernel's own causal mask, which it aligns to the last query and the last key of each sequence:

    col_idx_limit_right = min(seqlen_k, row_idx + 1 + seqlen_k - seqlen_q + window_size_right)

with the lengths of that sequence and window_size_right = 0. Source: Mask.apply_mask in
aten/src/ATen/native/transformers/cuda/flash_attn/mask.h of PyTorch, and its construction in
flash_fwd_kernel.h and flash_bwd_kernel.h. H query heads may share K key-value heads; no mask, padding or
repeated head is made.

Legend: N queries and P keys of all sequences, S sequences, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

MAX_HEAD = 256
"""The largest head size of the kernel; the size must be a multiple of 8. Source: flash_api.cpp."""
_aten: Any = torch.ops.aten


def takes(q: Tensor) -> bool:
    """Return True if `attend` supports these queries: half precision on an NVIDIA GPU of compute capability
    >= 8.0.

    Not on ROCm. PyTorch's backends there differ by release: AOTriton's API 2 has one `is_causal` whose
    alignment for unequal lengths PyTorch does not state, API 3 is called with BottomRightAligned.
    """
    return (
        q.is_cuda
        and torch.version.hip is None
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[-1] <= MAX_HEAD
        and q.shape[-1] % 8 == 0
        and _has_kernel(q.device)
    )


@functools.cache
def _has_kernel(device: torch.device) -> bool:
    is_compiled = torch.backends.cuda.is_flash_attention_available()
    return is_compiled and torch.cuda.get_device_capability(device) >= (8, 0)


def attend(
    q_NHD: Tensor,
    k_PKD: Tensor,
    v_PKD: Tensor,
    cum_q_S1: Tensor,
    cum_k_S1: Tensor,
    longest: tuple[int, int],
    scale: float,
) -> Tensor:
    """Return softmax(q @ k.T * scale + causal mask) @ v within each sequence, (N, H, D), differentiable.

    Sequence s has queries cum_q_S1[s] to cum_q_S1[s + 1] and keys cum_k_S1[s] to cum_k_S1[s + 1], with at
    least one query and no more queries than keys.

    Args:
        cum_q_S1, cum_k_S1: int32 of S + 1 entries, on the device of the queries.
        longest: the most queries and the most keys of a sequence.
    """
    # With at most one query per sequence torch takes another kernel (split keys); 2 is a valid bound too.
    max_q, max_k = max(2, longest[0]), longest[1]
    out: Tensor = _aten._flash_attention_forward.default(
        q_NHD, k_PKD, v_PKD, cum_q_S1, cum_k_S1, max_q, max_k, 0.0, True, False, scale=scale
    )[0]
    return out
