"""From groups to what the learner sees: RoC, advantages, and the ledger of every trajectory.

Invariant: every generated trajectory ends in exactly one bucket (kept, dropped_positive,
dropped_negative, no_signal, failed), and only a Scored one can have an advantage.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.engine.record import Verdict
from rocstar.engine.types import Group, Scored, Trajectory
from rocstar.train.algorithm.advantage import group_advantages, has_no_signal
from rocstar.train.algorithm.roc import (
    Penalty,
    RocMode,
    TrajectoryStats,
    keep_for,
    resample_on_correct,
    roc_penalty,
)
from rocstar.train.config import RlConfig
from rocstar.train.verify import num_answers

FAILED = Verdict(bucket="failed", penalty_error=None, penalty_format=None, advantage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`kept` and `advantages` go together; `verdicts` has every trajectory of every group."""

    kept: list[Trajectory]
    advantages: list[float]
    verdicts: list[tuple[Trajectory, Verdict]]
    groups_used: int
    groups_no_signal: int

    def ledger(self) -> Counter[str]:
        """Trajectories per bucket; the buckets sum to what was generated."""
        return Counter(verdict.bucket for _, verdict in self.verdicts)


def policy_text(trajectory: Trajectory) -> str:
    """Everything the policy wrote, tool output excluded."""
    return "\n".join(turn.text for turn in trajectory.turns)


def stats_of(trajectory: Trajectory) -> TrajectoryStats:
    """The counts behind the penalty. A call counts once it was answered, by the sandbox or by a refusal."""
    results = trajectory.results
    return TrajectoryStats(
        num_tool_calls=len(results),
        num_tool_errors=sum(r.is_error for r in results),
        num_answers=num_answers(policy_text(trajectory)),
        num_turns=max(1, len(trajectory.turns)),
    )


def select(groups: Sequence[Group], config: RlConfig, *, seed: int, step: int) -> Selection:
    """Resample each group on correct and give the kept ones their advantage.

    Draws depend on (seed, step, task) only, so that the order in which groups finish does not matter.
    """
    selection = Selection(kept=[], advantages=[], verdicts=[], groups_used=0, groups_no_signal=0)
    used = 0
    for group in sorted(groups, key=lambda g: g.task.id):
        used += _select_group(group, config, random.Random(f"{seed}|roc|{step}|{group.task.id}"), selection)
    return Selection(
        kept=selection.kept,
        advantages=selection.advantages,
        verdicts=selection.verdicts,
        groups_used=used,
        groups_no_signal=len(groups) - used,
    )


def _select_group(group: Group, config: RlConfig, rng: random.Random, selection: Selection) -> bool:
    """Add one group's verdicts; True if it gave the learner something."""
    scored = group.scored
    selection.verdicts.extend((t, FAILED) for t in group.trajectories if not isinstance(t.outcome, Scored))
    rewards = [t.outcome.reward for t in scored if isinstance(t.outcome, Scored)]
    penalties = [roc_penalty(stats_of(t)) for t in scored]
    if has_no_signal(rewards):
        selection.verdicts.extend(
            (t, _verdict("no_signal", p, None)) for t, p in zip(scored, penalties, strict=True)
        )
        return False
    decisions = resample_on_correct(
        rewards,
        penalties,
        keep=keep_for(len(scored), len(group.trajectories), config.group_size),
        mode=RocMode(config.roc_mode),
        rng=rng,
        eps=config.roc_eps,
        min_positive=config.roc_min_each,
        min_negative=config.roc_min_each,
    )
    kept = [k for k, decision in enumerate(decisions) if decision.kept]
    advantages = dict(zip(kept, group_advantages([rewards[k] for k in kept]), strict=True))
    for k, (trajectory, penalty) in enumerate(zip(scored, penalties, strict=True)):
        advantage = advantages.get(k)
        selection.verdicts.append((trajectory, _verdict(decisions[k].reason.value, penalty, advantage)))
        if advantage is not None:
            selection.kept.append(trajectory)
            selection.advantages.append(advantage)
    return True


def _verdict(bucket: str, penalty: Penalty, advantage: float | None) -> Verdict:
    return Verdict(
        bucket=bucket, penalty_error=penalty.error, penalty_format=penalty.format, advantage=advantage
    )
