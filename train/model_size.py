"""How large a model is, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from rocstar.kernels.grpo import CHUNK_ROWS_CPU, CHUNK_ROWS_GPU
from rocstar.train.config import ModelConfig
from rocstar.train.model_io import DTYPES
from rocstar.train.scratch import build_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Counts of parameters; a tied one counts once."""

    parameters: int
    layer_parameters: int
    """Of one decoder layer."""
    layers: int
    hidden: int
    vocabulary: int
    kv_values_per_token: int
    """Keys and values of all layers."""
    dtype_bytes: int
    """Of a number in forward and backward."""

    @property
    def root_parameters(self) -> int:
        """Embedding, head and last norm."""
        return self.parameters - self.layers * self.layer_parameters

    @property
    def chunk_rows(self) -> tuple[int, int]:
        """Rows whose logits exist at a time, on a CPU and on a GPU."""
        return CHUNK_ROWS_CPU, CHUNK_ROWS_GPU


def measure(config: ModelConfig) -> ModelSize | str:
    """The size of a recipe's model, or why it is not known. Reads no weights and asks no hub."""
    if config.path == "scratch":
        return _size(build_model(config.scratch, config.scratch.vocab_size, seed=0), config)
    build: Any = AutoModelForCausalLM  # transformers has no types for it
    try:
        found = AutoConfig.from_pretrained(config.path, local_files_only=True)
        with torch.device("meta"):
            model = build.from_config(found)
    except (OSError, ValueError):
        return (
            f"the configuration of {config.path!r} is not on this machine; a folder with its config.json "
            "as --model.path is enough"
        )
    return _size(model, config)


def _size(model: Any, config: ModelConfig) -> ModelSize:
    of = model.config.get_text_config()
    layers = model.get_decoder().layers
    head_dim = getattr(of, "head_dim", None) or of.hidden_size // of.num_attention_heads
    return ModelSize(
        parameters=_count(model),
        layer_parameters=_count(layers[0]),
        layers=len(layers),
        hidden=of.hidden_size,
        vocabulary=of.vocab_size,
        kv_values_per_token=2 * len(layers) * of.num_key_value_heads * head_dim,
        dtype_bytes=DTYPES[config.dtype].itemsize,
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
