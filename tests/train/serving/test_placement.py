"""No GPU is the learner's and a server's at once, and each process sees its own alone."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving.placement import (
    BEFORE,
    NAMES,
    GpuMap,
    check_gpus,
    hide_servers,
    recipe_of_serving_node,
    server_env,
)


def engine(replicas: int | list[list[int]], **more: object) -> EngineConfig:
    return EngineConfig.model_validate({"kind": "sglang", "replicas": replicas, **more})


servers = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True).map(lambda gpus: [[g] for g in gpus])


@given(servers=servers, ranks=st.integers(1, 8))
def test_split_shares_no_gpu(servers: list[list[int]], ranks: int) -> None:
    gpus = GpuMap.of(engine(servers), ranks)
    named = set(itertools.chain(*servers))
    assert len(set(gpus.learner)) == ranks and not named & set(gpus.learner)
    assert gpus.learner == sorted(gpus.learner), "local rank k has the k-th"
    together = GpuMap.of(engine(servers, placement="restart"), ranks)
    assert together.learner == list(range(ranks))


def test_a_process_sees_its_own_gpus() -> None:
    environment = {"LOCAL_WORLD_SIZE": "2"}
    config = engine([[0, 2], [3, 4]])
    hide_servers(config, environment)
    assert {environment[name] for name in NAMES} == {"1,5"}
    assert server_env([3, 4], environment)["CUDA_VISIBLE_DEVICES"] == "3,4"
    assert server_env([3, 4], environment)[BEFORE] is None, "a server's own children need no history"


def test_numbers_count_within_what_is_visible() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "7,5,3", "LOCAL_WORLD_SIZE": "1"}
    config = engine([[0]])
    hide_servers(config, environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "5"
    assert server_env([0], environment)["HIP_VISIBLE_DEVICES"] == "7"
    hide_servers(config, environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "5", "a second time changes nothing"


def test_without_gpus_nothing_is_hidden() -> None:
    for config in (engine(2), engine([[0]], placement="restart"), EngineConfig()):
        environment: dict[str, str] = {}
        hide_servers(config, environment)
        assert environment == {} and server_env(None, environment) == {}


@pytest.mark.parametrize(
    ("replicas", "found", "ranks", "environment", "words"),
    [
        (2, 4, 1, {}, "this node has 4 GPUs"),
        ([[4]], 4, 1, {}, "does not have: it has 4"),
        ([[4]], 0, 1, {}, "give the number of servers"),
        ([[0], [1]], 1, 2, {BEFORE: ""}, "leaves the learner GPUs [2, 3] of each node, and 1 of them"),
    ],
)
def test_gpus_that_are_not_there_are_named(
    replicas: int | list[list[int]], found: int, ranks: int, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_gpus(engine(replicas), found, ranks, environment)
    assert words in str(refused.value)


def test_gpus_that_are_there_will_do() -> None:
    check_gpus(engine(2), 0, 1, {})
    check_gpus(engine(2, args={"device": "cpu"}), 4, 1, {})
    check_gpus(engine([[2], [3]]), 4, 2, {})
    check_gpus(engine([[2], [3]]), 2, 2, {BEFORE: ""})


# ---- a node that only serves ----


def replicas(settings: dict[str, object], gpus: int) -> object:
    recipe = parse_recipe({"engine": {"kind": "sglang"} | settings}, where="test")
    return recipe_of_serving_node(recipe, gpus).engine.replicas


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
    ("settings", "gpus", "told"),
    [
        ({"kind": "embedded"}, 8, "set it to 'sglang'"),
        ({"placement": "restart", "replicas": [[0]]}, 8, "set it to 'split'"),
        ({"replicas": [[0, 1]]}, 1, "a server has 2 GPUs, and a node that only serves has 1"),
    ],
)
def test_what_cannot_be_there_is_refused(settings: dict[str, object], gpus: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replicas(settings, gpus)
