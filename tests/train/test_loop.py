"""What a step makes of its batch, and what it tells. Whole runs: tests/integration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.engine.types import FinishReason, Origin, Scored, Segment, Task, Trajectory, TrajectoryKey
from rocstar.train import loop
from rocstar.train.groups.selection import Selection
from rocstar.train.learner.loss_stats import LossStats, WorstToken
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig

TASKS = [Task(id=f"task{k}", source="s", question=f"q{k}", answer="1") for k in range(5)]


# ---- batches ----


def trajectory(k: int, num_tokens: int, reward: float = 1.0) -> Trajectory:
    task = TASKS[k % len(TASKS)]
    length = num_tokens + 2
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=k),
        task=task,
        ids=tuple(range(length)),
        logprobs=(None, None, *[-0.5] * num_tokens),
        segments=(
            Segment(start=0, end=2, origin=Origin.prompt),
            Segment(start=2, end=length, origin=Origin.policy),
        ),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=reward, method="strict"),
    )


def selection(sizes: Sequence[int]) -> Selection:
    kept = [trajectory(k, n) for k, n in enumerate(sizes)]
    advantages = [float(k) for k in range(len(kept))]
    return Selection(kept=kept, advantages=advantages, verdicts=[], groups_used=1, groups_no_signal=0)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_each_update_has_its_share_and_weights_that_sum_to_one(updates: int) -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=updates, tokens_per_microbatch=16))
    made = loop.pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert len(made) == updates
    for micros in made:
        assert sum(float(micro.weights_T.sum()) for micro in micros) == pytest.approx(1.0)
    assert sum(micro.num_loss_tokens for micros in made for micro in micros) == 66
    again = loop.pack_updates(selection([3, 5, 9, 40, 2, 7]), recipe, step=1)
    assert [[m.lengths_S for m in micros] for micros in again] == [
        [m.lengths_S for m in micros] for micros in made
    ]


def test_fewer_trajectories_than_updates_make_fewer_updates() -> None:
    recipe = Recipe(rl=RlConfig(num_updates_per_batch=4))
    assert len(loop.pack_updates(selection([3, 5]), recipe, step=1)) == 2
    assert loop.pack_updates(selection([]), recipe, step=1) == []


def test_the_warm_up_is_counted_in_steps_of_rollouts() -> None:
    spec = loop.stage_optimizer(Recipe(rl=RlConfig(warmup_steps=5, num_updates_per_batch=2, lr=1e-3)))
    assert (spec.kind, spec.lr, spec.warmup_steps, spec.decay_fraction) == ("adamw", 1e-3, 10, 0.0)
    assert [spec.rate(k) for k in (0, 9, 10_000)] == [0.1, 1.0, 1.0]


@pytest.mark.parametrize("tokens", [5, 6, 100])
def test_trajectories_over_the_token_budget_are_counted(tokens: int) -> None:
    """A row of n tokens has n - 1 inputs; one that does not fit is alone in a microbatch."""
    made = selection([5, 3, 2])
    over = loop.over_budget(made, tokens)
    assert over == sum(n + 1 > tokens for n in (5, 3, 2))
    recipe = Recipe(
        rl=RlConfig.model_construct(**RlConfig().model_dump() | {"tokens_per_microbatch": tokens})
    )
    micros = loop.pack_updates(made, recipe, step=1)[0]
    assert sum(sum(m.lengths_S) > tokens for m in micros) == over


# ---- the off-policy gate ----


def paused_stats(bad_steps: int) -> LossStats:
    token = WorstToken(
        trajectory="s1/task0/0",
        position=7,
        token=3,
        after_tool=True,
        rollout_logprob=-0.5,
        learner_logprob=-4.5,
    )
    return LossStats(worst=[token], bad_steps=bad_steps, is_paused=bad_steps >= 3)


def test_a_paused_step_is_told_and_its_worst_tokens_are_dumped(tmp_path: Path) -> None:
    notes: list[str] = []
    run: Any = SimpleNamespace(
        recipe=Recipe(),
        directory=tmp_path,
        decode=lambda ids: f"<{ids[0]}>",
        listeners=SimpleNamespace(note=notes.append),
        bad_steps=0,
    )
    loop.note_gate(run, 2, paused_stats(2))
    assert run.bad_steps == 2 and not notes and not (run.directory / "off_policy").exists()
    loop.note_gate(run, 3, paused_stats(3))
    path = run.directory / "off_policy" / "step_000003.json"
    assert run.bad_steps == 3 and "step 3: optimizer paused" in notes[0] and str(path) in notes[0]
    dumped = json.loads(path.read_text())
    assert dumped["bounds"] == {"kl": 0.05, "ratio_p99": 2.0, "steps": 3}
    assert dumped["worst"] == [
        {"trajectory": "s1/task0/0", "position": 7, "token": 3, "after_tool": True,
         "rollout_logprob": -0.5, "learner_logprob": -4.5, "text": "<3>"}
    ]  # fmt: skip
