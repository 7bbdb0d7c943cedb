"""A rank's part of a model, read from its files: no process of a node ever holds the whole.

    configuration -> modules on the meta device -> shard -> empty parts -> each filled from its rows of a file

Where that cannot be (no local safetensors, other names in the files than in the modules, a head of a class of
its own) the whole model is loaded and then parted, as one process does it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import GenerationConfig, PreTrainedModel

from rocstar.engine.progress.progress import working
from rocstar.train.learner import adapters
from rocstar.train.learner.claims import UNUSABLE, StoredTensor
from rocstar.train.learner.model_io import check_finite, checked_folder, is_finite, load_model
from rocstar.train.learner.sharding import is_apart, shard
from rocstar.train.learner.world import World, local_device
from rocstar.train.recipe.config import Recipe

Parted = Callable[[PreTrainedModel], None]


def load_learner(path: str, world: World, recipe: Recipe, *, mesh: DeviceMesh | None = None) -> PreTrainedModel:
    """This rank's part of the model at `path`, in float32 on its device. ConfigError: no model to learn.

    With adapters: the recipe's model in the recipe's type, and the adapters of `path` where that is one of
    the run's checkpoints. `mesh`: see `shard`.
    """
    tokens = recipe.rl.tokens_per_microbatch
    if recipe.lora.rank:
        base = recipe.model.path
        model = load_model(base, recipe.model.dtype)
        named = str(Path(base).absolute()) if Path(base).is_dir() else base
        adapters.add_adapters(model, recipe.lora, seed=recipe.run.seed, base=named)
        if path != base:
            adapters.load_adapters(Path(path) / adapters.FOLDER, model)
        shard(model, world, recipe.model, tokens_per_microbatch=tokens)
        return model

    def parted(model: PreTrainedModel) -> None:
        shard(model, world, recipe.model, tokens_per_microbatch=tokens, mesh=mesh)

    part = load_shards(path, parted) if is_apart(world, recipe.model) else None
    if part is None:
        part = load_model(path, "float32")
        parted(part)
    return part


def load_shards(path: str, parted: Parted) -> PreTrainedModel | None:
    """The model with this rank's rows alone; None where it must be loaded whole.

    Raises:
        ConfigError: see `checked_folder`.
    """
    folder = checked_folder(path)
    model, tensors = folder.model, folder.tensors
    any_model: Any = model
    try:
        if (folder.path / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder.path)
    except UNUSABLE:
        return None  # loading the complete model reports the error, or works
    buffers = _buffers(model)
    if buffers is None or type(any_model.get_output_embeddings()) is not nn.Linear:
        return None
    if not all(_fits(tensors.get(name), p) for name, p in model.named_parameters()):
        return None
    with working(f"reading this rank's part of {path}"):
        any_model.eval()  # as a loaded model is
        parted(model)
        model.to_empty(device=local_device())
        for module, name, value in buffers:
            setattr(module, name, value.to(local_device()))
        parameters, bad = dict(model.named_parameters()), []
        for file in folder.files:
            with safe_open(file, framework="pt") as opened:
                for name in [n for n in parameters if tensors[n].file == file]:
                    if not _fill(parameters[name], opened.get_slice(name)):
                        bad.append(name)
        check_finite(path, bad)
    return model


def _fits(there: StoredTensor | None, parameter: Tensor) -> bool:
    return there is not None and parameter.ndim > 0 and there.shape == tuple(parameter.shape)


def _fill(parameter: Tensor, rows: Any) -> bool:
    """Read the rows that are this rank's: FSDP parts the first dimension as torch.chunk does. False: they
    hold NaN or infinity."""
    any_parameter: Any = parameter
    local = any_parameter.to_local()
    mesh = any_parameter.device_mesh
    each = -(-parameter.shape[0] // mesh.size(mesh.ndim - 1))
    first = min(parameter.shape[0], each * mesh.get_local_rank(mesh.ndim - 1))
    if len(local):
        with torch.no_grad():
            local.copy_(rows[first : first + len(local)])
    return is_finite(local.detach())


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
