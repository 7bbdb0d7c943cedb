"""What a recipe's tool becomes: the pool it needs, the box it is in."""

from typing import Any, Self

import pytest

from rocstar.engine.tools import JUPYTER_SCHEMA, PYTHON_SCHEMA, JupyterToolBox, PythonToolBox, ToolBox
from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.testing import FakeSandbox
from rocstar.sandbox.types import Limits
from rocstar.train import agent
from rocstar.train.config import Recipe, parse_recipe


def recipe_of(**sections: Any) -> Recipe:
    return parse_recipe(sections, where="test")


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Flavours and options of every pool that is made; the real one checks them, nothing is started."""
    made: list[tuple[Any, dict[str, Any]]] = []

    class Pool(SandboxPool):
        def __init__(self, flavours: Any, **options: Any) -> None:
            super().__init__(flavours, **options)
            made.append((list(self.flavours), options))

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(agent, "SandboxPool", Pool)
    return made


@pytest.mark.parametrize(
    ("sections", "flavours", "options"),
    [
        ({}, ["stdlib", "verifier"], {"max_live": None, "max_sessions": 0}),
        ({"tool": {"flavour": "verifier"}}, ["verifier"], {}),
        ({"tool": {"flavour": "auto"}}, ["stdlib", "numeric", "scientific", "verifier"], {}),
        (
            {
                "tool": {"kind": "jupyter", "flavour": "numeric"},
                "engine": {"max_running": 40, "sandbox_children": 3, "trajectory_timeout_s": 700.0},
            },
            ["numeric", "verifier"],
            {"max_live": 3, "max_sessions": 40, "lease_s": 760.0},
        ),
    ],
)
async def test_the_pool_has_what_the_recipe_needs(
    pools: list[Any], sections: dict[str, Any], flavours: list[str], options: dict[str, Any]
) -> None:
    async with agent.open_sandbox(recipe_of(**sections)):
        ((got_flavours, got),) = pools
    assert got_flavours == flavours
    assert got | options == got


@pytest.mark.parametrize(
    ("kind", "box", "schema"),
    [("python", PythonToolBox, PYTHON_SCHEMA), ("jupyter", JupyterToolBox, JUPYTER_SCHEMA)],
)
def test_the_tool_is_the_recipes(kind: str, box: type[ToolBox], schema: Any) -> None:
    tool = {"kind": kind, "wall_s": 2.5, "memory_mb": 64, "text": "brief", "max_parallel_calls": 3}
    sandbox = FakeSandbox({})
    made = agent.tool_box(recipe_of(tool=tool), sandbox)
    assert made == box(
        sandbox=sandbox,  # type: ignore[call-arg]
        limits=Limits(wall_s=2.5, cpu_s=3, memory_bytes=64 << 20),
        flavour="stdlib",
        style="brief",
        max_parallel_calls=3,
    )
    assert made.schemas == [schema]
