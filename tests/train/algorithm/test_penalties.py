"""Penalties on length and turns, against the equations in numpy's float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.advantages import ESTIMATORS, Advantage, Sample
from rocstar.train.algorithm.penalties import Penalties, not_below_zero


def sample(reward: float, tokens: Sequence[int], tool_tokens: int = 0) -> Sample:
    counts = {"tokens_U": tuple(tokens), "errors_U": (0,) * len(tokens), "tool_tokens": tool_tokens}
    return Sample(reward=reward, is_correct=reward >= 1, **counts)


SAMPLES = st.lists(
    st.builds(
        sample, st.sampled_from([0.0, 0.5, 1.0, -1.0]), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 100)
    ),
    max_size=8,
)
SHARES = st.floats(0, 1)


@given(SAMPLES, SHARES, SHARES, st.sampled_from([0, 1, 30, 99]))
def test_a_reward_falls_as_the_equations_say(samples: list[Sample], length: float, turns: float, buffer: int) -> None:
    made = Penalties(length=length, turns=turns, buffer=buffer, limit=100).applied(samples)
    rewards = np.array([s.reward for s in samples])
    written = np.array([s.num_tokens for s in samples], float)
    whole = written + [s.tool_tokens for s in samples]
    num_turns = np.array([len(s.tokens_U) for s in samples], float)
    expected = rewards.copy()
    if samples:
        share = length * written / max(1, written.max()) + turns * num_turns / max(1, num_turns.max())
        expected -= max(0.0, rewards.mean()) * share
    if buffer:
        expected += np.clip((100 - buffer - whole) / buffer, -1, 0)
    assert np.allclose([s.reward for s in made], expected, rtol=1e-12, atol=1e-12)
    kept = ("is_correct", "tokens_U", "errors_U", "tool_tokens")
    assert all(getattr(a, name) == getattr(b, name) for a, b in zip(samples, made, strict=True) for name in kept)


@pytest.mark.parametrize(("tokens", "fall"), [(0, 0), (60, 0), (61, 1 / 40), (80, 0.5), (100, 1), (130, 1)])
def test_the_overlong_penalty_grows_in_the_buffer_and_ends_at_the_limit(tokens: int, fall: float) -> None:
    penalties = Penalties(buffer=40, limit=100)
    assert penalties.overlong(tokens) == pytest.approx(fall, abs=1e-12)
    assert penalties.of([sample(1.0, [tokens // 2], tokens - tokens // 2)]) == pytest.approx([fall], abs=1e-12)


def test_a_group_that_is_never_right_loses_nothing_by_its_shares() -> None:
    assert Penalties(length=1, turns=1).of([sample(0.0, [5]), sample(0.0, [9, 9])]) == [0, 0]
    assert Penalties(length=1, turns=1).of([sample(-1.0, [5]), sample(-1.0, [9, 9])]) == [0, 0]


@pytest.mark.parametrize(("buffer", "limit"), [(10, 10), (10, 0), (-1, 10)])
def test_a_buffer_that_is_no_part_of_the_limit_is_refused(buffer: int, limit: int) -> None:
    with pytest.raises(ValueError, match="0 < buffer < limit"):
        Penalties(buffer=buffer, limit=limit)


@given(SAMPLES.filter(lambda samples: len(samples) > 1), st.sampled_from(sorted({*ESTIMATORS} - {"distill"})))
def test_the_advantage_of_a_correct_one_is_never_below_zero(samples: list[Sample], name: str) -> None:
    shaped = Penalties(length=1, turns=1, buffer=50, limit=100).applied(samples)
    (plain_G,), (given_G,) = (ESTIMATORS[name]([group]) for group in (samples, shaped))
    for one, before, after in zip(samples, given_G, not_below_zero(samples, plain_G, given_G), strict=True):
        assert after == (max(0.0, before) if one.is_correct else before) and math.isfinite(after)


def test_a_long_correct_answer_would_fall_below_the_mean() -> None:
    """The reason for the bound: three short correct answers, a long one and a wrong one."""
    samples = [sample(1.0, [5]), sample(1.0, [5]), sample(1.0, [5]), sample(1.0, [100]), sample(0.0, [5])]
    plain_G, given_G = ESTIMATORS["dr_grpo"]([samples, Penalties(length=0.5).applied(samples)])
    assert given_G[3] < 0
    raised_G = not_below_zero(samples, plain_G, given_G)
    assert raised_G[3] == 0 > raised_G[4]


@pytest.mark.parametrize(("plain", "given_"), [((-1.0, 0.5), (-2.0, -0.5)), (-1.0, (-2.0, -0.5)), ((-1.0, 0.5), -2.0)])
def test_what_is_below_zero_without_a_penalty_stays_below(plain: Advantage, given_: Advantage) -> None:
    """A segment before a fork that mostly fails, a blamed turn, a token that a teacher finds unlikely."""
    (raised,) = not_below_zero([sample(1.0, [1, 1])], [plain], [given_])
    assert raised == ((-1.0, -0.5) if isinstance(plain, float) else (-1.0, 0.0))
    assert not_below_zero([sample(1.0, [1, 1])], [plain], [plain]) == [plain]
