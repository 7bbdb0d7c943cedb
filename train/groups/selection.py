"""From groups to the learner's samples: RoC, advantages, and the ledger of every trajectory.

Invariant: every generated trajectory ends in exactly one bucket (kept, dropped_positive,
dropped_negative, no_signal, failed), and only a Scored one can have an advantage.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.rollout.rollout import POLICY_TIMEOUT, TRAJECTORY_TIMEOUT
from rocstar.engine.types import Failed, Group, Origin, Scored, Trajectory
from rocstar.train.algorithm.advantages import Advantage, has_no_signal
from rocstar.train.algorithm.roc import (
    Decision,
    Penalty,
    RocMode,
    TrajectoryStats,
    keep_for,
    resample_on_correct,
    roc_penalty,
)
from rocstar.train.groups.advantages import estimate, sample_of
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.tasks.verify import num_answers

FAILED = Verdict(bucket="failed", penalty_error=None, penalty_format=None, advantage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`kept` and `advantages` go together; `verdicts` has every trajectory of every group."""

    kept: list[Trajectory]
    advantages: list[Advantage]
    verdicts: list[tuple[Trajectory, Verdict]]
    groups_used: int
    groups_no_signal: int
    num_timed_out: int = 0
    """Trajectories that outlived their clock, whatever bucket they are in."""

    def ledger(self) -> Counter[str]:
        """Trajectories per bucket; the buckets sum to the generated ones."""
        return Counter(verdict.bucket for _, verdict in self.verdicts)


def stats_of(trajectory: Trajectory) -> TrajectoryStats:
    """The counts behind the penalty. A call counts once it was answered, by the sandbox or by a refusal."""
    results = trajectory.results
    return TrajectoryStats(
        num_tool_calls=len(results),
        num_tool_errors=sum(r.is_error for r in results),
        num_answers=num_answers(trajectory.turns),
        num_turns=max(1, len(trajectory.turns)),
    )


def penalty_of(trajectory: Trajectory) -> Penalty:
    """Return the penalty of a trajectory in Resample-on-Correct."""
    return roc_penalty(stats_of(trajectory))


def select(groups: Sequence[Group], config: RlConfig, *, seed: int, step: int) -> Selection:
    """Resample each group on correct and give the kept ones of all groups their advantage.

    Draws depend on (seed, step, task) only, so that the order in which groups finish does not matter.
    """
    late = (TRAJECTORY_TIMEOUT, POLICY_TIMEOUT)
    num_timed_out = sum(_kind(t) in late for g in groups for t in g.trajectories)
    groups = [_with_negatives(group, config) for group in groups]
    resampled = [
        _resample(group, config, random.Random(f"{seed}|roc|{step}|{group.task.id}"))
        for group in sorted(groups, key=lambda g: g.task.id)
    ]
    used = [group for group in resampled if group.kept]
    advantages = estimate(
        config.advantage, [[sample_of(group.scored[k], group.outcomes[k]) for k in group.kept] for group in used]
    )
    of_group = {id(group): given for group, given in zip(used, advantages, strict=True)}
    selection = Selection(
        kept=[group.scored[k] for group in used for k in group.kept],
        advantages=[advantage for given in advantages for advantage in given],
        verdicts=[],
        groups_used=len(used),
        groups_no_signal=len(groups) - len(used),
        num_timed_out=num_timed_out,
    )
    for group in resampled:
        selection.verdicts.extend(group.verdicts(of_group.get(id(group), [])))
    return selection


def num_missing(groups: Sequence[Group], config: RlConfig, *, wanted: int) -> int:
    """Return `wanted` less the number of groups with signal, those that `select` uses; at least 0."""
    outcomes_of = [[t.outcome for t in _with_negatives(g, config).trajectories] for g in groups]
    rewards_of = [[o.reward for o in outcomes if isinstance(o, Scored)] for outcomes in outcomes_of]
    return max(0, wanted - sum(not has_no_signal(rewards) for rewards in rewards_of))


def _with_negatives(group: Group, config: RlConfig) -> Group:
    """Return the group with the late trajectories as negatives, where the recipe says so."""
    if config.timeouts != "negative":
        return group
    return replace(group, trajectories=tuple(map(_negative_if_late, group.trajectories)))


def _kind(trajectory: Trajectory) -> str | None:
    return trajectory.outcome.kind if isinstance(trajectory.outcome, Failed) else None


def _negative_if_late(trajectory: Trajectory) -> Trajectory:
    """Return a POLICY_TIMEOUT with reward 0, cut after the policy's last token; return others unchanged.

    The policy's text of the turn in which the clock ended is lost: without an earlier turn the trajectory has
    no token with loss and counts only in the baseline of its group.
    """
    if _kind(trajectory) != POLICY_TIMEOUT:
        return trajectory
    segments = trajectory.segments
    while len(segments) > 1 and segments[-1].origin is not Origin.policy:
        segments = segments[:-1]
    end = segments[-1].end
    return replace(
        trajectory,
        ids=trajectory.ids[:end],
        logprobs=trajectory.logprobs[:end],
        segments=segments,
        outcome=Scored(reward=0.0, method=POLICY_TIMEOUT),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Resampled:
    """A group after Resample-on-Correct. The lists go with `scored`; `kept` are places in it."""

    failed: list[Trajectory]
    scored: list[Trajectory]
    outcomes: list[Scored]
    penalties: list[Penalty]
    decisions: list[Decision]

    @property
    def kept(self) -> list[int]:
        return [k for k, decision in enumerate(self.decisions) if decision.kept]

    def verdicts(self, advantages: Sequence[Advantage]) -> Iterator[tuple[Trajectory, Verdict]]:
        """Every trajectory with its place in the ledger; `advantages` are those of the kept ones."""
        yield from ((trajectory, FAILED) for trajectory in self.failed)
        of_kept = dict(zip(self.kept, advantages, strict=True))
        for k, (trajectory, penalty) in enumerate(zip(self.scored, self.penalties, strict=True)):
            verdict = Verdict(
                bucket=self.decisions[k].reason.value,
                penalty_error=penalty.error,
                penalty_format=penalty.format,
                advantage=of_kept.get(k),
            )
            yield trajectory, verdict


def _resample(group: Group, config: RlConfig, rng: random.Random) -> _Resampled:
    pairs = [(t, t.outcome) for t in group.trajectories if isinstance(t.outcome, Scored)]
    outcomes = [outcome for _, outcome in pairs]
    penalties = [penalty_of(t) for t, _ in pairs]
    rewards, num_scored = [outcome.reward for outcome in outcomes], len(pairs)
    num_siblings = len(group.trajectories)  # a conversation that was served has as many as were asked for
    decisions = resample_on_correct(
        rewards,
        [outcome.is_correct for outcome in outcomes],
        penalties,
        keep=num_scored
        if has_no_signal(rewards)
        else keep_for(num_scored, num_siblings, min(config.group_size, num_siblings)),
        mode=RocMode(config.roc_mode),
        rng=rng,
        eps=config.roc_eps,
        min_positive=config.roc_min_each,
        min_negative=config.roc_min_each,
    )
    return _Resampled(
        failed=[t for t in group.trajectories if not isinstance(t.outcome, Scored)],
        scored=[t for t, _ in pairs],
        outcomes=outcomes,
        penalties=penalties,
        decisions=decisions,
    )
