"""The microbatches of a step's updates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rocstar.engine.types import Task, Trajectory
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.selection import Selection
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.trajectories import FakeTurn, make_trajectory

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]


def trajectory(k: int, num_tokens: int, reward: float = 1.0) -> Trajectory:
    task = TASKS[k % len(TASKS)]
    turn = FakeTurn(ids=range(2, num_tokens + 2))
    return make_trajectory(turn, prompt=(0, 1), task=task, sibling=k, reward=reward)


def selection(sizes: Sequence[int]) -> Selection:
    kept = [trajectory(k, n) for k, n in enumerate(sizes)]
    advantages = [float(k) for k in range(len(kept))]
    return Selection(kept=kept, advantages=advantages, verdicts=[], groups_used=1, groups_no_signal=0)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_each_update_has_its_share_and_weights_that_sum_to_one(updates: int) -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=updates, tokens_per_microbatch=16))
    made = pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert len(made) == updates
    for micros in made:
        assert sum(float(micro.weights_T.sum()) for micro in micros) == pytest.approx(1.0)
    assert sum(micro.num_loss_tokens for micros in made for micro in micros) == 66
    again = pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert [[m.lengths_S for m in micros] for micros in again] == [[m.lengths_S for m in micros] for micros in made]


def test_fewer_trajectories_than_updates_make_fewer_updates() -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=4))
    assert len(pack_updates(selection([3, 5]), recipe, step=1)) == 2
    assert pack_updates(selection([]), recipe, step=1) == []


@pytest.mark.parametrize("tokens", [5, 6, 100])
def test_trajectories_over_the_token_budget_are_counted(tokens: int) -> None:
    """A row of n tokens has n - 1 inputs; one that does not fit is alone in a microbatch."""
    made = selection([5, 3, 2])
    over = sum(n + 1 > tokens for n in (5, 3, 2))
    recipe = Recipe(rl=RlConfig.model_construct(**RlConfig().model_dump() | {"tokens_per_microbatch": tokens}))
    micros = pack_updates(made, recipe, step=1)[0]
    assert sum(sum(m.lengths_S) > tokens for m in micros) == over
