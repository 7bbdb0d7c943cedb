"""Token weights: every token counts equally, and they always add up to one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.aggregate import token_weights


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([1, 3], [1 / 4, 1 / 4]), ([2, 0, 3], [1 / 5, 0.0, 1 / 5]), ([0, 0], [0.0, 0.0]), ([], [])],
)
def test_every_token_counts_equally(lengths: list[int], expected: list[float]) -> None:
    assert token_weights(lengths) == pytest.approx(expected)


@given(st.lists(st.integers(0, 5000), max_size=64).filter(any))
def test_weights_add_up_to_one_over_the_tokens(lengths: list[int]) -> None:
    weights = token_weights(lengths)
    assert sum(n * w for n, w in zip(lengths, weights, strict=True)) == pytest.approx(1.0)
