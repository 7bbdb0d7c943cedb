"""Models with random weights at the sizes of Qwen3, made on the device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

from .results import SEED

SHAPES: dict[str, dict[str, int]] = {
    "0.6B": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_layers": 28, "num_heads": 8, "num_kv_heads": 4,
    },
    "1.7B": {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_layers": 28, "num_heads": 16, "num_kv_heads": 8,
    },
    "4B": {
        "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_layers": 36, "num_heads": 20, "num_kv_heads": 4,
    },
    "toy": {
        "vocab_size": 900, "hidden_size": 96, "intermediate_size": 192,
        "num_layers": 3, "num_heads": 6, "num_kv_heads": 3,
    },
}  # fmt: skip
"""Fields of `model.scratch`, heads of 128 as Qwen3's; a recipe's model has hidden size / heads of them."""


def random_model(
    scratch: ScratchConfig, device: torch.device, *, dtype: torch.dtype = torch.float32, longest: int = 0
) -> Any:
    """The recipe's model with normal weights. `longest`: tokens of a text, 0: as a recipe has it."""
    with torch.device("meta"):
        config = build_model(scratch, scratch.vocab_size, seed=SEED).config
    if longest:
        config.max_position_embeddings = longest
    torch.manual_seed(SEED)
    with torch.device(device):
        model: Any = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    return model.to(dtype)


def scratch_of(size: str) -> ScratchConfig:
    return ScratchConfig(**SHAPES[size])
