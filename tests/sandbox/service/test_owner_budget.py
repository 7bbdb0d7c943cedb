"""Budgets of owners: none takes the reserve of another."""

from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.http.owner_budget import OwnerBudget

OWNERS = ("a", "b", "c")
STEPS = st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(-4, 30)), max_size=60)


@given(STEPS, st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 120))
def test_who_has_less_than_its_share_finds_the_rest_of_it(
    steps: list[tuple[str, int]], weights: list[int], total: int
) -> None:
    shares = OwnerBudget(total, dict(zip(OWNERS, weights, strict=True)))
    for owner, number in steps:
        if number < 0:
            shares.give(owner, min(-number, shares.used_by(owner)))
        else:
            fits = shares.fits(owner, number)
            assert shares.try_take(owner, number) is fits
        assert shares.taken == sum(map(shares.used_by, OWNERS)) <= total
        for name, weight in zip(OWNERS, weights, strict=True):
            kept = total * weight // (2 * sum(weights))
            assert shares.fits(name, max(0, kept - shares.used_by(name)))
            assert not shares.fits(name, shares.limit_of(name) - shares.used_by(name) + 1)


def test_who_is_alone_has_all() -> None:
    for weights in ({}, {"a": 3}):
        shares = OwnerBudget(10, weights)
        shares.take("a", 10)
        assert not shares.fits("a", 1) and shares.limit_of("a") == 10


def test_the_largest_is_who_has_most_beyond_what_is_kept() -> None:
    shares = OwnerBudget(100, {"heavy": 3, "light": 1})
    shares.take("heavy", 40)
    shares.take("light", 20)
    assert shares.largest_owner() == "light"
    shares.give("light", 20)
    assert shares.largest_owner() == "heavy"


def test_who_has_less_than_its_share_finds_the_rest_of_it_whatever_another_took_beyond_all() -> None:
    """What somebody has in memory already can only be counted."""
    shares = OwnerBudget(100, {"a": 1, "b": 1})
    shares.take("a", 1000)
    assert shares.try_take("b", 25) and shares.fits("b", 0)
    assert not shares.fits("b", 1) and not shares.fits("a", 0)
