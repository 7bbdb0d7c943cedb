"""Place a model on this rank: its parts under FSDP2, or a copy where only adapters learn.

    sharding = "all":   one row of all ranks; each holds a part of everything
    sharding = "node":  a row per node; its ranks split all of it, and the same places of all rows are copies

Under "node" weights are gathered and gradients parted inside a node; between nodes go sums of gradients that
are parted already.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from rocstar.train.learner import activations
from rocstar.train.learner.adapters import has_adapters
from rocstar.train.learner.model_io import DTYPES
from rocstar.train.learner.policy_model import check_head, checkpoint_activations
from rocstar.train.learner.world import World, collective_backend, local_device
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig


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

    Parameters on the meta device stay there, sharded, until sharded_loading.py fills them.

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
