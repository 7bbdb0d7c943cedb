"""The bytes that a forward keeps for its backward, and the choice of activation checkpointing.

Legend: C hidden size, H query heads, K key-value heads, D head size, F width inside the MLP.
"""

import os
from typing import Any

import torch

FULL_SHARE = 0.8
"""The share of a device that weights, moments and activations may take together before layers keep less."""


def layer_bytes(config: Any, dtype_bytes: int, *, adapted: bool = False) -> int:
    """Bytes per token that one layer of a Llama-like model keeps (packed_layers.py).

    With adapters their inputs are kept and not recomputed: the outputs of both norms, and inside the MLP
    silu(gate) and the gated product.
    """
    heads: int = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    query, key = heads * size, (getattr(config, "num_key_value_heads", None) or heads) * size
    values: int = 2 * config.hidden_size  # the input of both norms
    values += 3 * query + 2 * key  # attention: queries, keys, values, and its output in both orders
    if getattr(config, "model_type", "").startswith("qwen3"):
        values += query + key  # the input of the norms of heads
    inner: int = getattr(config, "intermediate_size", 4 * config.hidden_size)
    values += 2 * inner  # gate and up
    if adapted:
        values += 2 * config.hidden_size + 2 * inner
    return dtype_bytes * values


def kept_bytes(config: Any, dtype_bytes: int, tokens: int, *, inputs_alone: bool, adapted: bool = False) -> int:
    """Bytes that the forward of a microbatch keeps in all layers; `inputs_alone`: at the worst moment of the
    backward, when one layer is whole again."""
    whole, layers, hidden = (
        layer_bytes(config, dtype_bytes, adapted=adapted),
        int(config.num_hidden_layers),
        config.hidden_size,
    )
    if inputs_alone:
        return tokens * (layers * dtype_bytes * int(hidden) + whole)
    return tokens * layers * whole


def device_bytes(device: torch.device, local_ranks: int) -> int:
    """Memory of a rank: its GPU's, or its share of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local_ranks
