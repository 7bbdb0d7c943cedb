"""What a recipe's tool becomes: the pool it needs, the box it is in."""

from typing import Any, Self

import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.python import PYTHON_SCHEMA, PythonTool
from rocstar.engine.types import Task
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Limits, SandboxError
from rocstar.train.evaluation.sets import agent_for_set, evaluation_sets
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving import agent
from rocstar.train.tasks.tools import tool_box
from tests.fakes.agents import JUPYTER_SCHEMA
from tests.fakes.sandbox import FakeSandbox
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer


def recipe_of(**sections: Any) -> Recipe:
    return parse_recipe(sections, where="test")


def test_a_task_is_asked_within_the_recipes_words_and_another_set_is_not() -> None:
    template = load_template("qwen3", None)
    chat = ChatFormat(ByteTokenizer(special=CHATML_TOKENS), template, [])
    sets = [{"set": "math500"}, {"set": "ifeval"}]
    recipe = recipe_of(model={"task_prompt": "Box it.\n{question}"}, eval=sets)
    nothing: Any = None
    made = agent.make_agent(recipe, nothing, chat, nothing)
    asked = Task(id="t", source="s", question="{question}?", answer="1")
    assert made.prompt is not None
    assert chat.decode(made.prompt(asked)).partition("assistant")[0] == (
        "<|im_start|>user\nBox it.\n{question}?<|im_end|>\n<|im_start|>"
    )
    maths, instructions = evaluation_sets(recipe, {"math500": [asked], "ifeval": [asked]})
    assert agent_for_set(made, maths).prompt is made.prompt
    assert agent_for_set(made, instructions).prompt is None, "IFEval's prompts are the benchmark's own"


def test_the_words_around_a_question_contain_it() -> None:
    with pytest.raises(ConfigError, match=r"must contain \{question\} once"):
        recipe_of(model={"task_prompt": "Box it."})


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
        ({"tool": {"flavour": "auto"}}, ["stdlib", "numeric", "scientific", "plot", "verifier"], {}),
        (
            {
                "tools": ["jupyter"],
                "tool": {"flavour": "numeric"},
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


@pytest.mark.parametrize(("retryable", "raised"), [(False, ConfigError), (True, TrainingStopped)])
async def test_a_sandbox_that_cannot_start_is_one_message(
    monkeypatch: pytest.MonkeyPatch, retryable: bool, raised: type[Exception]
) -> None:
    class Pool(SandboxPool):
        async def __aenter__(self) -> Self:
            raise SandboxError("flavour 'verifier' needs sympy", kind="missing_import", retryable=retryable)

    monkeypatch.setattr(agent, "SandboxPool", Pool)
    with pytest.raises(raised, match=r"cannot start: flavour 'verifier' needs sympy; see `.*rocstar"):
        async with agent.open_sandbox(recipe_of()):
            pass


@pytest.mark.parametrize(
    ("tools", "classes", "schemas"),
    [
        (["python"], [PythonTool], [PYTHON_SCHEMA]),
        (["jupyter"], [JupyterTool], [JUPYTER_SCHEMA]),
        (["jupyter", "python"], [JupyterTool, PythonTool], [JUPYTER_SCHEMA, PYTHON_SCHEMA]),
    ],
)
def test_the_tools_are_the_recipes(tools: list[str], classes: list[Any], schemas: Any) -> None:
    settings = {"wall_s": 2.5, "memory_mb": 64, "text": "brief", "max_parallel_calls": 3}
    recipe = recipe_of(tool=settings, tools=tools)
    limits = Limits(wall_s=2.5, cpu_s=3, memory_bytes=64 << 20)
    sandbox = FakeSandbox({})
    made = agent.make_agent(recipe, Any, Any, sandbox).tools  # type: ignore[arg-type]
    assert made == Dispatcher(
        tools=[one(limits=limits, flavour="stdlib", style="brief") for one in classes],
        sandbox=sandbox,
        max_parallel_calls=3,
        timeout_s=2.5,
    )
    assert tool_box(recipe).schemas == schemas
