"""Batches that teach nothing are counted skips, and one that cannot be used ends the run; no weight moves."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rocstar.engine.types import Group, Trajectory
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import Selection, select
from rocstar.train.learner.bad_batch import stops_run
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.settings import loss_settings
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ScratchConfig
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.trajectories import TASK, FakeTurn, make_trajectory

RECIPE = Recipe(rl=RlConfig(rollouts_per_task=4, group_size=4, num_updates_per_batch=2))


def trajectory(sibling: int, reward: float | None, *, num_tokens: int = 3) -> Trajectory:
    """Two prompt tokens, then so many of the policy; None = lost to a failure of ours."""
    return make_trajectory(FakeTurn(ids=range(num_tokens)), prompt=(0, 1), sibling=sibling, reward=reward)


def selected(rewards: list[float | None], num_tokens: int = 3) -> Selection:
    members = tuple(trajectory(k, r, num_tokens=num_tokens) for k, r in enumerate(rewards))
    return select([Group(task=TASK, trajectories=members)], RECIPE.rl, seed=0)


@pytest.mark.parametrize("rewards", [[1.0] * 4, [0.0] * 4, [1.0], [0.0, None, None, None], [None] * 4, []])
def test_equal_rewards_and_groups_of_one_are_counted_and_make_no_update(rewards: list[float | None]) -> None:
    selection = selected(rewards)
    metrics = rollout_metrics(selection)
    num_failed = sum(reward is None for reward in rewards)
    assert metrics["ledger/no_signal"] == len(rewards) - num_failed
    assert (metrics["ledger/failed"], metrics["groups/no_signal"]) == (num_failed, 1)
    assert pack_updates(selection, RECIPE, step=1) == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_none_cannot_be_made(reward: float) -> None:
    with pytest.raises(ValueError, match="reward must be a finite number"):
        trajectory(0, reward)


def test_a_batch_without_a_loss_token_makes_no_update() -> None:
    selection = selected([1.0, 0.0, 1.0, 0.0], num_tokens=0)
    assert len(selection.kept) == 4
    assert pack_updates(selection, RECIPE, step=1) == []


def test_an_update_without_a_loss_token_is_left_out() -> None:
    """Two updates of two trajectories each; those of one of them have no token of the policy."""
    selection = selected([1.0, 0.0, 1.0, 0.0])
    both = pack_updates(selection, RECIPE, step=1)
    assert len(both) == 2
    names = {name for micro in both[0] for name in micro.names_S}
    kept = [trajectory(t.key.sibling, 1.0, num_tokens=0) if str(t.key) in names else t for t in selection.kept]
    left = pack_updates(dataclasses.replace(selection, kept=kept), RECIPE, step=1)
    assert [[m.names_S for m in micros] for micros in left] == [[m.names_S for m in both[1]]]


def test_a_batch_with_an_advantage_that_is_no_number_ends_the_run_and_is_left_on_disk(tmp_path: Path) -> None:
    """Before anything is made of it: there is no loss to tell, only where the value lies."""
    selection = selected([1.0, 0.0, 1.0, 0.0])
    advantages = [math.nan, *selection.advantages[1:]]
    updates = pack_updates(dataclasses.replace(selection, advantages=advantages), RECIPE, step=1)
    scratch = ScratchConfig(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)
    with (
        pytest.raises(TrainingStopped, match=r"step_000001: a value that is not finite.* in advantages; no"),
        stops_run(tmp_path, "step_000001"),
    ):
        Learner(build_model(scratch, 40, seed=0)).policy_step(updates, loss_settings(RECIPE))
    told = json.loads((tmp_path / "bad_batch/step_000001.json").read_text())["microbatches"]
    tensors = load_file(tmp_path / "bad_batch/step_000001.safetensors")
    bad = [k for k, part in enumerate(told) if part["advantages_not_finite"]]
    assert len(told) == 2 and len(bad) == 1 and str(selection.kept[0].key) in told[bad[0]]["trajectories"]
    assert told[bad[0]]["advantages_not_finite"] == 3 == int(tensors[f"{bad[0]}.advantages"].isnan().sum())
    assert {part["loss"] for part in told} == {part["logprobs_not_finite"] for part in told} == {None}
