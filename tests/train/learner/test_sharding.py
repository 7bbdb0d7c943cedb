"""Which ranks split the weights, and which models have weights of their own."""

import pytest
import torch

from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.sharding import is_apart, mesh_shape, placed
from rocstar.train.learner.world import World
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig

from ...fakes.tiny import SCRATCH

ALONE = World(rank=0, size=1)


@pytest.mark.parametrize(
    ("sharding", "ranks", "per_node", "shape"),
    [("all", 8, 4, (8,)), ("node", 8, 4, (2, 4)), ("node", 4, 4, (4,)), ("node", 3, 1, (3, 1))],
)
def test_a_node_is_a_row_of_its_own_where_asked(
    sharding: str, ranks: int, per_node: int, shape: tuple[int, ...]
) -> None:
    assert mesh_shape(sharding, ranks, per_node) == shape


def test_nodes_that_are_not_alike_cannot_hold_copies() -> None:
    with pytest.raises(ConfigError, match=r"model\.sharding = 'node': 7 ranks do not part into nodes of 4"):
        mesh_shape("node", 7, 4)


def test_a_model_that_learns_in_bfloat16_is_not_the_one_that_is_served() -> None:
    half = ModelConfig(dtype="bfloat16")
    assert not is_apart(ALONE, ModelConfig())
    assert is_apart(ALONE, half) and is_apart(World(rank=0, size=2), ModelConfig())
    assert placed(build_model(SCRATCH, 40, seed=0), half).dtype == torch.bfloat16
