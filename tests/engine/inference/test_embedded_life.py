"""How the embedded engine begins and ends: nobody is left waiting, and a crash is heard."""

import asyncio
from typing import Any

import pytest
import torch

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from tests.fakes.asking import ask

pytestmark = pytest.mark.usefixtures("_one_torch_thread")


async def test_crash_fails_every_waiter_and_surfaces_on_exit(embedded: Any, models: Any, until: Any) -> None:
    model = models("llama")
    left = 3

    def crash(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError("the device is gone")

    model.register_forward_pre_hook(crash)
    with pytest.raises(RuntimeError, match="the device is gone"):  # noqa: PT012
        async with embedded(model, max_running=2) as engine:
            tasks = [asyncio.create_task(ask(engine, [30], str(k), 99)) for k in range(5)]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, InferenceError) and result.kind == "engine_stopped"
            with pytest.raises(InferenceError, match="the device is gone"):
                await ask(engine, [30], "later", 99)


async def test_aborted_request_is_answered_even_if_the_same_burst_crashes(
    embedded: Any, models: Any, gate: Any
) -> None:
    model = models("llama")
    held = gate(model, stop_at=2)
    crashing = False

    def crash(*_: Any) -> None:
        if crashing:
            raise RuntimeError("boom")

    model.register_forward_pre_hook(crash)
    with pytest.raises(RuntimeError, match="boom"):  # noqa: PT012
        async with embedded(model, max_running=2) as engine:
            tasks = [asyncio.create_task(ask(engine, [30], name, 99)) for name in "ab"]
            await held.reached.wait()
            await engine.abort("a")
            crashing = True
            held.open.set()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, InferenceError)


async def test_broken_weights_are_a_crash_not_a_token(embedded: Any, models: Any) -> None:
    model = models("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not finite"):  # noqa: PT012
        async with embedded(model, max_running=1) as engine:
            with pytest.raises(InferenceError, match="not finite"):
                await ask(engine, [30], "a", 99)


async def test_a_bodys_own_exception_is_not_replaced(embedded: Any, models: Any) -> None:
    model = models("llama")
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(LookupError, match="the body"):  # noqa: PT012
        async with embedded(model, max_running=1) as engine:
            with pytest.raises(InferenceError):
                await ask(engine, [30], "a", 99)
            raise LookupError("the body")


async def test_requests_outside_the_engines_life_are_refused(thread: Any, counting: Any) -> None:
    engine = EmbeddedEngine(counting(), max_running=1, thread=thread)
    with pytest.raises(InferenceError, match="not been entered"):
        await ask(engine, [1], "a")
    async with engine:
        waiting = asyncio.create_task(ask(engine, [1], "a", 1 << 19))
        await asyncio.sleep(0)
    with pytest.raises(InferenceError, match="engine_stopped"):
        await waiting
    with pytest.raises(InferenceError, match="engine_stopped"):
        await ask(engine, [1], "b")


async def test_busy_time_grows_with_work(embedded: Any, counting: Any) -> None:
    async with embedded(counting(), max_running=1) as engine:
        assert engine.busy_s == 0.0
        await ask(engine, [30], "a", 99)
        assert engine.busy_s > 0.0
