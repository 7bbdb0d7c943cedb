"""Tiny checkpoints, and SGLang's client over a server that stands in for the real one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.weights import DiskWeights
from tests.fakes.sglang.fake_model import VOCAB, write_tiny_model
from tests.fakes.sglang.fake_server import FakeServer


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of one shape, `a` and `b`."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: write_tiny_model(folder / name, seed=k) for k, name in enumerate("ab")}


@pytest.fixture
def sglang(checkpoints: dict[str, Path]) -> Callable[..., Any]:
    """`async with sglang(capacity=..) as (engine, server)`; the engine's options begin with engine_."""

    @asynccontextmanager
    async def started(**options: Any) -> AsyncIterator[tuple[SGLangEngine, FakeServer]]:
        mine = {k.removeprefix("engine_"): options.pop(k) for k in list(options) if k.startswith("engine_")}
        async with FakeServer(checkpoints["a"], **options) as server:
            async with SGLangEngine(
                server.url, vocab_size=VOCAB, model=DiskWeights(checkpoints["a"]), **{"watch_every_s": 0.02, **mine}
            ) as engine:
                yield engine, server

    return started
