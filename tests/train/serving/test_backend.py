"""Which backend `engine.kind` stands for, and what is refused. Runs: tests/integration/test_own_engine.py."""

from pathlib import Path

import pytest

from rocstar.train.recipe.engine_config import KINDS
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.backend import BACKENDS, EngineBackend, backend_of, check_backend

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_engine"


class Evaluates(EngineBackend):
    """An engine that can neither learn nor serve several nodes."""


NOT_A_BACKEND = 3


@pytest.mark.parametrize(
    ("name", "nodes", "words"),
    [
        ("Evaluates", 1, "is for eval and rollout"),
        ("NOT_A_BACKEND", 1, "is no subclass of"),
        ("Missing", 1, "has no 'Missing'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(name: str, nodes: int, words: str) -> None:
    recipe = load_recipe(EXAMPLE / "own_engine.toml", [f"--engine.kind={__file__}:{name}"])
    with pytest.raises(ConfigError, match=words) as refused:
        check_backend(recipe, learns=True, nodes=nodes)
    assert f"{name}'" in str(refused.value)


def test_an_engine_of_ones_own_may_have_another_head() -> None:
    recipe = load_recipe(EXAMPLE / "own_engine.toml", ["--model.head_dtype=float32"])
    (unknown,) = check_backend(recipe, learns=True)
    assert "model.head_dtype = 'float32'" in unknown
    embedded = load_recipe(EXAMPLE / "own_engine.toml", ["--model.head_dtype=float32", "--engine.kind=embedded"])
    assert check_backend(embedded, learns=True) == []


def test_an_engine_that_does_not_say_more_serves_one_node() -> None:
    recipe = load_recipe(EXAMPLE / "own_engine.toml")
    assert check_backend(recipe, learns=True) == []
    with pytest.raises(ConfigError, match="serves one node, and the run has 2"):
        check_backend(recipe, learns=True, nodes=2)


def test_every_shipped_kind_is_there() -> None:
    assert tuple(BACKENDS) == KINDS
    for kind in BACKENDS:
        url = ["--engine.url=http://127.0.0.1:1/v1"] if kind == "openai" else []
        recipe = load_recipe(EXAMPLE / "own_engine.toml", [f"--engine.kind={kind}", *url])
        backend = backend_of(recipe)
        assert backend.learns == (kind != "openai")
