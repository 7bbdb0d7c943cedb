"""Branches among the siblings of a group: each sampled token counts and trains once, with its own trajectory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.engine.rollout.rollout import POLICY_TIMEOUT
from rocstar.engine.types import Failed, Group, Scored, Task, ToolCall, ToolResult
from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.algorithm.penalties import Penalties
from rocstar.train.groups.advantages import path_weights_of, sample_of
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import select
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.learner.batch import MicroBatch, pack, policy_examples
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.tiny import ADAMW, CLIP, SCRATCH, make_example, scale_matrices
from tests.fakes.trajectories import TASK, FakeTurn, make_branch, make_trajectory

CALL = (ToolCall(name="t", arguments={}),)
FAILED, WORKED = (ToolResult(status=s, is_error=s == "error", text="") for s in ("error", "ok"))
LATE = Failed(kind=POLICY_TIMEOUT, retryable=False, detail="")


def call(*ids: int, result: ToolResult = FAILED, answer: tuple[int, ...] = (20, 21)) -> FakeTurn:
    return FakeTurn(ids=ids, calls=CALL, results=(result,), answer=answer)


def forked_group(task: Task = TASK) -> Group:
    """Root 0 is wrong: two tokens and a failed call, three tokens. Its branch behind that: a call that works, 4 and 5.
    Another branch behind the branch's call: 6. Root 1 is right: 7, 8 and nothing else."""
    root = make_trajectory(call(2, 3), FakeTurn(ids=(9, 10, 11)), prompt=(1, 12), task=task, reward=0.0)
    branch = make_branch(root, 1, 1, call(4, result=WORKED, answer=(22,)), FakeTurn(ids=(5, 5)), reward=1.0)
    inner = make_branch(branch, 2, 1, FakeTurn(ids=(6,)), reward=0.5)
    other = make_trajectory(FakeTurn(ids=(7, 8)), prompt=(1, 12), task=task, sibling=1, reward=1.0)
    return Group(task=task, trajectories=(root, branch, inner, other))


def config(**fields: Any) -> RlConfig:
    return RlConfig(rollouts_per_task=2, group_size=2, roc_mode="none", **fields)


def test_a_sample_of_a_branch_has_its_own_tokens_and_the_whole_path() -> None:
    _, branch, inner, _ = forked_group().trajectories
    sample = sample_of(inner, Scored(reward=0.0, method="m"))
    assert (sample.tokens_U, sample.errors_U, sample.path) == ((0, 0, 1), (1, 0, 0), ((0, 0), (1, 1), (2, 1)))
    assert (sample.num_tokens, sample.shared_tokens, sample.tool_tokens) == (1, 3, 3)
    assert sample.spread([8.0, 9.0, 1.0]) == [1.0]
    by_length = Penalties(buffer=4, limit=8)
    whole = [by_length.of([sample_of(t, Scored(reward=0.0, method="m"))])[0] for t in (branch, inner)]
    assert whole == [1.0, 0.75], "a penalty of the length counts the tokens before the fork"


def test_advantages_are_those_of_the_tree() -> None:
    """V: 3/4 behind the inner fork, 3/8 behind the outer one, 1 of the other root."""
    chosen = select([forked_group()], config(advantage="fork_loo"), seed=0)
    assert chosen.advantages == [(-0.625, -0.625, -0.375, -0.375, -0.375), (0.375, 0.125, 0.125), -0.125, 0.625]


def test_other_estimators_take_a_branch_as_a_sibling_for_its_own_tokens() -> None:
    chosen = select([forked_group()], config(advantage="dr_grpo"), seed=0)
    assert chosen.advantages == [-0.625, 0.375, -0.125, 0.375]
    (micro,) = pack(policy_examples(chosen.kept, chosen.advantages), tokens_per_microbatch=100)
    assert micro.num_loss_tokens == 5 + 3 + 1 + 2


def test_resampling_keeps_a_group_size_of_all_leaves() -> None:
    few = RlConfig(rollouts_per_task=2, group_size=2, roc_mode="uniform", advantage="fork_loo")
    chosen = select([forked_group()], few, seed=0)
    assert [v.bucket for _, v in chosen.verdicts].count("kept") == len(chosen.kept) == 2
    assert {isinstance(t.outcome, Scored) and t.outcome.is_correct for t in chosen.kept} == {False, True}


def test_means_are_by_path_weight_and_numbers_count_once() -> None:
    metrics = rollout_metrics(select([forked_group()], config(), seed=0))
    assert metrics["tokens/generated"] == 11
    assert metrics["reward/mean"] == metrics["reward/mean_kept"] == (0.25 * 1.0 + 0.25 * 0.5 + 1.0) / 2
    assert metrics["reward/correct_share"] == (0.25 + 1.0) / 2
    assert metrics["num_turns/mean"] == (0.5 * 2 + 0.5 * 3 + 1) / 2
    assert metrics["tool/error_share"] == 1.0 / (0.5 * 1 + 0.5 * 2)
    assert metrics["tool/error_share_in_correct"] == 0.5
    assert (metrics["tool/status/error"], metrics["tool/status/ok"]) == (1, 1)
    assert (metrics["tool/calls/t"], metrics["tool/errors/t"]) == (2, 1)


def test_weights_are_of_each_task_and_root() -> None:
    one, two = forked_group().trajectories, forked_group(replace(TASK, id="u")).trajectories
    assert path_weights_of([*one, *two]) == [0.5, 0.25, 0.25, 1.0] * 2
    assert path_weights_of([one[0], one[3], two[0]]) == [1.0, 1.0, 1.0]


def test_the_solve_rate_counts_a_root_and_its_branches_as_one_attempt() -> None:
    cursor = TaskCursor([TASK], seed=0, rl=RlConfig(difficulty_floor=0.5))
    cursor.observe([forked_group()])
    assert cursor.state()["rates"] == {TASK.id: [1.25, 2.0]}


def test_a_late_branch_is_cut_behind_its_last_sample_and_never_before_its_fork() -> None:
    root, branch, inner, other = forked_group().trajectories
    wrote = replace(branch, outcome=LATE)
    wrote = replace(wrote, ids=wrote.ids[:-2], logprobs=wrote.logprobs[:-2], segments=wrote.segments[:-1])
    nothing = replace(
        inner, outcome=LATE, ids=inner.ids[:-1], logprobs=inner.logprobs[:-1], segments=inner.segments[:-1]
    )
    group = Group(task=TASK, trajectories=(root, wrote, nothing, other))
    chosen = select([group], config(timeouts="negative"), seed=0)
    lengths = [(len(t.ids), t.num_policy_tokens) for t in chosen.kept]
    assert lengths == [(9, 5), (7, 1), (8, 0), (4, 2)]


# --- The learner -------------------------------------------------------------------------------------------


def by_segment() -> list[Example]:
    """Each segment of the group as a row of its own behind its context, with the advantage of `fork_loo`."""
    root, branch, inner, other = forked_group().trajectories
    parts = [
        (root, range(2, 4), -0.625),
        (root, range(6, 9), -0.375),
        (branch, range(6, 7), 0.375),
        (branch, range(8, 10), 0.125),
        (inner, range(8, 9), -0.125),
        (other, range(2, 4), 0.625),
    ]
    rows = []
    for trajectory, places, advantage in parts:
        end = max(places) + 1
        mask = [place in places for place in range(end)]
        logprobs = trajectory.logprobs[:end].tolist()
        rows.append(
            make_example(trajectory.ids[:end], mask, weight=1 / 11, rollout_logprobs=logprobs, advantage=advantage)
        )
    return rows


def gradient(micros: list[MicroBatch]) -> Tensor:
    model = build_model(SCRATCH, 40, seed=0).double()
    scale_matrices(model)
    learner = Learner(model)
    learner.use(ADAMW)
    for micro in micros:
        learner.policy_backward(micro, LossSettings(temperature=1.0, loss=CLIP, correction=Correction.none))
    return torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("room", [8192, 8])
def test_the_gradient_of_a_forked_group_is_the_sum_over_its_segments(room: int) -> None:
    """Packed together or cut into microbatches, against each segment alone."""
    chosen = select([forked_group()], config(advantage="fork_loo"), seed=0)
    micros = pack(policy_examples(chosen.kept, chosen.advantages), tokens_per_microbatch=room)
    assert (len(micros) > 1) is (room == 8)
    alone = [micro for row in by_segment() for micro in pack([row], tokens_per_microbatch=8192)]
    torch.testing.assert_close(gradient(micros), gradient(alone), atol=1e-6, rtol=1e-5)


def test_a_branch_shares_the_row_of_its_parent_and_comes_after_a_tool() -> None:
    chosen = select([forked_group()], config(), seed=0)
    (micro,) = pack(policy_examples(chosen.kept, chosen.advantages), tokens_per_microbatch=8192)
    behind = dict(zip(micro.names_S, torch.split(micro.after_tool_T, micro.targets_S), strict=True))
    assert {name.partition("t/")[2]: after.tolist() for name, after in behind.items()} == {
        "0": [False, False, True, True, True],
        "0~1.1": [True, True, True],
        "0~1.1/2.1": [True],
        "1": [False, False],
    }
    assert sum(micro.lengths_S) < sum(len(t.ids) - 1 for t in chosen.kept)


def test_a_tool_result_is_imitated_once() -> None:
    """The result before a fork is learned with the parent, that of the branch's call with the branch."""
    chosen = select([forked_group()], config(), seed=0)
    rows = policy_examples(chosen.kept, chosen.advantages, echo=1.0, bodies=lambda ids: [True] * len(ids))
    assert [row.num_echo for row in rows] == [2, 1, 0, 0]
