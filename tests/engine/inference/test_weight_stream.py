"""Weights that pass by once: whole and in order or an error, two buckets at a time, and nobody waits for
ever."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.weight_stream import Bucket, WeightStream, in_buckets
from rocstar.engine.inference.weights import DiskWeights

from ...patience import PATIENCE_S

SHAPES = {name: (2,) for name in "abcdef"}


@pytest.fixture
def learner() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
async def stream(tmp_path: Path) -> WeightStream:
    return WeightStream(SHAPES, kept=DiskWeights(tmp_path))


def bucket(names: str) -> Bucket:
    return [(name, torch.full((2,), float(ord(name)))) for name in names]


def send(stream: WeightStream, *names: str) -> bool:
    for one in names:
        stream.put(bucket(one))
    stream.end()
    return stream.outcome()


@given(sizes=st.lists(st.integers(0, 40), max_size=20), most=st.integers(1, 60))
def test_neighbours_share_a_bucket_as_far_as_there_is_room(sizes: list[int], most: int) -> None:
    named = {str(k): size for k, size in enumerate(sizes)}
    made = in_buckets(named, most)
    assert [name for one in made for name in one] == list(named)
    totals = [sum(named[name] for name in one) for one in made]
    assert all(len(one) == 1 or total <= most for one, total in zip(made, totals, strict=True))
    for total, following in zip(totals, made[1:], strict=False):
        assert total + named[following[0]] > most, "it would have had room"


async def test_what_is_put_arrives_once_and_in_order(learner: ThreadPoolExecutor, stream: WeightStream) -> None:
    sending = learner.submit(send, stream, "ab", "c", "def")
    got = [(name, float(tensor[0])) async for one in stream for name, tensor in one]
    assert got == [(name, float(ord(name))) for name in "abcdef"]
    stream.settle(True)
    stream.settle(False)
    assert await asyncio.wrap_future(sending), "the first time counts"


async def test_two_buckets_are_there_at_a_time(learner: ThreadPoolExecutor, stream: WeightStream) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def gather() -> None:
        for name in SHAPES:
            made = bucket(name)
            alive.append(weakref.ref(made[0][1]))
            stream.put(made)
            del made

    sending = learner.submit(gather)
    most = 0
    async for one in stream:
        await asyncio.sleep(0.002)  # it is being sent; a sender that ran ahead would now
        most = max(most, sum(ref() is not None for ref in alive))
        del one
    await asyncio.wrap_future(sending)
    gc.collect()
    assert most <= 2 and not any(ref() is not None for ref in alive)


@pytest.mark.parametrize(
    ("shapes", "names", "told"),
    [
        (SHAPES, ("a",), "5 tensors did not come"),
        (SHAPES, ("b",), "b is not what was announced"),
        ({"a": (3,)}, ("a",), "a is not what was announced"),
    ],
)
async def test_weights_that_do_not_come_whole_are_an_error(
    learner: ThreadPoolExecutor, tmp_path: Path, shapes: Any, names: tuple[str, ...], told: str
) -> None:
    stream = WeightStream(shapes, kept=DiskWeights(tmp_path))
    sending = learner.submit(send, stream, *names)
    stream.settle(False, ValueError("no server"))
    with pytest.raises(InferenceError, match=told):
        async for _ in stream:
            pass
    with pytest.raises(ValueError, match="no server"):
        await asyncio.wrap_future(sending)


@pytest.mark.parametrize("when", ["before", "between"])
async def test_who_gathers_goes_on_when_nobody_takes(
    learner: ThreadPoolExecutor, stream: WeightStream, when: str
) -> None:
    if when == "before":
        stream.let_go()
    sending = learner.submit(send, stream, "ab", "c", "def")
    if when == "between":
        await anext(stream)
        stream.let_go()
    with pytest.raises(InferenceError):
        await anext(stream)
    stream.settle(True)
    assert await asyncio.wrap_future(sending)


async def test_who_gathers_goes_on_while_the_loop_stands_still(
    learner: ThreadPoolExecutor, stream: WeightStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends waits on its loop for the learner's thread, which is inside `put` here."""
    inside, tell = Event(), WeightStream._call_soon

    def told(self: WeightStream, what: Callable[[], None]) -> bool:
        inside.set()
        return tell(self, what)

    monkeypatch.setattr(WeightStream, "_call_soon", told)
    sending = learner.submit(send, stream, "ab", "c", "def")
    assert inside.wait(PATIENCE_S)
    putting = stream._putting
    assert putting is not None
    stream.abandon()
    try:
        assert putting.done(), "it would wait for the loop"
        with pytest.raises(InferenceError, match="no server takes them any more"):
            sending.result(PATIENCE_S)
    finally:
        if not putting.done():
            putting.set_result(None)  # a thread that is stuck would hold up the end of the tests


async def test_who_missed_them_takes_the_files_and_the_learner_need_not_wait(
    learner: ThreadPoolExecutor, tmp_path: Path
) -> None:
    written: Future[None] = Future()

    class Late(DiskWeights):
        def shapes(self) -> dict[str, tuple[int, ...]]:
            written.result()
            return super().shapes()

    stream = WeightStream(SHAPES, kept=Late(tmp_path))
    sending = learner.submit(send, stream, "ab", "c", "def")
    await anext(stream)
    asking = asyncio.create_task(stream.files())
    assert not await asyncio.wrap_future(sending) and not asking.done()
    save_file(dict(bucket("abcdef")), tmp_path / "model.safetensors")
    written.set_result(None)
    assert (await asking).shapes() == SHAPES and torch.equal(stream.tensor("c"), bucket("c")[0][1])


async def test_files_that_will_not_come(stream: WeightStream) -> None:
    with pytest.raises(InferenceError, match="weights_behind"):
        await stream.files()


def test_a_loop_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    async def make() -> WeightStream:
        return WeightStream(SHAPES, kept=DiskWeights(tmp_path))

    stream = asyncio.run(make())
    stream.put(bucket("a"))
    stream.end()
