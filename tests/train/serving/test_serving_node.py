"""What runs on a node that only serves. Whole runs: tests/integration/test_server_nodes.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving.serving_node import as_served_alone


def replicas(engine: dict[str, object], gpus: int) -> object:
    recipe = parse_recipe({"engine": {"kind": "sglang"} | engine}, where="test")
    return as_served_alone(recipe, gpus).engine.replicas


def test_its_servers_are_as_the_recipes_and_have_all_its_gpus() -> None:
    assert replicas({"replicas": [[3], [4]]}, 4) == [[0], [1], [2], [3]]
    assert replicas({"replicas": [[4, 5]]}, 8) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert replicas({"replicas": 3}, 0) == 3, "without GPUs as many"


@given(each=st.integers(1, 4), gpus=st.integers(4, 16))
def test_no_gpu_has_two_servers_and_too_few_are_left_for_another(each: int, gpus: int) -> None:
    found = replicas({"replicas": [list(range(each))]}, gpus)
    assert isinstance(found, list)
    used = [gpu for server in found for gpu in server]
    assert used == list(range(len(used))) and all(len(server) == each for server in found)
    assert 0 <= gpus - len(used) < each


@pytest.mark.parametrize(
    ("engine", "gpus", "told"),
    [
        ({"kind": "embedded"}, 8, "set it to 'sglang'"),
        ({"placement": "restart", "replicas": [[0]]}, 8, "set it to 'split'"),
        ({"replicas": [[0, 1]]}, 1, "a server has 2 GPUs, and a node that only serves has 1"),
    ],
)
def test_what_cannot_be_there_is_refused(engine: dict[str, object], gpus: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replicas(engine, gpus)
