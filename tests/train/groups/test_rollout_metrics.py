"""Metrics count everything that was generated, before RoC drops any (contract 11)."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given

from rocstar.engine.types import Group, Task, ToolCall, ToolResult
from rocstar.train.algorithm.off_policy import Correction, correct, measure
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import select
from rocstar.train.learner.loss_stats import LossStats, update_metrics
from rocstar.train.record.metrics import check_names

from ...fakes.tiny import policy_tokens
from .batches import BUCKETS, batches, config, group, make


def test_metrics_count_everything_generated_before_any_is_dropped() -> None:
    members = [
        (1.0, 1, 1),
        (1.0, 0, 2),
        (0.0, 2, 0),
        (0.0, 0, 0),
        (0.0, 0, 1),
        (0.0, 0, 1),
        (None, 1, 0),
        (None, 0, 0),
    ]
    metrics = rollout_metrics(select([group("t", members)], config(2, 8), seed=0))
    check_names(metrics)
    assert metrics["reward/mean"] == pytest.approx(2 / 6), "a failed trajectory has no reward"
    assert metrics["reward/mean_kept"] == pytest.approx(1 / 2)
    assert metrics["tool/error_share"] == pytest.approx(4 / 9)
    assert metrics["tool/error_share_in_correct"] == pytest.approx(1 / 4)
    assert metrics["tool/calls_mean"] == pytest.approx(9 / 8)
    assert metrics["tool/executed_share"] == pytest.approx(6 / 8)
    assert (metrics["tool/status/ok"], metrics["tool/status/error"]) == (5, 4)
    assert metrics["penalty/error_mean"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["failed/sandbox_lost"] == metrics["ledger/failed"] == 2
    assert metrics["ledger/generated"] == 8 == sum(metrics[f"ledger/{bucket}"] for bucket in BUCKETS)
    assert metrics["tokens/generated"] == 16


def test_rewards_and_verdicts_are_told_apart() -> None:
    """Wrong answers with part of the reward; a group of equal rewards that are none and not correct."""
    partial = group("t", [(0.5, 1, 1), (0.25, 0, 2), (1.0, 2, 2), (0.0, 0, 0)])
    equal = group("u", [(0.5, 0, 0), (0.5, 0, 0)])
    metrics = rollout_metrics(select([partial, equal], config(2, 4), seed=0))
    check_names(metrics)
    assert metrics["reward/mean"] == pytest.approx(2.75 / 6)
    assert metrics["reward/correct_share"] == pytest.approx(1 / 6)
    assert metrics["tool/error_share_in_correct"] == metrics["penalty/error_mean"] == 0.5
    assert metrics["reject_equal_reward/solve_equal_zeros"] == 1 == metrics["groups/no_signal"]
    assert metrics["reject_equal_reward/solve_equal_non_all_zeros"] == 0
    assert metrics["tokens/no_signal"] == 4 < metrics["tokens/generated"]


@given(groups=batches)
def test_every_step_has_listed_finite_metrics(groups: list[Group]) -> None:
    metrics = rollout_metrics(select(groups, config(4, 8), seed=0))
    check_names(metrics)
    assert all(value == value and abs(value) < 1e9 for value in metrics.values())


def metrics_of(
    calls: Sequence[tuple[str | None, str]], marks: Sequence[dict[str, bool]] | None = None
) -> dict[str, float]:
    """The metrics of a wrong trajectory with these calls, by name and status, in one turn."""
    task = Task(id="t", source="s", question="q", answer="1")
    marked = zip(calls, marks or [{}] * len(calls), strict=True)
    results = tuple(
        ToolResult(status=status, is_error=status != "ok", text="", **mark) for (_, status), mark in marked
    )
    base = make(task, 0, 0.0, clean=1)
    called = tuple(ToolCall(name=name, arguments={}) for name, _ in calls)
    turns = (dataclasses.replace(base.turns[0], calls=called, results=results), base.turns[1])
    made = Group(task=task, trajectories=(dataclasses.replace(base, turns=turns),))
    metrics = rollout_metrics(select([made], config(2, 2), seed=0))
    check_names(metrics)
    return metrics


def test_refused_calls_were_not_executed() -> None:
    metrics = metrics_of([(None, status) for status in ("malformed_call", "unknown_tool", "bad_arguments")])
    assert metrics["tool/executed_share"] == 0 and metrics["tool/calls_mean"] == 3
    assert "tool/error_share_in_correct" not in metrics, "no correct trajectory called a tool"


def test_calls_that_met_another_interpreter_are_counted() -> None:
    restarted, replayed = {"restarted": True}, {"replayed": True}
    marks = [{}, restarted, replayed, restarted | replayed, restarted]
    metrics = metrics_of([("python", "ok")] * len(marks), marks)
    assert (metrics["tool/session_restarts"], metrics["tool/session_replays"]) == (3, 2)


def test_calls_are_counted_by_tool_and_a_made_up_name_is_none() -> None:
    metrics = metrics_of([
        *(("search", status) for status in ("ok", "timeout", "bad_arguments", "too_many_calls")),
        ("python", "ok"),
        ("made up", "unknown_tool"),
        (None, "malformed_call"),
    ])  # fmt: skip
    by_tool = {name: n for name, n in metrics.items() if name.startswith(("tool/calls/", "tool/errors/"))}
    assert by_tool == {
        "tool/calls/search": 3,
        "tool/errors/search": 2,
        "tool/calls/python": 1,
        "tool/errors/python": 0,
    }


def test_update_metrics_are_means_over_their_tokens() -> None:
    stats = LossStats(loss=0.6, tokens=10, entropy=5.0, clipped_low=1, clipped_high=2, max_ratio=1.5)
    stats.grad_norms += [1.0, 3.0]
    old, rollout = torch.full((5,), -1.1), torch.full((5,), -1.0)
    behind = torch.tensor([True] * 2 + [False] * 3)
    rollout[:2] += 0.3
    tokens = policy_tokens(old, rollout_logprobs_T=rollout, after_tool_T=behind)
    stats.mismatch = measure(tokens, correct(tokens, mode=Correction.icepop, cap=5.0, floor=0.8))
    metrics = update_metrics(stats)
    check_names(metrics)
    assert metrics["loss/policy"] == 0.3, "the mean over the two updates, whose weights each sum to one"
    assert (metrics["clip/low_fraction"], metrics["clip/high_fraction"]) == (0.1, 0.2)
    assert metrics["entropy/mean"] == 0.5
    kl = [metrics[f"mismatch_kl/{name}"] for name in ("mean", "after_tool", "elsewhere")]
    assert kl == pytest.approx([0.22, 0.4, 0.1], abs=1e-6)
    masked = [metrics[f"tis/masked_fraction{name}"] for name in ("", "_after_tool", "_elsewhere")]
    assert masked == [0.4, 1.0, 0.0]
    assert metrics["mismatch_ratio/p99_elsewhere"] < metrics["mismatch_ratio/p99_after_tool"]
    assert metrics["gate/paused"] == metrics["gate/bad_steps"] == 0
    assert (metrics["optim/grad_norm"], metrics["ratio/max"], metrics["tokens/loss"]) == (2.0, 1.5, 10)


def test_an_update_without_tokens_divides_by_nothing() -> None:
    metrics = update_metrics(LossStats())
    assert metrics.pop("mismatch_ratio/p99") == 1
    assert all(value == 0 for value in metrics.values())


def test_a_paused_step_has_its_mismatch_and_no_loss() -> None:
    stats = LossStats(loss=0.6, tokens=10, bad_steps=4, is_paused=True)
    metrics = update_metrics(stats)
    check_names(metrics)
    assert (metrics["gate/paused"], metrics["gate/bad_steps"]) == (1, 4)
    assert not {"loss/policy", "optim/grad_norm", "clip/low_fraction"} & metrics.keys()


def test_the_released_codes_names_count_groups_and_answers() -> None:
    wrong, right, mixed = ([(r, 0, 1) for r in rewards] for rewards in ([0.0] * 4, [1.0] * 4, [0.0, 1.0] * 2))
    groups = [group("a", wrong), group("b", right), group("c", mixed)]
    metrics = rollout_metrics(select(groups, config(2, 4), seed=0))
    assert metrics["reject_equal_reward/solve_equal_zeros"] == 1
    assert metrics["reject_equal_reward/solve_equal_non_all_zeros"] == 1
    assert metrics["reject_equal_reward/solve_equal_total_ratio"] == 2 / 3
    assert metrics["roc_answer_format/answer_per_rollout_mean"] == 1
    assert metrics["finish/answered"] == 1
