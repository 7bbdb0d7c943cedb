"""The posterior of a task's solve rate, against sums over its density in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.difficulty import FORGET, SolveRate

GROUPS = st.lists(st.integers(0, 32).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=6)


def density(correct: float, attempts: float) -> tuple[np.ndarray, np.ndarray]:
    """Return midpoints of [0, 1] and the posterior's mass around each, from the likelihood and a flat prior."""
    p = (np.arange(200_000) + 0.5) / 200_000
    log_mass = correct * np.log(p) + (attempts - correct) * np.log1p(-p)
    mass = np.exp(log_mass - log_mass.max())
    return p, mass / mass.sum()


@given(GROUPS)
def test_rate_and_weight_are_means_over_the_posterior(groups: list[tuple[int, int]]) -> None:
    made, correct, attempts = SolveRate(), 0.0, 0.0
    for right, tried in groups:
        made = made.after(right, tried)
        if tried:
            correct, attempts = FORGET * correct + right, FORGET * attempts + tried
    p, mass = density(correct, attempts)
    assert math.isclose(made.rate, (p * mass).sum(), rel_tol=1e-6)
    assert math.isclose(made.weight, min(1.0, 6 * (p * (1 - p) * mass).sum()), rel_tol=1e-6)
    assert 0 < made.rate < 1 and 0 < made.weight <= 1


def test_what_is_always_or_never_solved_is_worth_little_and_both_alike() -> None:
    weights = [SolveRate().after(right, 16).weight for right in range(17)]
    assert weights == pytest.approx(weights[::-1]) and weights[:9] == sorted(weights[:9])
    assert SolveRate().weight == weights[8] == 1.0 and weights[0] < 0.3


def test_a_task_that_became_easy_is_known_for_it_after_two_groups() -> None:
    hard = SolveRate().after(0, 16).after(0, 16)
    assert hard.after(16, 16).after(16, 16).rate > 0.75 > hard.after(16, 16).rate
