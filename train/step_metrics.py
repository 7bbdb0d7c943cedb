"""What a step's trajectories and update look like as numbers. Names: train/metrics.py.

`reward/mean` and `tool/*` are over all generated trajectories, before RoC (contract 11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from rocstar.engine.types import Failed, Scored, Trajectory
from rocstar.train.algorithm.off_policy import AFTER_TOOL, ELSEWHERE
from rocstar.train.loss_stats import LossStats
from rocstar.train.selection import Selection, policy_text
from rocstar.train.verify import num_answers


def rollout_metrics(selection: Selection) -> dict[str, float]:
    """Everything known before the update."""
    trajectories = [t for t, _ in selection.verdicts]
    scored = [t for t in trajectories if isinstance(t.outcome, Scored)]
    correct = [t for t in scored if isinstance(t.outcome, Scored) and t.outcome.reward == 1.0]
    results = [r for t in trajectories for r in t.results]
    ledger = selection.ledger()
    metrics = {
        "tool/error_share": _mean(r.is_error for r in results),
        "tool/calls_mean": _mean(len(t.results) for t in trajectories),
        "tool/executed_share": _mean(any(_ran(r.status) for r in t.results) for t in trajectories),
        "tool/session_restarts": float(sum(r.restarted for r in results)),
        "tool/session_replays": float(sum(r.replayed for r in results)),
        "seq_len/mean": _mean(len(t.ids) for t in trajectories),
        "seq_len/max": float(max((len(t.ids) for t in trajectories), default=0)),
        "is_truncated/mean": _mean(t.is_truncated for t in trajectories),
        "num_turns/mean": _mean(len(t.turns) for t in trajectories),
        "ledger/generated": float(len(trajectories)),
        "groups/used": float(selection.groups_used),
        "groups/no_signal": float(selection.groups_no_signal),
        "tokens/generated": float(sum(t.num_policy_tokens for t in trajectories)),
    }
    buckets = ("kept", "dropped_positive", "dropped_negative", "no_signal", "failed")
    metrics |= {f"ledger/{bucket}": float(ledger[bucket]) for bucket in buckets}
    if scored:
        metrics["reward/mean"] = len(correct) / len(scored)
    if selection.kept:
        metrics["reward/mean_kept"] = _mean(_reward(t) for t in selection.kept)
    if any(t.results for t in correct):
        metrics["tool/error_share_in_correct"] = _mean(r.is_error for t in correct for r in t.results)
    penalties = [v for t, v in selection.verdicts if v.penalty_error is not None and _reward(t) == 1.0]
    if penalties:
        metrics["penalty/error_mean"] = _mean(v.penalty_error or 0.0 for v in penalties)
        metrics["penalty/format_mean"] = _mean(v.penalty_format or 0.0 for v in penalties)
    metrics |= {f"tool/status/{s}": float(n) for s, n in Counter(r.status for r in results).items()}
    kinds = Counter(t.outcome.kind for t in trajectories if isinstance(t.outcome, Failed))
    metrics |= {f"failed/{kind}": float(n) for kind, n in kinds.items()}
    reasons = Counter(t.finish_reason.value for t in trajectories)
    metrics |= {f"finish/{reason}": n / len(trajectories) for reason, n in reasons.items()}
    return metrics | released_metrics(selection)


def released_metrics(selection: Selection) -> dict[str, float]:
    """The released rStar2-Agent code's own names, so that curves can be laid over its curves."""
    rewards: dict[str, set[float]] = {}
    for trajectory, _ in selection.verdicts:
        if isinstance(trajectory.outcome, Scored):
            rewards.setdefault(trajectory.task.id, set()).add(trajectory.outcome.reward)
    zeros = sum(values == {0.0} for values in rewards.values())
    ones = sum(values == {1.0} for values in rewards.values())
    answers = [num_answers(policy_text(t)) for t, _ in selection.verdicts]
    penalties = [v.penalty_error for _, v in selection.verdicts if v.penalty_error is not None]
    return {
        "reject_equal_reward/solve_equal_total_ratio": (zeros + ones) / max(1, len(rewards)),
        "reject_equal_reward/solve_equal_zeros": float(zeros),
        "reject_equal_reward/solve_equal_non_all_zeros": float(ones),
        "roc_error_ratio/global_err_ratio": _mean(penalties),
        "roc_answer_format/answer_per_rollout_mean": _mean(answers),
        "roc_answer_format/zero_answer_count": float(sum(n == 0 for n in answers)),
        "roc_answer_format/gt_one_answer_count": float(sum(n > 1 for n in answers)),
    }


def update_metrics(stats: LossStats) -> dict[str, float]:
    """Everything the optimizer steps of one batch told; of a paused step only what was measured."""
    metrics = mismatch_metrics(stats)
    if stats.is_paused:
        return metrics
    tokens = max(1.0, stats.tokens)
    return metrics | {
        "loss/policy": stats.loss / max(1, len(stats.grad_norms)),
        "clip/low_fraction": stats.clipped_low / tokens,
        "clip/high_fraction": stats.clipped_high / tokens,
        "entropy/mean": stats.entropy / tokens,
        "ratio/max": stats.max_ratio,
        "optim/grad_norm": _mean(stats.grad_norms),
        "tokens/loss": stats.tokens,
    }


def mismatch_metrics(stats: LossStats) -> dict[str, float]:
    """How far rollout and learner were apart; a kind of token that is absent has no entry."""
    found = stats.mismatch
    metrics = {
        "mismatch_kl/mean": found.kl(),
        "mismatch_ratio/p99": found.ratio_p99(),
        "tis/capped_fraction": found.capped_fraction(),
        "tis/masked_fraction": found.masked_fraction(),
        "gate/bad_steps": float(stats.bad_steps),
        "gate/paused": float(stats.is_paused),
    }
    for row, name in ((AFTER_TOOL, "after_tool"), (ELSEWHERE, "elsewhere")):
        if found.num_tokens(row):
            metrics[f"mismatch_kl/{name}"] = found.kl(row)
            metrics[f"mismatch_ratio/p99_{name}"] = found.ratio_p99(row)
            metrics[f"tis/masked_fraction_{name}"] = found.masked_fraction(row)
    return metrics


def _reward(trajectory: Trajectory) -> float:
    return trajectory.outcome.reward if isinstance(trajectory.outcome, Scored) else 0.0


def _ran(status: str) -> bool:
    return status not in ("malformed_call", "unknown_tool", "bad_arguments", "too_many_calls")


def _mean(values: Iterable[float]) -> float:
    numbers = [float(v) for v in values]
    return fmean(numbers) if numbers else 0.0
