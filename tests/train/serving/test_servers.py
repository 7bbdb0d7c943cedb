"""Arguments of servers, and a publish that reaches none. Whole runs: tests/integration/test_server_run.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.progress.progress import ProgressBoard
from rocstar.train.publish.node_servers import NodeServers
from rocstar.train.publish.server_publisher import ServerPublisher
from rocstar.train.publish.version_folders import VersionFolders
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.serving import servers
from rocstar.train.serving.servers import Launch, server_args, server_environment

from ...fakes.publishing import FakeTeam


def recipe_of(**engine: Any) -> Recipe:
    sections = {"engine": {"kind": "sglang", **engine}, "model": {"dtype": "bfloat16"}}
    return parse_recipe(sections, where="test")


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        (
            {"dtype": "bfloat16", "head_dtype": "float32"},
            {},
            {"dtype": "bfloat16", "enable-fp32-lm-head": True},
        ),
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
    ours = {"PATH": "/bin", "HF_HOME": "/h", "ROCSTAR_REDIS_URL": "redis://:secret@h", "RANK": "0"}
    ours |= {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "MASTER_PORT": "9",
    }
    ours |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    found = server_environment([1, 2], ours)
    assert {name for name, value in found.items() if value is None} >= ours.keys() - {
        *("PATH", "HF_HOME", "CUDA_VISIBLE_DEVICES")
    }
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
            await servers._enter_all(stack, cast(Any, [Server()] * 3), [Path("log")] * 3)
            assert not board.works
    assert seen == [("starting inference servers", k, 3, "servers") for k in range(3)]


class LostFleet:
    """No replica takes a version; one comes back, or none."""

    def __init__(self, *, comes_back: bool) -> None:
        self.version, self.comes_back, self.asked_s = 0, comes_back, 0.0

    async def publish(self, version: int, source: Any, *, keep: Any) -> None:
        self.version = version
        raise InferenceError("publish_failed", "no replica took it", retryable=True)

    async def wait_up(self, timeout_s: float) -> bool:
        self.asked_s = timeout_s
        return self.comes_back


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_version_that_no_server_takes(
    tmp_path: Path, thread: ThreadPoolExecutor, comes_back: bool
) -> None:
    """One that comes back finds it on the disk; if none does, the run ends and says where the logs are."""
    fleet, kept = LostFleet(comes_back=comes_back), []
    replica = SimpleNamespace(
        log_path=tmp_path / "sglang-0.log",
        engine=SimpleNamespace(dtype="float32"),
        keep=lambda version, source: kept.append((version, source.path)),
    )
    (tmp_path / "start").mkdir()
    publisher = ServerPublisher(
        home=NodeServers(
            fleet=cast(Any, fleet),
            replicas=[cast(Any, replica)],
            recipe=recipe_of(),
            start_from=print,
            patience_s=9.0,
        ),
        team=cast(Any, FakeTeam(tmp_path / "weights")),
        thread=thread,
        folders=VersionFolders(tmp_path / "weights", tmp_path / "start", torch.float32),
    )
    expected: Any = contextlib.nullcontext()
    if not comes_back:
        expected = pytest.raises(TrainingStopped, match=r"version 3 .*sglang-0\.log, then go on")
    with expected:
        await publisher.publish(3)
    assert kept == [(3, tmp_path / "weights" / "v3")] and fleet.asked_s == 9.0
    assert (tmp_path / "weights" / "v3" / "model.safetensors").exists()
