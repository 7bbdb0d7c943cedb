"""The model of a recipe without its weights: shapes on the host, from a configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rocstar.train.learner.adapters import add_adapters
from rocstar.train.learner.known_models import known_config
from rocstar.train.learner.model_io import DTYPES
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig


def learner_without_weights(recipe: Recipe) -> PreTrainedModel:
    """Build the trained model on `meta`: in float32, or in the recipe's type with adapters in float32."""
    any_model: Any = model_without_weights(recipe.model)  # transformers has no types for it
    model: PreTrainedModel = any_model
    if recipe.lora.rank:
        any_model.to(DTYPES[recipe.model.dtype])
        add_adapters(model, recipe.lora, seed=recipe.run.seed)
    return model


def model_without_weights(config: ModelConfig) -> PreTrainedModel:
    """The recipe's model on torch's device `meta`. ConfigError where its configuration is not known here."""
    if config.path == "scratch":
        with torch.device("meta"):
            return build_model(config.scratch, config.scratch.vocab_size, seed=0)
    build: Any = AutoModelForCausalLM  # transformers has no types for it
    found = known_config(config.path)
    if found is None:
        try:
            found = AutoConfig.from_pretrained(config.path, local_files_only=True)
        except (OSError, ValueError):
            raise ConfigError(
                f"the configuration of model.path = {config.path!r} is not on this machine, so nothing can "
                "be rehearsed; a folder with its config.json as --model.path is enough"
            ) from None
    with torch.device("meta"):
        model: PreTrainedModel = build.from_config(found, dtype=torch.float32)
    return model


def give_memory(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Put what `make` makes in the places of tensors on `meta`; tied ones stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = make(buffer)
