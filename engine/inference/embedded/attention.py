"""One attention seam for every Hugging Face causal LM: the caller of the forward brings the attention.

`install(model)` routes each layer's attention to the object passed as the forward's keyword
`attention=...`. The learner brings one for packed rows, the embedded engine its KV cache; both run the same
modules on flat rows of tokens [1, T], so their log-probs differ by rounding only.

Shapes: T flat tokens, H query heads, K key-value heads, D head size, S sequences, L longest of a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

NAME = "rocstar"


class Attention(Protocol):
    """What a forward brings: attention of one layer over flat tokens."""

    def attend(self, layer: int, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, scale: float) -> Tensor:
        """Returns out_THD."""
        ...


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
            f"{type(model).__name__} has layers of {sorted(kinds)}; only full attention is served"
        )
    AttentionInterface.register(NAME, _forward)
    model.set_attn_implementation(NAME)


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
