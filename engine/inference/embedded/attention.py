"""One attention seam for every Hugging Face causal LM: the caller of the forward brings the attention.

`install(model)` routes each layer's attention to the object passed as the forward's keyword
`attention=...`. The learner brings one for packed rows, the embedded engine its KV cache; both run the same
modules on flat rows of tokens [1, T], so their log-probs differ by rounding only.

Shapes: T flat tokens, H query heads, K key-value heads, D head size, S sequences, Q queries and L keys of the
longest sequence of a call, N tokens whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

NAME = "rocstar"


class Attention(Protocol):
    """The interface of a forward: attention of one layer over flat tokens."""

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """Returns out_THD."""
        ...


Forward = Callable[[Tensor, Tensor, Attention, int], Tensor]
"""(ids_T, positions_T, attention, num_logits) -> float32 logits_NV behind the first `num_logits` tokens of a
flat batch; the others only enter the cache."""


def _forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    attention: Attention,
    **_: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attention.attend(layer, query[0], key[0], value[0], scale)[None], None


def install(model: PreTrainedModel) -> None:
    """Route the model's attention through the `attention` keyword of its forward.

    ValueError for a model with layers that do not attend to all earlier tokens: no caller does that here.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ValueError(
            f"{type(model).__name__} has layers of {', '.join(sorted(kinds))}; only full attention is served"
        )
    AttentionInterface.register(NAME, _forward)
    model.set_attn_implementation(NAME)


def choose_attention_backends(device: torch.device) -> None:
    """Turn off cuDNN's attention in this process if `device` is a GPU. Call before the first forward.

    On Hopper torch >= 2.11 prefers cuDNN, which builds a plan for each new shape. The lengths of rollouts
    change the shape at almost every call.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def needs_all_heads(device_type: str, dtype: torch.dtype, *, has_mask: bool, is_hip: bool) -> bool:
    """Whether keys and values must be repeated for every query head before torch's attention.

    On a GPU only the flash kernel takes grouped heads in every supported version of torch. It takes half
    precision without a mask; on ROCm (is_hip) it takes no grouped heads in some versions. Other grouped calls
    fall back to the plain formula, which stores the score of every query and key.
    """
    if device_type != "cuda":
        return False
    return is_hip or has_mask or dtype not in (torch.bfloat16, torch.float16)


def grouped_attention(q_SHQD: Tensor, k_SKLD: Tensor, v_SKLD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention in which H/K query heads share a key-value head: out_SHQD. mask = None is causal, Q = L."""
    has_mask, is_hip = mask is not None, torch.version.hip is not None
    if needs_all_heads(q_SHQD.device.type, q_SHQD.dtype, has_mask=has_mask, is_hip=is_hip):
        group = q_SHQD.shape[1] // k_SKLD.shape[1]
        k_SKLD, v_SKLD = (x.repeat_interleave(group, dim=1) for x in (k_SKLD, v_SKLD))
    return F.scaled_dot_product_attention(
        q_SHQD, k_SKLD, v_SKLD, attn_mask=mask, is_causal=not has_mask, scale=scale, enable_gqa=True
    )


def buckets(lengths_S: Sequence[int], *, growth: float = 1.3) -> list[list[int]]:
    """Indices grouped so that the longest of a group is at most `growth` times its shortest (+ 16)."""
    groups: list[list[int]] = []
    limit = -1.0
    for s in sorted(range(len(lengths_S)), key=lambda s: lengths_S[s]):
        if lengths_S[s] > limit:
            groups.append([])
            limit = lengths_S[s] * growth + 16
        groups[-1].append(s)
    return groups
