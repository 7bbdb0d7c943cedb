"""Which ranks part the weights."""

import pytest

from rocstar.train.learner.mesh import mesh_shape
from rocstar.train.recipe.errors import ConfigError


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
