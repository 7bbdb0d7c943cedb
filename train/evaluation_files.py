"""An evaluation on disk: every attempt as a record, and the numbers made of them.

    evaluations/step_N.jsonl   one trajectory record per attempt (engine/record.py)
    evaluations/step_N.json    `summary`: seed, k, avg, pass, interval, failures by kind, rewards by task

The records come first: where there are numbers, there are the attempts behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.record import Verdict, to_record, write_records
from rocstar.engine.types import Group, Scored, Trajectory
from rocstar.train.algorithm.roc import roc_penalty
from rocstar.train.evaluate import Evaluation
from rocstar.train.selection import FAILED, policy_text, stats_of
from rocstar.train.verify import num_answers

EVALUATED = "evaluated"
"""The bucket of an attempt that was scored: no learner saw it."""

Decode = Callable[[tuple[int, ...]], str]


def evaluation_files(run_dir: Path, step: int) -> tuple[Path, Path]:
    """Where a run keeps the attempts and the summary of its evaluation at `step`."""
    stem = run_dir / "evaluations" / f"step_{step:06d}"
    return stem.with_suffix(".jsonl"), stem.with_suffix(".json")


def write_attempts(path: Path, groups: Sequence[Group], decode: Decode) -> None:
    """One record per attempt, in the order of the groups; a file that was there stays until this is whole."""
    write_records(
        path,
        (
            to_record(t, _verdict(t), stage="eval", num_answers=num_answers(policy_text(t)), decode=decode)
            for group in groups
            for t in group.trajectories
        ),
    )


def _verdict(trajectory: Trajectory) -> Verdict:
    """What RoC would hold against the attempt, for a reader; nothing is drawn."""
    if not isinstance(trajectory.outcome, Scored):
        return FAILED
    penalty = roc_penalty(stats_of(trajectory))
    return Verdict(
        bucket=EVALUATED, penalty_error=penalty.error, penalty_format=penalty.format, advantage=None
    )


def summary(result: Evaluation, *, seed: int, step: int) -> dict[str, Any]:
    """The numbers of an evaluation as JSON; `seed` is the recipe's."""
    return {
        "seed": seed,
        "step": step,
        "k": result.k,
        "avg": result.avg,
        "pass": result.pass_at_k,
        "interval": [result.ci_low, result.ci_high],
        "num_tasks": result.num_tasks,
        "failed": result.failed,
        "failures": result.failures,
        "tool_error_share": result.tool_error_share,
        "is_truncated": result.is_truncated,
        "by_source": result.by_source,
        "rewards": result.rewards,
    }
