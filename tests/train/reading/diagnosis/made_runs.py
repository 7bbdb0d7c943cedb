"""Runs made of rows: a healthy one, and the signature of each alarm to plant into it."""

import math
import random
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]


def healthy(steps: int, seed: int = 0) -> Rows:
    """A run that learns, with the noise of 384 trajectories a step."""
    rng = random.Random(seed)
    return [_row(step, steps, rng) for step in range(1, steps + 1)]


def _row(step: int, steps: int, rng: random.Random) -> dict[str, Any]:
    rise = 1 / (1 + math.exp(-6 * (step / max(steps, 40) - 0.5)))
    right = 0.2 + 0.5 * rise + rng.gauss(0, 0.02)
    return {
        "step": step,
        "stage": "one",
        "phase": "rl",
        "time_s": 3.0 * step,
        "reward/mean": right,
        "reward/correct_share": right,
        "reward/timeouts": 0.0,
        "is_truncated/mean": max(0.0, 0.03 + rng.gauss(0, 0.01)),
        "tool/calls_mean": 1.4 + rng.gauss(0, 0.05),
        "tool/error_share_in_correct": max(0.0, 0.2 - 0.1 * rise + rng.gauss(0, 0.02)),
        "tool/status/malformed_call": float(rng.randrange(10)),
        "seq_len/mean": 160 + rng.gauss(0, 5),
        "text/looping": abs(rng.gauss(0, 0.01)),
        "answers/alike": abs(rng.gauss(0, 0.05)),
        "roc_answer_format/gt_one_answer_count": float(rng.randrange(12)),
        "ledger/generated": 384.0,
        "ledger/failed": float(rng.randrange(3)),
        "groups/used": 10.0,
        "groups/no_signal": 2.0,
        "reject_equal_reward/solve_equal_non_all_zeros": 1.0,
        "gate/paused": 0.0,
        "entropy/mean": 0.4 - 0.15 * rise + rng.gauss(0, 0.01),
        "mismatch_kl/after_tool": rng.gauss(0, 1e-3),
        "mismatch_kl/elsewhere": rng.gauss(0, 1e-3),
        "engine/recomputed_tokens": float(rng.randrange(300)),
        "tokens/generated": 40_000.0,
        "time/step": 3.0 + rng.uniform(-1, 2),
        "time/eval": 0.0,
        "time/checkpoint": 0.0,
    }


def _set(name: str, value: float | None) -> Callable[[dict[str, Any], int], None]:
    def plant(row: dict[str, Any], since: int) -> None:
        row[name] = value

    return plant


def _stagnant(name: str, value: float) -> Callable[[dict[str, Any], int], None]:
    """A metric that jumps while the share of correct trajectories stays where it is."""

    def plant(row: dict[str, Any], since: int) -> None:
        row |= {name: value, "reward/correct_share": 0.25}

    return plant


PLANTS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "stall": lambda row, since: row.update({"time/step": row["time/step"] * (20 if since == 0 else 1)}),
    "no_signal": _set("groups/used", 0.0),
    "paused": _set("gate/paused", 1.0),
    "nonfinite": _set("optim/grad_norm", None),
    "failures": _set("ledger/failed", 30.0),
    "truncation": _set("is_truncated/mean", 0.2),
    "undecodable_calls": _set("tool/status/malformed_call", 120.0),
    "tool_errors_in_correct": lambda row, since: row.update(
        {"tool/error_share_in_correct": min(0.6, 0.2 + 0.1 * since)}
    ),
    "calls_without_accuracy": _stagnant("tool/calls_mean", 3.2),
    "length_without_reward": _stagnant("seq_len/mean", 300.0),
    "several_answers": _set("roc_answer_format/gt_one_answer_count", 90.0),
    "same_answer": _set("answers/alike", 0.8),
    "repetition": _set("text/looping", 0.3),
    "verifier_timeouts": _set("reward/timeouts", 20.0),
    "all_solved": _set("reject_equal_reward/solve_equal_non_all_zeros", 10.0),
    "entropy_collapse": _stagnant("entropy/mean", 0.02),
    "entropy_explosion": _set("entropy/mean", 1.5),
    "mismatch_after_tool": _set("mismatch_kl/after_tool", 0.05),
    "kv_evictions": _set("engine/recomputed_tokens", 9_000.0),
}
"""What a row of a sick run has, by alarm; `since` counts the steps since it fell ill. The alarm that compares
evaluations has none: it is planted as evaluations."""


def planted(name: str, *, first: int, steps: int) -> Rows:
    """A healthy run that falls ill at step `first`."""
    rows = healthy(steps)
    for row in rows[first - 1 :]:
        PLANTS[name](row, row["step"] - first)
    return rows
