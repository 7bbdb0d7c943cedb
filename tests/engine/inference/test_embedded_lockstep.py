"""In lockstep, which rows share a forward is a matter of the conversation, not of timing."""

import asyncio
import random
from typing import Any

import pytest

from rocstar.engine.inference.base import Generation
from tests.fakes.asking import ask

NAMES = [f"s0/t/{k}" for k in range(6)]


async def converse(engine: Any, k: int, rng: random.Random) -> None:
    """Three turns; the tool between them takes any number of rounds of the event loop."""
    ids = list(range(30, 33 + 4 * k))
    try:
        for turn in range(3):
            stops = frozenset(range(10))
            got = await ask(engine, ids, NAMES[k], 3 + (k + turn) % 4, stop_ids=stops, seed=k)
            ids += [*got.ids, 40 + k, 41]
            for _ in range(rng.choice([0, 5, 400])):
                await asyncio.sleep(0)
    finally:
        engine.release(NAMES[k])


async def forwards(
    embedded: Any, model: Any, seed: int, *, max_running: int, talk: Any = converse, **options: Any
) -> list[Any]:
    """The rows of every forward, with their lengths, under tools whose speed depends on `seed`."""
    rng = random.Random(seed)
    order = list(range(len(NAMES)))
    rng.shuffle(order)
    told = []
    async with embedded(model, max_running=max_running, **options) as engine:
        step = engine._step

        def recorded() -> Any:
            told.append([(row.row_id, len(row.ids), row.cached) for row in engine._slots.active()])
            return step()

        engine._step = recorded
        engine.join(NAMES)
        async with asyncio.TaskGroup() as group:
            for k in order:
                group.create_task(talk(engine, k, rng))
        assert not engine._absent or engine._inbox
    return told


@pytest.mark.parametrize(("max_running", "drafts"), [(2, 0), (4, 0), (6, 0), (3, 4)])
async def test_forwards_do_not_depend_on_the_speed_of_tools(
    embedded: Any, models: Any, max_running: int, drafts: int
) -> None:
    runs = [
        await forwards(embedded, models("qwen3"), seed, max_running=max_running, lockstep=True, drafts=drafts)
        for seed in range(4)
    ]
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert len({name for rows in runs[0] for name, *_ in rows}) == len(NAMES)


async def test_without_lockstep_joining_changes_nothing(embedded: Any, models: Any) -> None:
    told = await forwards(embedded, models("qwen3"), 0, max_running=4)
    assert told and max(len(rows) for rows in told) <= 4


async def test_decoding_waits_for_an_absent_trajectory(embedded: Any, counting: Any, until: Any) -> None:
    async with embedded(counting(), max_running=3, lockstep=True) as engine:
        engine.join(["a", "b"])
        first = asyncio.create_task(ask(engine, [1], "a", 2))
        await until(lambda: len(engine._waiting) == 1)
        for _ in range(20):
            await asyncio.get_running_loop().run_in_executor(engine._thread, lambda: None)
        assert not first.done() and engine.load().running == 0
        stranger = asyncio.create_task(ask(engine, [7], "c", 1))
        second = await ask(engine, [5], "b", 1)
        assert second.ids == (6,)
        await until(lambda: stranger.done())
        assert not first.done(), "b has no request again, so a waits in the middle of its turn"
        engine.release("b")
        assert (await first).ids == (2, 3)


@pytest.mark.parametrize("how", ["abort", "cancel", "deadline"])
async def test_stopped_request_makes_its_trajectory_absent_until_release(
    embedded: Any, counting: Any, until: Any, how: str
) -> None:
    loop = asyncio.get_running_loop()
    async with embedded(counting(), max_running=2, lockstep=True) as engine:
        engine.join(["a", "b"])
        deadline = loop.time() + 0.01 if how == "deadline" else None
        a = asyncio.create_task(ask(engine, [1], "a", 10**6, deadline=deadline))
        b = asyncio.create_task(ask(engine, [5], "b", 40))
        if how != "deadline":
            await until(lambda: engine.load().running == 2)
        if how == "abort":
            await engine.abort("a")
        elif how == "cancel":
            a.cancel()
        (result,) = await asyncio.gather(a, return_exceptions=True)
        expected = {"abort": Generation, "cancel": asyncio.CancelledError, "deadline": TimeoutError}
        assert isinstance(result, expected[how])
        engine.release("a")
        assert len((await b).ids) == 40
        engine.release("b")


async def fork(engine: Any, k: int, rng: random.Random, told: list[str]) -> None:
    """As `converse`; each even one forks behind its first turn, and so does its branch, in any order of the tools."""

    async def go_on(name: str, ids: list[int], turns: int) -> None:
        try:
            for turn in range(turns, 3):
                got = await ask(engine, ids, name, 3 + (k + turn) % 4, seed=k + 100 * len(name))
                ids = [*ids, *got.ids, 40 + k, 41]
                for _ in range(rng.choice([0, 5, 400])):
                    await asyncio.sleep(0)
                if name.count("~") + name.count(".") == 2 * turn and k % 2 == 0 and turn < 2:
                    branch = f"{name}/2.1" if "~" in name else f"{name}~1.1"
                    engine.branch(name, [branch])
                    told.append(branch)
                    group.create_task(go_on(branch, ids, turn + 1))
        finally:
            engine.release(name)

    async with asyncio.TaskGroup() as group:
        await go_on(NAMES[k], list(range(30, 33 + 4 * k)), 0)


@pytest.mark.parametrize("max_running", [3, 12])
async def test_branches_share_forwards_whatever_the_order_of_the_forks(
    embedded: Any, models: Any, max_running: int
) -> None:
    runs, orders = [], []
    for seed in range(4):
        told: list[str] = []

        async def converse_and_fork(engine: Any, k: int, rng: random.Random, told: list[str] = told) -> None:
            await fork(engine, k, rng, told)

        runs.append(
            await forwards(
                embedded, models("qwen3"), seed, max_running=max_running, lockstep=True, talk=converse_and_fork
            )
        )
        orders.append(tuple(told))
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert max_running == 3 or len(set(orders)) > 1, "the forks came in one order"
    assert len({name for rows in runs[0] for name, *_ in rows}) == len(NAMES) + 3 + 3
