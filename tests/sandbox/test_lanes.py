"""Places are shared by lanes, whatever the order in which calls come, begin and end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.pool.lanes import Lanes

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "first", "pop", "ended"]), st.integers(0, 3)), max_size=60
)


@given(STEPS)
def test_the_oldest_of_the_lane_with_least_under_way_is_next(steps: list[tuple[str, int]]) -> None:
    lanes: Lanes[tuple[int, int]] = Lanes()
    waiting: list[tuple[int, int]] = []  # (lane, number), in the order in which they are due within a lane
    under_way = [0, 0, 0, 0]
    for number, (step, lane) in enumerate(steps):
        if step == "append":
            lanes.append(lane, (lane, number))
            waiting.append((lane, number))
        elif step == "first":
            lanes.append_first(lane, (lane, number))
            waiting.insert(0, (lane, number))
        elif step == "pop" and waiting:
            least = min(under_way[lane] for lane, _ in waiting)
            expected = next(item for item in waiting if under_way[item[0]] == least)
            assert lanes.pop() == expected
            waiting.remove(expected)
            under_way[expected[0]] += 1
        elif step == "ended" and under_way[lane]:
            lanes.ended(lane)
            under_way[lane] -= 1
        assert len(lanes) == len(waiting)
    assert set(lanes.clear()) == set(waiting) and not lanes


def test_an_empty_one_has_nothing() -> None:
    with pytest.raises(IndexError):
        Lanes[int]().pop()
