"""Group advantages: the formula, its symmetries and its edges."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.advantage import group_advantages, has_no_signal

binary_groups = st.lists(st.integers(0, 1).map(float), min_size=2, max_size=40).filter(
    lambda rewards: len(set(rewards)) == 2
)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0], [0.5 / math.sqrt(0.5), -0.5 / math.sqrt(0.5)]),  # biased would be +-1
        ([1.0, 0.0, 0.0, 0.0], [1.5, -0.5, -0.5, -0.5]),
        ([1.0, 1.0, 1.0, 0.0], [0.5, 0.5, 0.5, -1.5]),
        ([0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]),
    ],
)
def test_advantage_is_the_unbiased_z_score(rewards: list[float], expected: list[float]) -> None:
    assert group_advantages(rewards) == pytest.approx(expected, rel=1e-5)


def test_std_eps_is_added_to_the_standard_deviation() -> None:
    assert group_advantages([0.0, 1.0, 2.0], std_eps=1.0) == [-0.5, 0.0, 0.5]


@given(binary_groups)
def test_advantages_have_mean_0_and_standard_deviation_1(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    spread = math.sqrt(sum(a * a for a in advantages) / (len(rewards) - 1))
    assert spread == pytest.approx(1.0, rel=1e-5)  # std_eps takes about 1e-6 / std
    assert all(
        (advantage > 0) == (reward == 1.0) for advantage, reward in zip(advantages, rewards, strict=True)
    )


@given(binary_groups, st.data())
def test_advantages_follow_a_permutation_of_the_group(rewards: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    advantages = group_advantages(rewards)
    assert group_advantages([rewards[i] for i in order]) == [advantages[i] for i in order]


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0], [1.0] * 7, [0.1] * 3])
def test_a_group_without_signal_has_advantage_exactly_0(rewards: list[float]) -> None:
    assert has_no_signal(rewards)
    assert group_advantages(rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1e-9]])
def test_a_group_with_two_rewards_has_signal(rewards: list[float]) -> None:
    assert not has_no_signal(rewards)


def test_an_empty_group_has_no_signal_and_no_advantages() -> None:
    assert has_no_signal([])
    with pytest.raises(ValueError, match="empty group"):
        group_advantages([])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_rejected(bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages([1.0, bad])
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages([bad])
