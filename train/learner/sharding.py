"""Place a model on this rank: its parts under FSDP2, or a copy where only adapters learn.

    sharding = "all":   one row of all ranks; each holds a part of everything
    sharding = "node":  a row per node; its ranks split all of it, and the same places of all rows are copies

Under "node" weights are gathered and gradients parted inside a node; between nodes go sums of gradients that
are parted already.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import GenerationConfig, PreTrainedModel

from rocstar.engine.progress.progress import working
from rocstar.train.learner import activations, adapters
from rocstar.train.learner.adapters import has_adapters
from rocstar.train.learner.claims import UNUSABLE
from rocstar.train.learner.model_io import DTYPES, check_finite, checked_folder, is_finite, load_model
from rocstar.train.learner.policy_model import check_head, checkpoint_activations
from rocstar.train.learner.world import World, collective_backend, local_device
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig

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
    for name, parameter in model.named_parameters():
        if not parameter.ndim or name not in tensors or tensors[name].shape != tuple(parameter.shape):
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


def placed(model: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    """The model as an engine of this process runs it: on its device, in the type of the recipe."""
    any_model: Any = model  # transformers has no types for it
    result: PreTrainedModel = any_model.to(local_device(), DTYPES[config.dtype])
    return result


def is_apart(world: World, config: ModelConfig) -> bool:
    """Return True if the learner's weights are its own: sharded, or of another type than served weights."""
    return world.size > 1 or config.dtype != "float32"


def shard(
    model: PreTrainedModel,
    world: World,
    config: ModelConfig,
    *,
    tokens_per_microbatch: int = 0,
    mesh: DeviceMesh | None = None,
) -> None:
    """Make a model one rank's part of the learner, on its device. ConfigError: see `check_head`.

    With adapters nothing is sharded: frozen weights need neither gradients nor moments, and every rank holds
    them in the served type; adapters are equal on all ranks, because their gradients are summed. Any other
    model is float32.

    FSDP2 over the ranks of `mesh_shape` where `is_apart`: each decoder layer is a unit, the embedding and the
    head are the root's. With dtype bfloat16 forward and backward run in it, on a copy that FSDP makes of the
    float32 weights unit by unit; gradients are summed over ranks, and weights and moments kept, in float32.
    A single process uses a world of one, so that there is one kind of mixed precision.

    Parameters on the meta device stay there, sharded, until `load_shards` fills them.

    Args:
        model: changed in place.
        world: the ranks that learn.
        config: the recipe's.
        tokens_per_microbatch: used by "auto" activation checkpointing.
        mesh: the mesh of another model on the same ranks, because groups of two meshes can deadlock; None
            makes one.
    """
    check_head(model)
    any_model: Any = model  # transformers has no types for these
    layers = any_model.get_decoder().layers
    if runs_layers_again(model, world, config, tokens_per_microbatch):
        checkpoint_activations(model)
    if has_adapters(model) or not is_apart(world, config):
        any_model.to(local_device())
        return

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        dist.init_process_group(collective_backend(), store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if mesh is None:
        shape = mesh_shape(config.sharding, world.size, world.local_size)
        # Ranks of a node follow one another, as torchrun numbers them.
        names = ("copies", "parts")[-len(shape) :]
        mesh = init_device_mesh(local_device().type, shape, mesh_dim_names=names)
    # The inputs of a forward are ids, and hidden states of the right type already.
    precision = MixedPrecisionPolicy(
        param_dtype=DTYPES[config.dtype], reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def runs_layers_again(model: PreTrainedModel, world: World, config: ModelConfig, tokens: int) -> bool:
    """Resolve model.activation_checkpointing for this model on this device."""
    held = sum(p.numel() * (16 if p.requires_grad else p.element_size()) for p in model.parameters())
    adapted = has_adapters(model)
    holders = 1 if adapted else world.local_size if config.sharding == "node" else world.size
    kept = activations.kept_bytes(
        model.config.get_text_config(), DTYPES[config.dtype].itemsize, tokens, inputs_alone=False, adapted=adapted
    )
    available = activations.FULL_SHARE * activations.device_bytes(local_device(), world.local_size)
    choice = config.activation_checkpointing  # "auto": if the activations do not fit
    return choice == "on" or (choice == "auto" and held / holders + kept > available)


def mesh_shape(sharding: str, ranks: int, ranks_per_node: int) -> tuple[int, ...]:
    """(ranks,), or (nodes, ranks of each). ConfigError where nodes are not alike."""
    if sharding == "all" or ranks <= ranks_per_node:
        return (ranks,)
    if ranks % ranks_per_node:
        raise ConfigError(
            f"model.sharding = 'node': {ranks} ranks do not part into nodes of {ranks_per_node}; start as "
            "many on every node, or set it to 'all'"
        )
    return (ranks // ranks_per_node, ranks_per_node)
