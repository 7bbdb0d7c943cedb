"""The analysis's numbers: the top fifth, sums by task, intervals over tasks, and the matched control."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.train.reading.analysis.statistics.estimates import (
    NUM_OFFSETS,
    TOP_SHARE,
    Lead,
    Quantity,
    Tally,
    class_shares,
    compare_with_control,
    draw_tasks,
    interval,
    profile,
    top_membership,
)

from . import planted_worlds
from .planted_worlds import AFTER, WINDOW


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_top_fifth_has_a_fifth_and_no_order_gives_a_place(values: list[int], rng: object) -> None:
    entropy = np.array(values, float)
    member = top_membership(entropy)
    assert member.sum() == pytest.approx(TOP_SHARE * len(values))
    assert ((member >= 0) & (member <= 1)).all()
    order = np.random.default_rng(0).permutation(len(values))
    assert top_membership(entropy[order]) == pytest.approx(member[order])
    for low in np.unique(entropy):  # none is in while a higher one is out
        assert not (member[entropy == low].max() > 0 and (member[entropy > low] < 1 - 1e-9).any())


def test_an_entropy_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        top_membership(np.array([1.0, math.nan]))


def test_a_planted_bump_is_found_and_none_is_where_there_is_none() -> None:
    """0.3 nats behind responses, 64 trajectories: 19 of 20 seeds; without it at most 1 of 20, though the
    first tokens of every turn are uncertain."""
    found, _ = planted_worlds.directions(planted_worlds.World(bump=0.3), 20)
    assert sum(sign > 0 for sign in found) >= 19
    found, without_control = planted_worlds.directions(planted_worlds.World(), 20)
    assert sum(sign != 0 for sign in found) <= 1
    assert all(sign > 0 for sign in without_control), "this is why there is a control"


def test_the_difference_is_the_planted_one() -> None:
    world = planted_worlds.World(tasks=200, bump=0.3, trajectory_sd=0.0, task_sd=0.0)
    tally = planted_worlds.tally_of(world, 0)
    draws = draw_tasks(tally.num_tasks, np.random.default_rng(0))
    nats = compare_with_control(tally, AFTER, WINDOW, draws).difference
    assert nats.low < 0.3 < nats.high and nats.value == pytest.approx(0.3, abs=0.03)


def tally_of(siblings: int, *, tasks: int = 12) -> Tally:
    """Each task's siblings are all the same."""
    tally = Tally(2)
    for task in range(tasks):
        rng = np.random.default_rng(task)
        entropy = rng.gamma(1.0, 1.0, 60)
        for _ in range(siblings):
            tally.add(
                str(task),
                entropy,
                np.repeat([0, 1], 30),
                np.repeat([Lead.asked, Lead.ok], 30),
                np.tile(np.arange(30), 2),
            )
    return tally


def test_siblings_that_are_alike_tell_no_more_than_one() -> None:
    """The interval is over tasks: eight copies of each trajectory do not narrow it."""
    limits = []
    for siblings in (1, 8):
        tally = tally_of(siblings)
        draws = draw_tasks(tally.num_tasks, np.random.default_rng(5))
        ratio, share = (compare_with_control(tally, AFTER, 8, draws).ratio, class_shares(tally, draws)[1].of_top)
        limits.append((ratio.low, ratio.high, share.low, share.high, ratio.value))
    assert limits[0] == pytest.approx(limits[1])


def test_every_token_is_counted_once() -> None:
    tally = Tally(3)
    num = NUM_OFFSETS + 20
    entropy = np.linspace(0, 1, num)
    top = tally.add("a", entropy, np.arange(num) % 3, np.full(num, Lead.error), np.arange(num))
    by_class, by_offset = tally.by_class, tally.by_offset
    assert by_class[Quantity.tokens].sum() == num
    assert by_class[Quantity.top].sum() == pytest.approx(top.sum())
    assert by_class[Quantity.entropy].sum() == pytest.approx(entropy.sum())
    assert by_offset[Quantity.tokens].sum() == NUM_OFFSETS
    assert by_offset[Quantity.entropy, 0, Lead.error, 7] == pytest.approx(entropy[7])


def test_only_offsets_that_both_have_are_compared() -> None:
    """A turn of four tokens is no control for the fifth."""
    tally = Tally(1)
    for task in "abcdefghij":
        entropy = np.array([1.0, 1, 1, 1, *[1.0] * 4, *[9.0] * 4])
        lead = np.repeat([Lead.asked, Lead.ok], [4, 8])
        tally.add(task, entropy, np.zeros(12, int), lead, np.array([*range(4), *range(8)]))
    draws = draw_tasks(10, np.random.default_rng(0))
    assert compare_with_control(tally, AFTER, 8, draws).difference.value == 0.0
    assert compare_with_control(tally, (Lead.error,), 8, draws).ratio.num_tokens == 0
    assert math.isnan(compare_with_control(tally, (Lead.error,), 8, draws).ratio.value)
    known = [e.value for e in profile(tally, Lead.ok, draws)[:9]]
    assert known[:8] == [1.0] * 4 + [9.0] * 4 and math.isnan(known[8])


def test_an_interval_is_wider_than_plain_percentiles_and_one_task_has_none() -> None:
    values = np.random.default_rng(0).normal(size=4000)
    low, high = interval(values, 6)
    assert low < np.quantile(values, 0.025) and high > np.quantile(values, 0.975)
    assert interval(values, 1) == (-math.inf, math.inf)
    assert interval(np.where(values > 1, math.nan, values), 40) == (-math.inf, math.inf)
