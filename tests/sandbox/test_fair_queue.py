"""Places are shared by lanes, whatever the order in which calls come, begin and end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.pool.fair_queue import FairQueue

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "first", "pop", "ended", "discard"]), st.integers(0, 3)), max_size=60
)


@given(STEPS)
def test_it_is_the_turn_of_a_lane_with_least_under_way(steps: list[tuple[str, int]]) -> None:
    lanes: FairQueue[tuple[int, int]] = FairQueue()
    waiting: list[list[int]] = [[], [], [], []]  # numbers, in the order in which they are due in their lane
    under_way = [0, 0, 0, 0]
    tickets: dict[int, int] = {}
    for number, (step, lane) in enumerate(steps):
        if step == "append":
            tickets[number] = lanes.put(lane, (lane, number))
            waiting[lane].append(number)
        elif step == "first":
            tickets[number] = lanes.put_first(lane, (lane, number))
            waiting[lane].insert(0, number)
        elif step == "discard" and waiting[lane]:
            lanes.discard(lane, tickets[waiting[lane].pop(number % len(waiting[lane]))])
        elif step == "pop" and any(waiting):
            least = min(under_way[one] for one in range(4) if waiting[one])
            assert (lanes.idle_lanes > 0) is (least == 0)
            chosen, popped = lanes.pop()
            assert under_way[chosen] == least and waiting[chosen].pop(0) == popped
            under_way[chosen] += 1
        elif step == "ended" and under_way[lane]:
            lanes.finish(lane)
            under_way[lane] -= 1
        assert lanes.size == sum(map(len, waiting))
    left = {(lane, number) for lane, numbers in enumerate(waiting) for number in numbers}
    assert set(lanes.clear()) == left and not lanes.size


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 3)), max_size=60))
def test_to_pass_by_is_to_be_appended_and_popped(steps: list[tuple[bool, int, int]]) -> None:
    """While nothing waits: whose turn it is afterwards is the same."""
    passed, popped = FairQueue[int](), FairQueue[int]()
    under_way = [0, 0, 0, 0]
    for comes, lane, weight in steps:
        if comes:
            passed.count_as_popped(lane, weight)
            popped.put(lane, lane, weight)
            assert popped.pop() == lane
            under_way[lane] += 1
        elif under_way[lane]:
            under_way[lane] -= 1
            passed.finish(lane)
            popped.finish(lane)
    for lanes in (passed, popped):
        for lane in range(4):
            lanes.put(lane, lane)
    assert [passed.pop() for _ in range(4)] == [popped.pop() for _ in range(4)]


def turns(lanes: FairQueue[str], number: int, places: int) -> list[str]:
    """Who is next, with so many places, where the first that began is the first to end."""
    names = {"many": 1, "few": 2, "late": 3}
    running: list[str] = []
    order = []
    for _ in range(number):
        if len(running) == places:
            lanes.finish(names[running.pop(0)])
        running.append(lanes.pop())
        order.append(running[-1])
    return order


def test_who_has_waited_long_does_not_come_first_again_and_again() -> None:
    """With one place nobody has anything under way when it is free: the oldest was all that many had."""
    lanes: FairQueue[str] = FairQueue()
    for _ in range(60):
        lanes.put(1, "many")
    for _ in range(3):
        lanes.put(2, "few")
    assert turns(lanes, 6, places=1) == ["many", "few"] * 3


def test_who_comes_late_has_no_turns_to_catch_up_with() -> None:
    lanes: FairQueue[str] = FairQueue()
    for _ in range(60):
        lanes.put(1, "many")
    turns(lanes, 20, places=21)
    for _ in range(20):
        lanes.finish(1)
    for _ in range(10):
        lanes.put(3, "late")
    assert turns(lanes, 8, places=1).count("many") == 4


@pytest.mark.parametrize("places", [1, 4, 8])
def test_places_are_shared_by_weight(places: int) -> None:
    lanes: FairQueue[str] = FairQueue()
    for _ in range(200):
        lanes.put(1, "many", weight=1)
        lanes.put(2, "few", weight=3)
    assert 65 <= turns(lanes, 90, places=places).count("few") <= 70


def test_a_light_lane_with_nothing_under_way_is_not_passed_by() -> None:
    lanes: FairQueue[str] = FairQueue()
    for _ in range(20):
        lanes.put(1, "many", weight=1000)
    assert turns(lanes, 3, places=9) == ["many"] * 3
    lanes.put(2, "few")
    assert lanes.idle_lanes and lanes.pop() == "few"


def test_a_lane_that_is_busy_for_ever_takes_no_more_room() -> None:
    lanes: FairQueue[str] = FairQueue()
    for _ in range(5):
        lanes.put(1, "many")
    running = 0
    for _ in range(5000):
        lanes.put(1, "many")
        lanes.pop()
        running += 1
        if running > 3:
            lanes.finish(1)
            running -= 1
    assert len(lanes._heap) < 100


def test_what_is_discarded_takes_no_room() -> None:
    lanes: FairQueue[str] = FairQueue()
    lanes.put(1, "many")
    for _ in range(5000):
        lanes.discard(2, lanes.put(2, "few"))
    assert lanes.size == 1 and len(lanes._heap) < 100 and len(lanes._lanes) == 1
