"""What was served is records of a run: whole after a kill, and rewarded by thumbs."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.serve.conversation_store import ConversationStore, parse_step
from rocstar.engine.types import Task, TrajectoryKey
from tests.fakes.json_lines import read_folder

from .conftest import Serving, SlowTool, keeping, make_agent, scripted

WORDS = ["one", "two"]


def records(folder: Path) -> list[dict[str, Any]]:
    return list(read_folder(folder / "trajectories"))


def outcomes(folder: Path) -> list[Any]:
    """Reward, or kind of failure, of each record in order."""
    payload = [record["outcome"] for record in records(folder)]
    return [one.get("reward", one.get("failed", {}).get("kind")) for one in payload]


async def test_every_conversation_is_a_record(serving: Serving, tmp_path: Path) -> None:
    async with serving(lambda request: WORDS[int(request.request_id[-1])], keeps=True) as client:
        payload = await client.chat(n=2, seed=7)
        await client.json("/v1/completions", {"model": "rocstar-raw", "prompt": "ab"})
        judged = await client.chat(metadata={"answer": "one"})
    found = records(tmp_path / "served")
    assert [record["turns"][0]["text"] for record in found] == ["one", "two", "one", "one"]
    assert [record["seed"] for record in found[:2]] == [[7, 0, 0], [7, 0, 1]]
    assert {record["task"]["meta"]["conversation"] for record in found[:2]} == {payload["id"][9:]}
    assert outcomes(tmp_path / "served") == ["unjudged", "unjudged", "unjudged", 1.0]
    assert found[0]["task"]["question"] == "2+2?" and found[0]["segments"][1]["text"].startswith("one")
    assert judged["rocstar"]["rewards"] == [1.0]


async def test_a_thumb_is_a_reward(serving: Serving, tmp_path: Path) -> None:
    async with serving(lambda request: str(request.seed), keeps=True) as client:
        payload = await client.chat(n=3)

        async def thumb(index: int, which: str, status: int = 200) -> None:
            body = {"id": payload["id"], "index": index, "thumb": which, "comment": "so"}
            await client.json("/v1/feedback", body, status=status)

        await thumb(0, "down")
        await thumb(0, "up")
        await thumb(1, "down")
        await thumb(3, "up", status=404)
    assert outcomes(tmp_path / "served") == [1.0, 0.0, "unjudged"]
    lines = (tmp_path / "served" / "feedback.jsonl").read_text().splitlines()
    assert [json.loads(line)["thumb"] for line in lines] == ["down", "up", "down"]


async def one(store: ConversationStore, seed: int, temperature: float = 1.0) -> str:
    """A conversation that is served and kept."""
    name = store.begin()
    meta = {"conversation": name, "temperature": temperature}
    task = Task(id="t", source="serve", question="q", answer="4", meta=meta)
    agent = make_agent(scripted(["4"]), SlowTool())
    key = TrajectoryKey(seed=seed, step=0, task_id="t", sibling=0)
    await store.keep(name, [await run_trajectory(agent, task, key)])
    return name


def folder_of(tmp_path: Path, **options: Any) -> ConversationStore:
    return keeping(tmp_path, make_agent(scripted(["4"]), SlowTool()), **options)


async def test_a_killed_server_left_every_record(tmp_path: Path) -> None:
    killed = folder_of(tmp_path)
    await killed.__aenter__()
    await one(killed, 1)
    await one(killed, 2)
    assert not records(tmp_path)
    path = tmp_path / "trajectories" / "step_000001.columns"
    with path.open("ab") as file:
        file.write(b"torn")
    async with folder_of(tmp_path) as store:
        await one(store, 3)
    killed._thread.shutdown()
    frames = killed._open[1].frames
    assert frames is not None
    frames.__exit__(None, None, None)
    assert [record["seed"][0] for record in records(tmp_path)] == [1, 2, 3]
    assert len(list((tmp_path / "trajectories").glob("*.index"))) == 2


async def test_a_full_file_gets_its_index_when_all_of_it_is_there(tmp_path: Path) -> None:
    async with folder_of(tmp_path, per_file=2) as store:
        slow = store.begin()
        await one(store, 1)
        assert parse_step(await one(store, 2)) == 2 and not records(tmp_path)
        await store.keep(slow, [])
        assert [record["seed"][0] for record in records(tmp_path)] == [1]


async def test_a_late_thumb_is_taken_in(tmp_path: Path) -> None:
    async with folder_of(tmp_path, per_file=1) as store:
        name = await one(store, 1)
        await one(store, 2)
        assert outcomes(tmp_path)[0] == 1.0  # the judge's
        assert await store.feedback(name, 0, "down", "")
        assert not await store.feedback(name, 1, "down", "")
        for other in ("1-none", "../x", "", "1", "-x", "x-1", "9" * 20 + "-a"):
            assert not await store.feedback(other, 0, "down", "")
        assert outcomes(tmp_path)[0] == 1.0
    assert outcomes(tmp_path) == [0.0, 1.0]
    async with folder_of(tmp_path):  # nothing is taken in twice
        size = (tmp_path / "trajectories" / "step_000001.columns").stat().st_size
    assert (tmp_path / "trajectories" / "step_000001.columns").stat().st_size == size
    assert outcomes(tmp_path) == [0.0, 1.0]


async def test_a_thumb_that_comes_while_a_file_gets_its_index_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thumbs were read already: it is of a file that is closed when it is told."""
    gate, began, settle = threading.Event(), threading.Event(), ConversationStore._settle

    def settled(store: ConversationStore, steps: Sequence[int]) -> None:
        settle(store, steps)
        began.set()
        gate.wait()

    async with folder_of(tmp_path, per_file=1) as store:
        monkeypatch.setattr(ConversationStore, "_settle", settled)
        keeping = asyncio.create_task(one(store, 1))
        await asyncio.to_thread(began.wait)
        ((name, choice),) = store._open[1].names
        thumb = asyncio.create_task(store.feedback(name, choice, "down", ""))
        await asyncio.sleep(0)
        gate.set()
        assert await thumb and await keeping == name
        assert outcomes(tmp_path) == [1.0]
        monkeypatch.undo()
    assert outcomes(tmp_path) == [0.0]


async def test_the_same_question_with_the_same_seed_is_one_record(tmp_path: Path) -> None:
    async with folder_of(tmp_path) as store:
        await one(store, 1)
        await one(store, 1)
    assert len(records(tmp_path)) == 1


async def test_another_temperature_is_never_learned(tmp_path: Path) -> None:
    async with folder_of(tmp_path) as store:
        name = await one(store, 1, temperature=0.5)
        assert await store.feedback(name, 0, "up", "")
    assert outcomes(tmp_path) == ["other_temperature"]


async def test_a_disk_that_is_far_behind_holds_requests_back(serving: Serving) -> None:
    """What waits for it is bounded, and so is the memory that this takes."""
    limits = {"max_unwritten": 2, "queue_timeout_s": 0.2}
    async with serving(scripted(["one"]), keeps=True, **limits) as client:
        gate, store = threading.Event(), client.conversations.store
        store._thread.submit(gate.wait)
        try:
            for _ in range(2):
                assert (await client.chat())["choices"]
            assert client.conversations.in_flight == client.conversations._unwritten == 2
            assert (await client.chat(status=503))["error"]["code"] == "disk_behind"
            assert client.conversations.in_flight == 2
        finally:
            gate.set()
        assert (await client.chat())["choices"]
        await client.conversations._idle.wait()
        assert client.conversations._unwritten == 0
