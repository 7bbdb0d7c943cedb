"""Round numbers for axes, and values as texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.charts.drawing import format_value, nice_ticks


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_their_range_in_round_steps(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    slack = 1e-6 * max(1e-300, ticks[-1] - ticks[0]) + 1e-6 * abs(low)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.041, "share", "4.1%"), (0.0, "share", "0%"), (0.96, "share", "96%"), (0.833, "reward", "0.83"),
        (1240.4, "tokens", "1,240"), (143.2, "tokens", "143"), (12.34, "s", "12.3 s"), (0.0, "s", "0 s"),
        (2e-5, "per step", "2e-05"),
    ],
)  # fmt: skip
def test_values_read_as_a_person_writes_them(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text
