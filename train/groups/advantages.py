"""The estimator that a recipe names, asked for a whole batch, and its answer checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from numbers import Real

from rocstar.engine.types import Scored, Trajectory
from rocstar.train.algorithm.advantages import ESTIMATORS, Advantage, Estimator, Path, Sample
from rocstar.train.algorithm.advantages.tree import path_weights
from rocstar.train.recipe import own_code
from rocstar.train.recipe.errors import TrainingStopped

LOG = logging.getLogger(__name__)
FIELD = "rl.advantage"
TAKES = ("the groups of a batch alone (rocstar/train/algorithm/advantages/sample.py)",)


def sample_of(trajectory: Trajectory, outcome: Scored, teacher: Sequence[float] | None = None) -> Sample:
    """Return the estimator's view of a trajectory. `teacher`: its log-prob of each loss token."""
    rollout = trajectory.logprobs[trajectory.loss_mask()].tolist() if teacher is not None else ()
    lengths, shared = (
        [turn.end - turn.start for turn in trajectory.turns],
        trajectory.fork.turns if trajectory.fork else 0,
    )
    return Sample(
        reward=outcome.reward,
        is_correct=outcome.is_correct,
        tokens_U=(*[0] * shared, *lengths[shared:]),
        errors_U=tuple(sum(result.is_error for result in turn.results) for turn in trajectory.turns),
        tool_tokens=trajectory.response_length - trajectory.num_policy_tokens - sum(lengths[:shared]),
        shared_tokens=sum(lengths[:shared]),
        path=path_of(trajectory),
        gaps_T=tuple(theirs - ours for theirs, ours in zip(teacher or (), rollout, strict=True)),
    )


def path_of(trajectory: Trajectory) -> Path:
    """Return the root's number and the forks behind it."""
    sibling, forks = trajectory.key.order
    return ((0, sibling), *((turns, number) for turns, number in forks))


def path_weights_of(trajectories: Sequence[Trajectory]) -> list[float]:
    """Return the path weight of each, among these of any tasks: those of a root's leaves sum to 1.

    A mean with them is that of rollouts without forks, of which a prefix counts once however often it forks.
    """
    if all(t.fork is None for t in trajectories):
        return [1.0] * len(trajectories)
    roots = dict[tuple[str, int], int]()
    numbers = [roots.setdefault((t.task.id, t.key.sibling), len(roots)) for t in trajectories]
    return path_weights([((0, n), *path_of(t)[1:]) for n, t in zip(numbers, trajectories, strict=True)])


def check_advantage(name: str) -> None:
    """Read an estimator of the recipe's own; ConfigError if it is not there or takes no batch."""
    if name not in ESTIMATORS:
        own_code.load_plain(name, field=FIELD, takes=TAKES)


def estimate(name: str, groups: Sequence[Sequence[Sample]]) -> list[list[float | tuple[float, ...]]]:
    """Return the advantage of every sample of every group.

    Raises:
        ConfigError: there is no such estimator.
        TrainingStopped: it raised, or its result is not a finite number, or one per loss token, for each
            sample.
    """
    if name in ESTIMATORS:
        return _checked(ESTIMATORS[name](groups), groups)
    estimator: Estimator = own_code.load_plain(name, field=FIELD, takes=TAKES)
    try:
        return _checked(estimator(groups), groups)
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises, there is nothing to learn from
        LOG.warning("%s = %r failed", FIELD, name, exc_info=True)
        raise TrainingStopped(
            f"{FIELD} = {name!r} failed: {type(error).__name__}: {error}; mend it and go on with --resume"
        ) from error


def _checked(
    given: Sequence[Sequence[Advantage]], groups: Sequence[Sequence[Sample]]
) -> list[list[float | tuple[float, ...]]]:
    """The same as plain numbers; ValueError or TypeError for what cannot be learned from."""
    if [len(group) for group in given] != [len(group) for group in groups]:
        raise ValueError(
            f"it gave groups of {[len(g) for g in given]} advantages for groups of {[len(g) for g in groups]}"
        )
    return [
        [_plain(advantage, sample) for advantage, sample in zip(*pair, strict=True)]
        for pair in zip(given, groups, strict=True)
    ]


def _plain(advantage: Advantage, sample: Sample) -> float | tuple[float, ...]:
    if isinstance(advantage, float | Real):  # also a number of numpy
        return _finite(float(advantage))
    if len(advantage) != sample.num_tokens:
        raise ValueError(f"it gave {len(advantage)} advantages for a sample of {sample.num_tokens} loss tokens")
    return tuple(_finite(value) for value in advantage)


def _finite(value: float) -> float:
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"it gave the advantage {value}")
    return value
