"""Round numbers for axes."""

from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.charts.drawing import nice_ticks


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_their_range_in_round_steps(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    slack = 1e-6 * max(1e-300, ticks[-1] - ticks[0]) + 1e-6 * abs(low)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert ticks == sorted(set(ticks))
