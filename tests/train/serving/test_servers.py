"""Arguments and environment of servers. Whole runs: tests/integration/test_server_run.py."""

import contextlib
from pathlib import Path
from typing import Any, cast

import pytest

from rocstar.engine.progress.progress import ProgressBoard
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving import sglang
from rocstar.train.serving.sglang import Launch, server_args, server_environment


def recipe_of(**engine: Any) -> Recipe:
    sections = {"engine": {"kind": "sglang", **engine}, "model": {"dtype": "bfloat16"}}
    return parse_recipe(sections, where="test")


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        ({"dtype": "bfloat16", "head_dtype": "float32"}, {}, {"dtype": "bfloat16", "enable-fp32-lm-head": True}),
        ({"dtype": "float32", "head_dtype": "float32"}, {}, {"dtype": "float32"}),
        ({"dtype": "bfloat16", "head_dtype": "model"}, {}, {"dtype": "bfloat16"}),
        (
            {"dtype": "bfloat16", "head_dtype": "float32"},
            {"enable_fp32_lm_head": False},
            {"dtype": "bfloat16", "enable_fp32_lm_head": False},
        ),
    ],
)
def test_a_server_has_the_head_of_the_recipe(
    model: dict[str, str], args: dict[str, Any], expected: dict[str, Any]
) -> None:
    """By the option of SGLang, unless the recipe's own arguments name it."""
    recipe = parse_recipe({"engine": {"kind": "sglang", "args": args}, "model": model}, where="test")
    assert server_args(recipe, 0) == expected
    command = Launch(recipe=recipe, folder=Path("m"), replica=0)(1)
    assert ("--enable-fp32-lm-head" in command) == (True in expected.values())


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, {"dtype": "bfloat16"}),
        ({"args": {"dtype": "float16"}}, {"dtype": "float16"}),
        ({"replicas": [[0, 1], [2, 3]]}, {"dtype": "bfloat16", "tp-size": 2}),
        ({"replicas": [[0, 1]], "args": {"dp_size": 2}}, {"dtype": "bfloat16", "dp_size": 2}),
        ({"replicas": [[0]]}, {"dtype": "bfloat16"}),
    ],
)
def test_what_the_recipe_says_elsewhere_is_said_to_the_server(
    engine: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert server_args(recipe_of(**engine), 0) == expected


def test_a_server_gets_neither_secrets_nor_torchruns_rendezvous() -> None:
    passed = {"PATH": "/bin", "HF_HOME": "/h"}
    removed = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT"), "0")
    removed |= {"ROCSTAR_REDIS_URL": "redis://:secret@h", "ROLE_NAME": "default"}
    removed |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    found = server_environment([1, 2], passed | removed | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert {name for name, value in found.items() if value is None} >= removed.keys()
    assert found["CUDA_VISIBLE_DEVICES"] == "5,6" and not found.keys() & {"PATH", "HF_HOME"}


def test_servers_are_started_from_where_the_weights_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", "py")
    launch = Launch(recipe=recipe_of(), folder=Path("a"), replica=0)
    before = launch(7)
    launch.folder = Path("b")
    assert [command[4] for command in (before, launch(7))] == ["a", "b"]


async def test_who_watches_sees_how_many_servers_are_up() -> None:
    board, seen = ProgressBoard(), []

    class Server:
        async def __aenter__(self) -> None:
            (work,) = board.works
            seen.append((work.what, work.done, work.total, work.unit))

        async def __aexit__(self, *_: object) -> None:
            pass

    with board.installed():
        async with contextlib.AsyncExitStack() as stack:
            await sglang._enter_all(stack, cast(Any, [Server()] * 3), [Path("log")] * 3)
            assert not board.works
    assert seen == [("starting inference servers", k, 3, "servers") for k in range(3)]
