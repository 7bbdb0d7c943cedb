"""Token weights: what counts equally, and that they always add up to one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.aggregate import Aggregation, token_weights


@pytest.mark.parametrize(
    ("mode", "lengths", "expected"),
    [
        (Aggregation.token_mean, [1, 3], [1 / 4, 1 / 4]),
        (Aggregation.sequence_mean, [1, 3], [1 / 2, 1 / 6]),
        (Aggregation.token_mean, [2, 0, 3], [1 / 5, 0.0, 1 / 5]),
        (Aggregation.sequence_mean, [2, 0, 3], [1 / 4, 0.0, 1 / 6]),
        (Aggregation.token_mean, [0, 0], [0.0, 0.0]),
        (Aggregation.sequence_mean, [0, 0], [0.0, 0.0]),
        (Aggregation.token_mean, [], []),
        (Aggregation.sequence_mean, [], []),
    ],
)
def test_weights_of_each_mode(mode: Aggregation, lengths: list[int], expected: list[float]) -> None:
    assert token_weights(lengths, mode) == pytest.approx(expected)


@given(st.lists(st.integers(0, 5000), max_size=64).filter(any), st.sampled_from(Aggregation))
def test_weights_add_up_to_one_over_the_tokens(lengths: list[int], mode: Aggregation) -> None:
    weights = token_weights(lengths, mode)
    assert sum(n * w for n, w in zip(lengths, weights, strict=True)) == pytest.approx(1.0)


@pytest.mark.parametrize("mode", Aggregation)
def test_a_negative_length_is_rejected(mode: Aggregation) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        token_weights([3, -1], mode)
