"""From groups to the learner's samples: RoC, advantages, and the ledger of every trajectory.

Invariant: every generated trajectory ends in exactly one bucket (kept, dropped_positive,
dropped_negative, no_signal, failed, ended_early), and only a Scored one can have an advantage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.rollout.rollout import ENDED_EARLY, POLICY_TIMEOUT, TRAJECTORY_TIMEOUT
from rocstar.engine.seeds import stream_of
from rocstar.engine.types import Failed, Group, Origin, Scored, Task, Trajectory, TrajectoryKey
from rocstar.train.algorithm.advantages import Advantage, has_no_signal
from rocstar.train.algorithm.penalties import Penalties, not_below_zero
from rocstar.train.algorithm.roc import Decision, DropReason, Penalty, RocMode, can_end, choose_siblings, roc_penalty
from rocstar.train.groups.advantages import estimate, sample_of
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.tasks.verify import num_answers

FAILED, UNNEEDED = (
    Verdict(bucket=bucket, penalty_error=None, penalty_format=None, advantage=None)
    for bucket in ("failed", "ended_early")
)


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

    @staticmethod
    def of(groups: Sequence[ResampledGroup], advantages: Sequence[Sequence[Advantage]]) -> Selection:
        """Return the selection of groups with the advantages of each one's kept trajectories.

        The order of the groups does not matter.
        """
        pairs = sorted(zip(groups, advantages, strict=True), key=lambda pair: pair[0].task.id)
        used = sum(bool(group.kept) for group in groups)
        return Selection(
            kept=[trajectory for group, _ in pairs for trajectory in group.kept],
            advantages=[advantage for _, given in pairs for advantage in given],
            verdicts=[verdict for group, given in pairs for verdict in group.verdicts(given)],
            groups_used=used,
            groups_no_signal=len(groups) - used,
            num_timed_out=sum(group.num_timed_out for group in groups),
        )


def penalty_of(trajectory: Trajectory) -> Penalty:
    """Return the penalty of Resample-on-Correct. A call counts once the sandbox or a refusal answered it."""
    results = trajectory.results
    return roc_penalty(
        num_tool_calls=len(results),
        num_tool_errors=sum(r.is_error for r in results),
        num_answers=num_answers(trajectory),
        num_turns=max(1, len(trajectory.turns)),
    )


def select(
    groups: Sequence[Group],
    config: RlConfig,
    *,
    seed: int,
    limit: int = 0,
    teacher: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Selection:
    """Resample each group on correct and give the kept ones of all groups their advantage.

    Draws depend on `seed` and the keys only, so that the order in which groups finish does not matter. `limit`: tokens
    of a response at most, from which `rl.overlong_buffer` counts. `teacher`: log-probs of each trajectory's loss
    tokens by its key; where advantages are a teacher's, every scored trajectory is kept.
    """
    resampled = [resample_on_correct(group, config, seed=seed) for group in groups]
    used = sorted((group for group in resampled if group.kept), key=lambda group: group.task.id)
    samples = [
        [sample_of(t, outcome, teacher.get(str(t.key))) for t, outcome in zip(g.kept, g.outcomes, strict=True)]
        for g in used
    ]
    penalties = Penalties(
        length=config.length_penalty, turns=config.turn_penalty, buffer=config.overlong_buffer, limit=limit
    )
    advantages: Sequence[Sequence[Advantage]] = estimate(config.advantage, samples)
    if penalties.length or penalties.turns or penalties.buffer:
        given = estimate(config.advantage, [penalties.applied(group) for group in samples])
        advantages = [not_below_zero(*one) for one in zip(samples, advantages, given, strict=True)]
    of_group = {id(group): given for group, given in zip(used, advantages, strict=True)}
    return Selection.of(resampled, [of_group.get(id(group), []) for group in resampled])


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
    segments, shared = trajectory.segments, trajectory.fork.start if trajectory.fork else 0
    while len(segments) > 1 and segments[-1].origin is not Origin.policy and segments[-1].start >= shared:
        segments = segments[:-1]
    end = segments[-1].end
    return replace(
        trajectory,
        ids=trajectory.ids[:end],
        logprobs=trajectory.logprobs[:end],
        segments=segments,
        starts=tuple(start for start in trajectory.starts if start < end),
        outcome=Scored(reward=0.0, method=POLICY_TIMEOUT),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResampledGroup:
    """A group after Resample-on-Correct. `penalties` and `decisions` go with `scored`."""

    task: Task
    failed: list[Trajectory]
    scored: list[Trajectory]
    penalties: list[Penalty]
    decisions: list[Decision]
    num_timed_out: int

    @property
    def kept(self) -> list[Trajectory]:
        """The trajectories to learn from; none without a signal."""
        return [trajectory for trajectory, decision in zip(self.scored, self.decisions, strict=True) if decision.kept]

    @property
    def outcomes(self) -> list[Scored]:
        """One for each kept trajectory."""
        return [trajectory.outcome for trajectory in self.kept if isinstance(trajectory.outcome, Scored)]

    def verdicts(self, advantages: Sequence[Advantage]) -> Iterator[tuple[Trajectory, Verdict]]:
        """Every trajectory with its place in the ledger; `advantages` are those of the kept ones."""
        yield from ((t, UNNEEDED if _kind(t) == ENDED_EARLY else FAILED) for t in self.failed)
        of_kept = {id(trajectory): given for trajectory, given in zip(self.kept, advantages, strict=True)}
        for trajectory, penalty, decision in zip(self.scored, self.penalties, self.decisions, strict=True):
            verdict = Verdict(
                bucket=decision.reason.value,
                penalty_error=penalty.error,
                penalty_format=penalty.format,
                advantage=of_kept.get(id(trajectory)),
            )
            yield trajectory, verdict


def _draw_key(key: TrajectoryKey, seed: int) -> float:
    """Return the sibling's key of the draw, Exp(1): a function of `seed`, step, task and sibling."""
    return -math.log((stream_of(replace(key, seed=seed), purpose="roc") + 1) / 2**63)


def _draw(config: RlConfig) -> dict[str, Any]:
    """The arguments of `choose_siblings` and `can_end` that are of the recipe."""
    least = config.roc_min_each
    return {
        "keep": config.group_size,
        "mode": RocMode(config.roc_mode),
        "eps": config.roc_eps,
        "min_positive": least,
        "min_negative": least,
    }


def unneeded_siblings(
    ended: Sequence[Trajectory], running: Sequence[TrajectoryKey], config: RlConfig, *, seed: int
) -> list[TrajectoryKey]:
    """Return the running siblings of a group that `resample_on_correct` can do without (`roc.can_end`)."""
    scored = {}
    for trajectory in ended:
        if config.timeouts == "negative":
            trajectory = _negative_if_late(trajectory)
        if isinstance(trajectory.outcome, Scored):
            scored[trajectory.key.sibling] = trajectory.outcome.is_correct, penalty_of(trajectory).total
    keys = {key.sibling: _draw_key(key, seed) for key in (*(t.key for t in ended), *running)}
    found = can_end(keys, scored, [key.sibling for key in running], **_draw(config))
    return [key for key in running if key.sibling in found]


def resample_on_correct(group: Group, config: RlConfig, *, seed: int) -> ResampledGroup:
    """Keep `group_size` siblings: the correct ones by their penalty, the others at random.

    The draw depends on `seed` and the keys of the trajectories alone. A branch is a sibling like a root: quotas and
    penalties are of whole paths, as the judge's rewards are, and the learner's share of a task stays the same whatever
    forked.
    """
    late = (TRAJECTORY_TIMEOUT, POLICY_TIMEOUT)
    num_timed_out = sum(_kind(trajectory) in late for trajectory in group.trajectories)
    trajectories = _with_negatives(group, config).trajectories
    pairs = [(t, t.outcome) for t in trajectories if isinstance(t.outcome, Scored)]
    outcomes = [outcome for _, outcome in pairs]
    penalties = [penalty_of(t) for t, _ in pairs]
    decisions = [Decision(reason=DropReason.kept, inclusion_weight=None)] * len(pairs)
    if config.uses_rewards:
        decisions = choose_siblings(
            [outcome.reward for outcome in outcomes],
            [outcome.is_correct for outcome in outcomes],
            penalties,
            [_draw_key(t.key, seed) for t, _ in pairs],
            **_draw(config),
        )
    return ResampledGroup(
        task=group.task,
        failed=[t for t in trajectories if not isinstance(t.outcome, Scored)],
        scored=[t for t, _ in pairs],
        penalties=penalties,
        decisions=decisions,
        num_timed_out=num_timed_out,
    )
