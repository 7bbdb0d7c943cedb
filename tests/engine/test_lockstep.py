"""In lockstep, which rows share a forward does not depend on how fast tools answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rocstar.engine.inference.base import Generation, Sampling
from rocstar.engine.inference.embedded import EmbeddedEngine

TRAJECTORIES = [f"t{k}" for k in range(7)]
Forwards = list[list[int]]


def record_forwards(model: Any) -> Forwards:
    """The flat input ids of every forward from now on."""
    seen: Forwards = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["input_ids"][0].tolist())

    model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


async def converse(engine: EmbeddedEngine, name: str, pauses: random.Random) -> list[Generation]:
    """Three turns with a tool between that answers after any number of rounds of the loop."""
    ids = [5, 6, 7 + TRAJECTORIES.index(name)]
    turns = []
    try:
        for turn in range(3):
            turns.append(
                await engine.generate(
                    ids,
                    max_new_tokens=3 + TRAJECTORIES.index(name) % 4,
                    stop_ids=frozenset({0}),
                    sampling=Sampling(temperature=1.0),
                    seed=TRAJECTORIES.index(name),
                    request_id=name,
                    deadline=None,
                )
            )
            ids = [*ids, *turns[-1].ids, 9, 10 + turn]
            for _ in range(pauses.randrange(30)):
                await asyncio.sleep(0)
    finally:
        engine.release(name)
    return turns


@pytest.mark.parametrize("max_running", [3, 16])
async def test_forwards_and_bits_do_not_depend_on_tool_latency(
    models: Callable[..., Any], thread: ThreadPoolExecutor, max_running: int
) -> None:
    runs = []
    for latency_seed in (1, 2, 3):
        model = models("qwen3")
        forwards = record_forwards(model)
        pauses = random.Random(latency_seed)
        async with EmbeddedEngine(model, max_running=max_running, thread=thread, lockstep=True) as engine:
            engine.join(TRAJECTORIES)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                order = random.Random(latency_seed).sample(TRAJECTORIES, len(TRAJECTORIES))
                tasks = {name: group.create_task(converse(engine, name, pauses)) for name in order}
        runs.append((forwards, {name: tasks[name].result() for name in TRAJECTORIES}))
    assert runs[0] == runs[1] == runs[2]


async def test_nothing_decodes_while_one_that_joined_is_away(
    models: Callable[..., Any], thread: ThreadPoolExecutor
) -> None:
    model = models("qwen3")
    forwards = record_forwards(model)
    async with EmbeddedEngine(model, max_running=4, thread=thread, lockstep=True) as engine:
        engine.join(["t0", "t1"])
        first = asyncio.create_task(converse(engine, "t0", random.Random(0)))
        for _ in range(20):  # behind any burst that the engine handed to its thread
            await asyncio.get_running_loop().run_in_executor(thread, int)
        assert forwards == []
        engine.release("t1")  # it will not come
        async with asyncio.timeout(60):
            assert len(await first) == 3


async def test_without_lockstep_joining_means_nothing(
    models: Callable[..., Any], thread: ThreadPoolExecutor
) -> None:
    async with EmbeddedEngine(models("qwen3"), max_running=4, thread=thread) as engine:
        engine.join(["t0", "t1"])
        async with asyncio.timeout(60):
            assert len(await converse(engine, "t0", random.Random(0))) == 3
