"""Groups ahead of the learner: bounded, never lost, bugs raised where the learner waits. Time is virtual."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocstar.engine.rollout.buffer import SlotBuffer
from rocstar.engine.rollout.feed import GroupFeed, Ticket
from rocstar.engine.types import Group, Task
from tests.fakes.scripted_policy import on_virtual_time


def tickets(count: int, batch: int = 2) -> Iterator[Ticket]:
    for k in range(count):
        task = Task(id=f"t{k}", source="test", question="?", answer="!")
        yield Ticket(step=k // batch + 1, task=task)


def group_of(ticket: Ticket) -> Group:
    return Group(task=ticket.task, trajectories=())


class Rollouts:
    """Groups that take as long as told, and remember under which version they began and ended."""

    def __init__(self, seconds: Callable[[Ticket], float]) -> None:
        self.seconds, self.version = seconds, 0
        self.began: dict[str, int] = {}
        self.done: list[str] = []

    async def __call__(self, ticket: Ticket) -> Group:
        self.began[ticket.task.id] = self.version
        await asyncio.sleep(self.seconds(ticket))
        self.done.append(ticket.task.id)
        return group_of(ticket)


def feed_of(rollouts: Any, count: int, *, batch: int = 2, bound: int = 1) -> GroupFeed:
    return GroupFeed(rollouts, tickets(count, batch), SlotBuffer(batch=batch, max_staleness=bound))


@pytest.mark.parametrize("bound", [0, 1, 2])
@on_virtual_time
async def test_every_group_comes_once_and_none_is_older_than_the_bound(bound: int) -> None:
    rng = random.Random(bound)
    rollouts = Rollouts(lambda ticket: rng.expovariate(0.2))
    seen: list[str] = []
    ages: list[int] = []
    async with feed_of(rollouts, 23, batch=3, bound=bound) as feed:
        while batch := await feed.batch():
            for aged in batch:
                assert rollouts.version - rollouts.began[aged.group.task.id] <= aged.staleness <= bound
            seen += [aged.group.task.id for aged in batch]
            ages += [aged.staleness for aged in batch]
            await asyncio.sleep(4.0)  # the learner
            rollouts.version += 1
            feed.advance()
    assert sorted(seen) == sorted(f"t{k}" for k in range(23))
    assert max(ages) == bound


@on_virtual_time
async def test_without_staleness_the_learner_and_the_rollouts_take_turns() -> None:
    rollouts = Rollouts(lambda ticket: 1.0)
    async with feed_of(rollouts, 6, bound=0) as feed:
        for step in range(3):
            await feed.batch()
            await asyncio.sleep(10.0)
            assert len(rollouts.began) == 2 * (step + 1)
            feed.advance()
        assert await feed.batch() == []


@on_virtual_time
async def test_rollouts_go_on_while_the_learner_works() -> None:
    rollouts = Rollouts(lambda ticket: 1.0)
    async with feed_of(rollouts, 8, bound=1) as feed:
        await feed.batch()
        await asyncio.sleep(10.0)
        assert sorted(rollouts.done) == ["t0", "t1", "t2", "t3"]


@on_virtual_time
async def test_leaving_cancels_what_is_in_flight() -> None:
    rollouts = Rollouts(lambda ticket: 1.0 if ticket.step == 1 else 3600.0)
    async with feed_of(rollouts, 8, bound=1) as feed:
        await feed.batch()
        assert [ticket.key for ticket in feed.in_flight] == ["s2/t2", "s2/t3"]
    await asyncio.sleep(10_000.0)
    assert sorted(rollouts.done) == ["t0", "t1"]


@on_virtual_time
async def test_a_bug_in_a_rollout_is_raised_where_the_learner_waits() -> None:
    async def broken(ticket: Ticket) -> Group:
        raise ZeroDivisionError(ticket.key)

    async with feed_of(broken, 8) as feed:
        with pytest.raises(ZeroDivisionError, match="s1/t0"):
            await feed.batch()


@on_virtual_time
async def test_a_batch_has_a_deadline() -> None:
    async with feed_of(Rollouts(lambda ticket: 3600.0), 8) as feed:
        with pytest.raises(TimeoutError):
            await feed.batch(deadline=5.0)


@on_virtual_time
async def test_what_a_checkpoint_keeps_goes_on_in_another_process() -> None:
    first = Rollouts(lambda t: 1.0 + int(t.task.id[1:]) / 10 if t.task.id != "t3" else 3600.0)
    async with feed_of(first, 12) as feed:
        await feed.batch()
        feed.advance()
        await asyncio.sleep(10.0)
        running, finished = feed.in_flight, feed.finished
    assert [t.key for t in running] == ["s2/t3"]
    assert [(t.key, born) for t, _, born in finished] == [("s2/t2", 0), ("s3/t4", 1), ("s3/t5", 1)]

    second = Rollouts(lambda ticket: 1.0)
    supply = itertools.islice(tickets(12), 6, None)
    other = GroupFeed(second, supply, SlotBuffer(batch=2, max_staleness=1, step=1))
    for ticket, group, born in finished:
        other.restore(ticket, group, born)
    for ticket in running:
        other.restore(ticket, None, 0)
    async with other:
        taken = [aged.group.task.id for aged in await other.batch()]
        assert taken == ["t2", "t3"], "both are due; t3 was rolled out again"
        other.advance()
        assert [aged.group.task.id for aged in await other.batch()] == ["t4", "t5"]
    assert "t2" not in second.began and "t3" in second.began
