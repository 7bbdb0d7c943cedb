"""A turn is one caller's at a time, in order, whoever is cancelled or too late on the way."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.pool.fifo_lock import FifoLock

from ..patience import PATIENCE_S


async def let_run() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_free_turn_is_taken_without_waiting() -> None:
    taking = FifoLock().take(deadline=0.0)  # long ago: no clock is asked
    with pytest.raises(StopIteration):
        taking.send(None)


async def test_who_is_too_late_has_no_turn_and_keeps_nobody_from_it() -> None:
    turn = FifoLock()
    await turn.take(None)
    with pytest.raises(TimeoutError):
        await turn.take(asyncio.get_running_loop().time())
    behind = asyncio.create_task(turn.take(None))
    await let_run()
    assert not behind.done()
    turn.give()
    await behind


class Compared(asyncio.Future[None]):
    """A future that counts with how many it is compared."""

    number = 0
    __hash__ = asyncio.Future.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.number += 1
        return self is other


async def test_who_goes_away_is_not_looked_for_among_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """8,000 that went away, the last first, kept the loop for 0.7 s."""
    loop = asyncio.get_running_loop()
    turn = FifoLock()
    await turn.take(None)
    monkeypatch.setattr(loop, "create_future", lambda: Compared(loop=loop))
    waiting = [asyncio.create_task(turn.take(None)) for _ in range(50)]
    await let_run()
    for task in reversed(waiting[1:]):
        task.cancel()
    await let_run()
    assert Compared.number < 10
    turn.give()
    await waiting[0]


STEPS = st.lists(st.tuples(st.sampled_from(["take", "cancel", "give"]), st.integers(0, 5), st.booleans()), max_size=40)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, number=st.integers(1, 3))
async def test_no_more_have_it_than_may_and_they_have_it_in_order(
    steps: list[tuple[str, int, bool]], number: int
) -> None:
    turn, came, had, holding = FifoLock(number), 0, [], set[int]()
    waiting: dict[int, asyncio.Task[None]] = {}

    async def take(place: int) -> None:
        await turn.take(None)
        had.append(place)
        holding.add(place)
        assert len(holding) <= number

    for what, which, settles in steps:
        if what == "take":
            waiting[came] = asyncio.create_task(take(came))
            came += 1
        elif what == "cancel" and waiting:
            waiting[sorted(waiting)[which % len(waiting)]].cancel()
        elif what == "give" and holding:
            holding.pop()
            turn.give()
        if settles:
            await let_run()
        waiting = {number: task for number, task in waiting.items() if not task.done()}
    while waiting:
        await let_run()
        if holding:
            holding.pop()
            turn.give()
        waiting = {number: task for number, task in waiting.items() if not task.done()}
    assert had == sorted(had)
    for _ in holding:
        turn.give()
    assert turn.free == number
    await asyncio.wait_for(turn.take(None), PATIENCE_S)  # nobody has it any more
