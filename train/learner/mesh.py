"""Which ranks split the weights, and which hold copies.

    sharding = "all":   one row of all ranks; each holds a part of everything
    sharding = "node":  a row per node; its ranks split all of it, and the same places of all rows are copies

Under "node" weights are gathered and gradients parted inside a node; between nodes go sums of gradients that
are parted already.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rocstar.train.recipe.errors import ConfigError


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


def make_mesh(device_type: str, shape: tuple[int, ...]) -> DeviceMesh:
    """The mesh of a `mesh_shape`; a collective. Ranks of a node follow one another, as torchrun has them."""
    return init_device_mesh(device_type, shape, mesh_dim_names=("copies", "parts")[-len(shape) :])
