"""Estimators of trees: values by hand, the bits of rloo without forks, the exact expectation over a small chain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from rocstar.train.algorithm.advantages import ESTIMATORS, Advantage, Path, Sample
from rocstar.train.algorithm.advantages.tree import Continuation, credited, path_weights

# --- Values by hand ----------------------------------------------------------------------------------------


def sample(reward: float, path: Path, *tokens: int) -> Sample:
    """Of as many turns as tokens are given; 0 for a turn before its branch."""
    return Sample(reward=reward, is_correct=reward >= 1, tokens_U=tokens, errors_U=(0,) * len(tokens), path=path)


A, B = ((0, 0),), ((0, 1),)
"""Root 0 has a branch behind its turn 1, and that one another behind turn 3; root 1 has none."""
A1, A11 = (*A, (1, 1)), (*A, (1, 1), (3, 1))
TREE = [sample(0.0, A, 2, 1), sample(1.0, A1, 0, 1, 1, 1), sample(0.5, A11, 0, 0, 0, 3), sample(1.0, B, 1)]
# V: behind turn 3 (1 + 1/2) / 2; behind turn 1 (0 + 3/4) / 2; task (3/8 + 1) / 2 = 11/16.


def test_fork_loo_compares_continuations_of_a_fork_with_each_other() -> None:
    (found,) = ESTIMATORS["fork_loo"]([TREE])
    assert found == [[-0.625, -0.625, -0.375], [0.375, 0.375, 0.125], -0.125, 0.625]


def test_treerl_adds_the_advantages_over_the_task_and_over_the_fork() -> None:
    (found,) = ESTIMATORS["treerl"]([TREE])
    stem, inner = math.sqrt(3) * -0.625, math.sqrt(2) * (0.0625 + 0.375)
    assert found[0] == pytest.approx([stem, stem, -0.6875 - 0.375])
    assert found[1] == pytest.approx([inner, inner, 0.3125 + 0.25])
    assert found[2:] == pytest.approx([-0.1875 - 0.25, 0.625])


def test_the_leaves_of_a_root_weigh_1_together() -> None:
    assert path_weights([A, A1, A11, B]) == [0.5, 0.25, 0.25, 1.0]
    assert path_weights([B, A]) == [1.0, 1.0]


def test_what_was_dropped_leaves_the_others_to_compare() -> None:
    """Without A its branches carry on its stem; without A11 there is one fork less."""
    (found,) = ESTIMATORS["fork_loo"]([TREE[1:]])
    assert found == [[-0.25, -0.25, 0.25], -0.25, 0.25]
    (found,) = ESTIMATORS["fork_loo"]([[TREE[0], TREE[1], TREE[3]]])
    assert found == [-0.5, 0.5, 0.5]


def test_a_single_root_has_a_fork_and_no_baseline_of_its_own() -> None:
    (found,) = ESTIMATORS["fork_loo"]([TREE[:2]])
    assert found == [[0.0, 0.0, -0.5], 0.5]


def test_a_path_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="have one path"):
        path_weights([A, A])


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.1], [0.1, 0.1, 0.1], [0.3, 0.7, -2.0, 1 / 3], [1.0]])
def test_without_forks_fork_loo_has_the_bits_of_rloo(rewards: list[float]) -> None:
    group = [sample(reward, ((0, k),), 1, 2) for k, reward in enumerate(rewards)]
    assert ESTIMATORS["fork_loo"]([group]) == ESTIMATORS["rloo"]([group])


# --- The expectation over all trees of a chain ---------------------------------------------------------------

THETA = np.array([0.4, -0.3, 0.8, 0.2, -0.6])
"""Logit of action 1 in each state: at first; after a first call that worked, or failed; after the second likewise."""
FAILS = ((0.3, 0.6), (1.0, 0.0), (0.0, 0.0))
"""Probability that a turn's call fails, by action. The last one calls nothing."""
TURNS = 3
History = tuple[tuple[int, int], ...]
"""The action of each turn, and whether its call failed."""


def state(history: History) -> int:
    return 0 if not history else 2 * len(history) - 1 + history[-1][1]


def reward(history: History) -> float:
    (a, e), (b, f), (c, _) = history
    return 1.0 * a * c - 0.7 * e * b + 0.5 * f * c + 0.3 * b - 0.4 * e * f * (1 - c)


def turns_after(history: History) -> Iterator[tuple[float, History]]:
    """Every turn that may follow, with its probability."""
    p = 1 / (1 + math.exp(-THETA[state(history)]))
    for action, failed in itertools.product((0, 1), (0, 1)):
        fails = FAILS[len(history)][action]
        if rate := fails if failed else 1 - fails:
            yield (p if action else 1 - p) * rate, (*history, (action, failed))


def score(history: History) -> np.ndarray:
    """The gradient of the log-probability of a history's last action."""
    gradient = np.zeros(len(THETA))
    at = state(history[:-1])
    gradient[at] = history[-1][0] - 1 / (1 + math.exp(-THETA[at]))
    return gradient


Leaf = tuple[Path, History]


def trees(history: History, path: Path) -> Iterator[tuple[float, list[Leaf]]]:
    """All trees behind a history: a failed call forks in two, whatever comes of it."""
    if len(history) == TURNS:
        yield 1.0, [(path, history)]
        return
    for p, further in turns_after(history):
        own = list(trees(further, path))
        if not further[-1][1]:
            yield from ((p * q, leaves) for q, leaves in own)
            continue
        others = list(trees(further, (*path, (len(further), 1))))
        for (q, left), (r, right) in itertools.product(own, others):
            yield p * q * r, left + right


def exact_gradient() -> np.ndarray:
    def behind(history: History) -> tuple[float, np.ndarray]:
        """The value of a history, and its gradient."""
        if len(history) == TURNS:
            return reward(history), np.zeros(len(THETA))
        value, gradient = 0.0, np.zeros(len(THETA))
        for p, further in turns_after(history):
            v, g = behind(further)
            value, gradient = value + p * v, gradient + p * (g + v * score(further))
        return value, gradient

    return behind(())[1]


Estimate = Callable[[Sequence[Sample]], Sequence[Advantage]]


def estimates(of: Estimate) -> tuple[np.ndarray, np.ndarray]:
    """The probability of each pair of trees, and its gradient: each token once, with its advantage."""
    roots = [(p, leaves) for p, leaves in trees((), ((0, 0),))]
    found_p, found = [], []
    for i, (p, left) in enumerate(roots):
        for j, (q, right) in enumerate(roots[i:], i):
            leaves = left + [(((0, 1), *path[1:]), history) for path, history in right]
            found_p.append(p * q * (1 if i == j else 2))
            found.append(gradient_of(leaves, of))
    return np.array(found_p), np.array(found)


def gradient_of(leaves: Sequence[Leaf], of: Estimate) -> np.ndarray:
    starts = [path[-1][0] for path, _ in leaves]
    samples = [
        sample(reward(history), path, *[int(turn >= start) for turn in range(TURNS)])
        for (path, history), start in zip(leaves, starts, strict=True)
    ]
    total = np.zeros(len(THETA))
    for (_, history), start, advantage in zip(leaves, starts, of(samples), strict=True):
        own = range(start, TURNS)
        each = [advantage] * len(own) if isinstance(advantage, float) else advantage
        for turn, value in zip(own, each, strict=True):
            total += value * score(history[: turn + 1])
    return total / 2


def with_itself(_: Continuation, fork: Continuation, segment: Continuation, weight: float) -> float:
    return weight * (segment.value - fork.value)


def k_times(_: Continuation, fork: Continuation, segment: Continuation, weight: float) -> float:
    others = [one.value for one in fork.continuations if one is not segment]
    return weight * len(segment.leaves) * (segment.value - sum(others) / len(others))


def unweighted(_: Continuation, fork: Continuation, segment: Continuation, weight: float) -> float:
    others = [one.value for one in fork.continuations if one is not segment]
    return segment.value - sum(others) / len(others)


def z_scores(probabilities: np.ndarray, found: np.ndarray, *, draws: int = 1_000_000) -> np.ndarray:
    """Of the mean over that many drawn groups, in each coordinate, against the exact gradient."""
    drawn = np.random.default_rng(0).multinomial(draws, probabilities / probabilities.sum()) / draws
    mean = drawn @ found
    spread = np.sqrt(drawn @ (found - mean) ** 2 / draws)
    return (mean - exact_gradient()) / spread


def test_fork_loo_is_unbiased() -> None:
    """Exactly, over all pairs of trees; and over a million drawn ones."""
    probabilities, found = estimates(lambda samples: ESTIMATORS["fork_loo"]([samples])[0])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert probabilities @ found == pytest.approx(exact_gradient(), abs=1e-12)
    assert np.abs(z_scores(probabilities, found)).max() < 3


@pytest.mark.parametrize("credit", [with_itself, k_times, unweighted])
def test_a_biased_credit_is_seen(credit: Callable[[Continuation, Continuation, Continuation, float], float]) -> None:
    probabilities, found = estimates(lambda samples: credited(samples, credit))
    assert np.abs(z_scores(probabilities, found)).max() > 10


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "treerl"])
def test_others_have_another_direction_with_forks(name: str) -> None:
    """What pools leaves, or has the segment in its baseline, has it at no step size."""
    probabilities, found = estimates(lambda samples: ESTIMATORS[name]([samples])[0])
    assert away(probabilities @ found) > 0.02


def away(mean: np.ndarray) -> float:
    """The part of the mean that is no multiple of the gradient, as a share of it."""
    exact = exact_gradient()
    factor = mean @ exact / (exact @ exact)
    return float(np.linalg.norm(mean - factor * exact) / np.linalg.norm(factor * exact))
