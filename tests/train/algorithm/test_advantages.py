"""Every estimator: values computed by hand, its symmetries and its edges."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.advantages import ESTIMATORS, Estimator, Sample, has_no_signal, per_group
from rocstar.train.algorithm.advantages.grpo import group_advantages

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
    assert all((advantage > 0) == (reward == 1.0) for advantage, reward in zip(advantages, rewards, strict=True))


@given(binary_groups, st.data())
def test_advantages_follow_a_permutation_of_the_group(rewards: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    advantages = group_advantages(rewards)
    assert group_advantages([rewards[i] for i in order]) == [advantages[i] for i in order]


@pytest.mark.parametrize(
    ("rewards", "is_flat"),
    [([1.0], True), ([0.1] * 3, True), ([1.0, 0.0], False), ([0.0, 0.0, 1.0], False), ([0.0, 1e-9], False)],
)
def test_a_group_of_equal_rewards_has_no_signal(rewards: list[float], is_flat: bool) -> None:
    assert has_no_signal(rewards) is is_flat


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


# --- All estimators ------------------------------------------------------------------------------------


def sample(reward: float, *tokens: int) -> Sample:
    tokens = tokens or (1,)
    return Sample(reward=reward, is_correct=reward >= 1, tokens_U=tokens, errors_U=(0,) * len(tokens))


def groups_of(*rewards: list[float]) -> list[list[Sample]]:
    return [[sample(reward) for reward in group] for group in rewards]


BY_REWARD = {name: of for name, of in ESTIMATORS.items() if name != "distill"}
BATCH = groups_of([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0])
BATCH_STD = math.sqrt(3 / 8 * 5 / 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [[1.5, -0.5, -0.5, -0.5], [math.sqrt(3) / 2] * 2 + [-math.sqrt(3) / 2] * 2]),
        ("dr_grpo", [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5]]),
        ("rloo", [[1.0, -1 / 3, -1 / 3, -1 / 3], [2 / 3, 2 / 3, -2 / 3, -2 / 3]]),
        (
            "reinforce_pp",
            [[5 / 8 / BATCH_STD] + [-3 / 8 / BATCH_STD] * 3, [5 / 8 / BATCH_STD] * 2 + [-3 / 8 / BATCH_STD] * 2],
        ),
    ],
)
def test_values_computed_by_hand(name: str, expected: list[list[float]]) -> None:
    given = ESTIMATORS[name](BATCH)
    assert [list(group) for group in given] == [pytest.approx(group, rel=1e-5) for group in expected]


def test_reinforce_pp_counts_a_trajectory_as_often_as_it_has_tokens() -> None:
    """Three tokens with reward 1 and one with 0: mean 3/4, variance 3/16."""
    ((a, b),) = ESTIMATORS["reinforce_pp"]([[sample(1.0, 2, 1), sample(0.0, 1)]])
    assert (a, b) == (pytest.approx(0.25 / math.sqrt(3 / 16)), pytest.approx(-0.75 / math.sqrt(3 / 16)))


def test_reinforce_pp_alone_looks_beyond_the_group() -> None:
    """The same group beside another one: only what is normalised over the batch changes."""
    alone, beside = [BATCH[0]], [BATCH[0], groups_of([5.0, -5.0])[0]]
    changed = {name for name, of in BY_REWARD.items() if list(of(alone)[0]) != list(of(beside)[0])}
    assert changed == {"reinforce_pp"}


rewards_of_groups = st.lists(
    st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=2, max_size=8), min_size=1, max_size=5
)
estimators = st.sampled_from(sorted(BY_REWARD)).map(BY_REWARD.__getitem__)


@given(rewards=rewards_of_groups, of=estimators, by=st.integers(-3, 3))
def test_adding_to_all_rewards_changes_nothing(rewards: list[list[float]], of: Estimator, by: int) -> None:
    shifted = of(groups_of(*[[r + by for r in group] for group in rewards]))
    for before, after in zip(of(groups_of(*rewards)), shifted, strict=True):
        assert list(after) == pytest.approx(list(before), abs=1e-6)


@given(rewards=rewards_of_groups)
def test_advantages_sum_to_0_in_each_group_or_over_the_batch(rewards: list[list[float]]) -> None:
    for name, of in BY_REWARD.items():
        given = [[float(a) for a in group] for group in of(groups_of(*rewards))]  # type: ignore[arg-type]
        sums = [math.fsum(group) for group in given]
        assert math.fsum(sums) == pytest.approx(0.0, abs=1e-5)
        assert name == "reinforce_pp" or sums == pytest.approx([0.0] * len(sums), abs=1e-6)


@given(rewards=rewards_of_groups, of=estimators)
def test_a_larger_reward_has_a_larger_advantage(rewards: list[list[float]], of: Estimator) -> None:
    for group, found in zip(rewards, of(groups_of(*rewards)), strict=True):
        ordered = [a for _, a in sorted(zip(group, found, strict=True))]
        assert ordered == sorted(ordered)  # type: ignore[type-var]


@given(rewards=rewards_of_groups)
def test_rloo_is_dr_grpo_times_g_over_g_minus_1(rewards: list[list[float]]) -> None:
    batch = groups_of(*rewards)
    for ours, theirs in zip(ESTIMATORS["rloo"](batch), ESTIMATORS["dr_grpo"](batch), strict=True):
        size = len(ours)
        assert list(ours) == pytest.approx([float(a) * size / (size - 1) for a in theirs])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(BY_REWARD))
@pytest.mark.parametrize("rewards", [[[0.1] * 3], [[1.0]], [[7.0, 7.0], [7.0, 7.0]], []])
def test_what_has_no_signal_has_advantage_exactly_0(name: str, rewards: list[list[float]]) -> None:
    given = ESTIMATORS[name](groups_of(*rewards))
    assert [list(group) for group in given] == [[0.0] * len(group) for group in rewards]


def test_a_batch_without_tokens_has_advantage_0() -> None:
    empty = [Sample(reward=r, is_correct=False, tokens_U=(0,), errors_U=(0,)) for r in (0.0, 1.0)]
    assert ESTIMATORS["reinforce_pp"]([empty]) == [[0.0, 0.0]]


def test_a_sample_spreads_what_its_turns_earned() -> None:
    assert sample(1.0, 2, 0, 3).spread([0.5, 9.0, -1.0]) == [0.5, 0.5, -1.0, -1.0, -1.0]
    with pytest.raises(ValueError):
        sample(1.0, 2, 3).spread([0.5])
    with pytest.raises(ValueError, match="must be finite"):
        sample(math.nan)


def test_an_estimator_of_one_group_is_made_one_of_a_batch() -> None:
    sizes = per_group(lambda samples: [float(len(samples))] * len(samples))
    assert sizes(groups_of([1.0], [1.0, 2.0])) == [[1.0], [2.0, 2.0]]


def test_distillation_is_the_teachers_gap_of_each_token_whatever_the_reward() -> None:
    gaps = ((0.5, -1.0), (0.25,))
    samples = [dataclasses.replace(sample(1.0, len(gap)), gaps_T=gap) for gap in gaps]
    assert ESTIMATORS["distill"]([samples]) == [list(gaps)]
    with pytest.raises(ValueError, match=r"0 loss tokens of a sample; the recipe needs teacher\.url"):
        ESTIMATORS["distill"]([[sample(1.0, 2)]])
