"""Metrics of an update. Names: train/record/metrics.py."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rocstar.train.algorithm.off_policy import AFTER_TOOL, ELSEWHERE
from rocstar.train.learner.loss_stats import LossStats


def update_metrics(stats: LossStats) -> dict[str, float]:
    """Return the metrics of one batch's optimizer steps; for a paused step only its measurements."""
    metrics = mismatch_metrics(stats)
    if stats.start_tokens:
        metrics["start_kl/mean"] = stats.start_kl / stats.start_tokens
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


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
