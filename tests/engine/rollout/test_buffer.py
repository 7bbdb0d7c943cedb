"""The staleness bound, over random schedules; and what the buffer refuses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.rollout.buffer import SlotBuffer, SlotBufferError


def play(batch: int, max_staleness: int, events: int, rng: random.Random, *, greedy: float) -> int:
    """A random host: starts, finishes and takes in any order it may, several times for one step. Returns the
    largest staleness seen."""
    buffer: SlotBuffer[str] = SlotBuffer(batch=batch, max_staleness=max_staleness)
    started = worst = 0
    born: dict[str, int] = {}
    seen: set[str] = set()
    for _ in range(events):
        choice = rng.random()
        if choice < greedy and buffer.may_start():
            key = str(started)
            started += 1
            born[key] = buffer.start(key)
        elif choice < 0.8 and buffer.running:
            key = rng.choice(buffer.running)
            buffer.finish(key, f"group {key}")
        elif buffer.is_learning:
            buffer.take_more(rng.randint(1, batch)) if choice > 0.95 else buffer.advance()
        elif buffer.can_take():
            before = buffer.step
            for key, group, staleness in buffer.take():
                assert group == f"group {key}" and key not in seen
                assert staleness == before - born[key]
                seen.add(key)
                worst = max(worst, staleness)
        elif not buffer.may_start() and not buffer.running:
            raise AssertionError("every slot is finished, and yet no batch can be taken")
        assert len(buffer.running) + len(buffer.finished) <= buffer.num_slots
    return worst


def test_no_group_is_taken_beyond_the_bound_in_10000_random_schedules() -> None:
    reached = set()
    for seed in range(10_000):
        rng = random.Random(seed)
        batch, bound = rng.randint(1, 4), rng.randint(0, 3)
        worst = play(batch, bound, 40, rng, greedy=rng.choice([0.2, 0.4, 0.6]))
        assert worst <= bound, f"seed {seed}: staleness {worst} > {bound}"
        reached.add((bound, worst))
    assert {(1, 1), (2, 2), (3, 3)} <= reached, "the bound was never reached: the schedules test nothing"


@given(st.integers(1, 4), st.integers(0, 3), st.data())
def test_whatever_finishes_first_the_learner_is_never_stuck(batch: int, bound: int, data: st.DataObject) -> None:
    """With all slots in use, the batch comes at the latest when everything in flight is done."""
    buffer: SlotBuffer[int] = SlotBuffer(batch=batch, max_staleness=bound)
    started = 0
    for _ in range(8):
        for count in (batch, data.draw(st.integers(0, batch))):
            if buffer.is_learning and count:
                buffer.take_more(count)
            while buffer.may_start():
                buffer.start(str(started))
                started += 1
            while count and not buffer.can_take():
                key = data.draw(st.sampled_from(buffer.running))
                buffer.finish(key, 0)
            assert not count or len(buffer.take()) == count
        buffer.advance()


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_step_that_takes_more_waits_for_so_many_and_starts_so_many(bound: int) -> None:
    buffer = full(bound)  # batches of 2
    for key in "01":
        buffer.finish(key, key)
    buffer.take()
    with pytest.raises(ValueError, match="1 to 2 more groups at a time, got 3"):
        buffer.take_more(3)
    buffer.take_more(1)
    assert buffer.may_start() and not buffer.is_learning
    buffer.start("more")
    assert not buffer.may_start() and not buffer.can_take()
    buffer.finish("more", "m")
    assert buffer.take() == [("more", "m", 0)]
    assert buffer.is_learning and not buffer.may_start()


def full(bound: int) -> SlotBuffer[str]:
    buffer: SlotBuffer[str] = SlotBuffer(batch=2, max_staleness=bound)
    while buffer.may_start():
        buffer.start(str(len(buffer.running)))
    return buffer


def test_without_staleness_a_batch_is_what_was_started_since_the_last() -> None:
    buffer = full(0)
    assert buffer.num_slots == 2
    buffer.finish("1", "b")
    assert not buffer.can_take()
    buffer.finish("0", "a")
    assert not buffer.may_start()
    assert [(key, age) for key, _, age in buffer.take()] == [("1", 0), ("0", 0)]
    assert not buffer.may_start(), "the learner is at work: what starts now has the old weights"
    buffer.advance()
    buffer.start("2")
    assert buffer.may_start() and buffer.running == ["2"]


def test_the_next_batch_waits_for_the_overdue_and_names_them() -> None:
    buffer = full(1)  # 0 1 2 3, all born at 0
    for key in "321":
        buffer.finish(key, key)
    assert [key for key, _, _ in buffer.take()] == ["3", "2"]
    assert not buffer.may_start()
    buffer.advance()
    buffer.start("4")
    buffer.start("5")
    buffer.finish("4", "4")
    buffer.finish("5", "5")
    assert not buffer.can_take()
    buffer.finish("0", "0")
    assert [(key, age) for key, _, age in buffer.take()] == [("1", 1), ("0", 1)]


def test_the_last_batch_may_be_smaller() -> None:
    buffer: SlotBuffer[str] = SlotBuffer(batch=4, max_staleness=1)
    buffer.start("a")
    buffer.finish("a", "A")
    assert not buffer.can_take() and buffer.can_take(1)
    assert buffer.take(1) == [("a", "A", 0)]


def test_a_restored_group_keeps_its_birth() -> None:
    buffer: SlotBuffer[str] = SlotBuffer(batch=1, max_staleness=2, step=7)
    buffer.restore("old", 5)
    assert buffer.born("old") == 5
    with pytest.raises(SlotBufferError, match="born at 5, cannot be taken in time after step 7"):
        buffer.restore("as old", 5)
    with pytest.raises(SlotBufferError, match="born at 4"):
        buffer.restore("older", 4)
    buffer.finish("old", "x")
    assert buffer.take() == [("old", "x", 2)]


def test_breaking_the_protocol_is_an_error() -> None:
    buffer = full(0)
    with pytest.raises(SlotBufferError, match="all 2 slots"):
        buffer.start("x")
    with pytest.raises(SlotBufferError, match="not in flight"):
        buffer.finish("x", "y")
    with pytest.raises(SlotBufferError, match="not complete"):
        buffer.take()
    with pytest.raises(SlotBufferError, match="no batch was taken"):
        buffer.advance()
    with pytest.raises(SlotBufferError, match="no group"):
        buffer.born("x")
    half: SlotBuffer[str] = SlotBuffer(batch=2, max_staleness=0)
    half.start("0")
    with pytest.raises(SlotBufferError, match="here already"):
        half.start("0")
    with pytest.raises(SlotBufferError, match="no batch was taken"):
        buffer.take_more(1)
    with pytest.raises(ValueError, match="a batch has 1 to 2 groups, got 3"):
        buffer.can_take(3)
    with pytest.raises(ValueError, match="batch=0"):
        SlotBuffer(batch=0, max_staleness=0)
