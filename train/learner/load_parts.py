"""A rank's part of a model, read from its files: no process of a node ever holds the whole.

    configuration -> modules on the meta device -> shard -> empty parts -> each filled from its rows of a file

Where that cannot be (no local safetensors, other names in the files than in the modules, a head of a class of
its own) the whole model is loaded and then parted, as one process does it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from rocstar.engine.progress.progress import working
from rocstar.train.learner import adapters
from rocstar.train.learner.claims import check_folder
from rocstar.train.learner.model_io import load_model, local_folder
from rocstar.train.learner.team import World, is_apart, local_device, place_adapted, shard
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError

Parted = Callable[[PreTrainedModel], None]


def load_learner(path: str, world: World, recipe: Recipe) -> PreTrainedModel:
    """This rank's part of the model at `path`, in float32 on its device. ConfigError: no model to learn.

    With adapters: the recipe's model in the recipe's type, and the adapters of `path` where that is one of
    the run's checkpoints.
    """
    tokens = recipe.rl.tokens_per_microbatch
    if recipe.lora.rank:
        base = recipe.model.path
        model = load_model(base, recipe.model.dtype)
        named = str(Path(base).absolute()) if Path(base).is_dir() else base
        adapters.add_adapters(model, recipe.lora, seed=recipe.run.seed, base=named)
        if path != base:
            adapters.load_adapters(Path(path) / adapters.FOLDER, model)
        place_adapted(model, world, recipe.model, tokens_per_microbatch=tokens)
        return model

    def parted(model: PreTrainedModel) -> None:
        shard(model, world, recipe.model, tokens_per_microbatch=tokens)

    part = read_parts(path, parted) if is_apart(world, recipe.model) else None
    if part is None:
        part = load_model(path, "float32")
        parted(part)
    return part


def read_parts(path: str, parted: Parted) -> PreTrainedModel | None:
    """The model with this rank's rows alone; None where it must be loaded whole."""
    try:
        folder = local_folder(path)
        check_folder(folder)
        config = AutoConfig.from_pretrained(folder)
        build: Any = AutoModelForCausalLM  # transformers has no types for it, nor for what it gives
        with torch.device("meta"):
            any_model = build.from_config(config, dtype=torch.float32)
        model: PreTrainedModel = any_model
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    except (ConfigError, OSError, ValueError):
        return None  # loading it whole will say what is wrong, or work
    buffers = _buffers(model)
    if buffers is None or type(any_model.get_output_embeddings()) is not nn.Linear:
        return None
    with ExitStack() as opened, working(f"reading this rank's part of {path}"):
        slices = _slices(folder, opened)
        if not all(_fits(slices.get(name), p) for name, p in model.named_parameters()):
            return None
        any_model.eval()  # as a loaded model is
        parted(model)
        model.to_empty(device=local_device())
        for module, name, value in buffers:
            setattr(module, name, value.to(local_device()))
        for name, parameter in model.named_parameters():
            _fill(parameter, slices[name])
    return model


def _slices(folder: Path, opened: ExitStack) -> dict[str, Any]:
    """What the files hold, by name; nothing is read yet."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        handle = opened.enter_context(safe_open(file, framework="pt"))
        found |= {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118  # it is no mapping
    return found


def _fits(there: Any, parameter: Tensor) -> bool:
    return there is not None and parameter.ndim > 0 and there.get_shape() == list(parameter.shape)


def _fill(parameter: Tensor, rows: Any) -> None:
    """Read the rows that are this rank's: FSDP parts the first dimension as torch.chunk does."""
    any_parameter: Any = parameter
    local = any_parameter.to_local()
    mesh = any_parameter.device_mesh
    each = -(-parameter.shape[0] // mesh.size(mesh.ndim - 1))
    first = min(parameter.shape[0], each * mesh.get_local_rank(mesh.ndim - 1))
    if len(local):
        with torch.no_grad():
            local.copy_(rows[first : first + len(local)])


def _buffers(model: PreTrainedModel) -> list[tuple[nn.Module, str, Tensor]] | None:
    """The model's buffers with their values, which no file has: a module made anew from the configuration
    knows them. None: one does not."""
    found = []
    for module in model.modules():
        names = [name for name, _ in module.named_buffers(recurse=False)]
        if names:
            any_type: Any = type(module)
            try:
                fresh = any_type(model.config)
            except (TypeError, AttributeError):
                return None
            found += [(module, name, getattr(fresh, name)) for name in names]
    return found
