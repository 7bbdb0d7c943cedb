"""Evaluation: k attempts per task by the agent that trains, summarised with intervals.

avg@k: share of correct attempts, as a mean over tasks. pass@k: share of tasks with a correct attempt, of the
tasks that have k. The interval is of tasks, not of attempts, for attempts at one task are alike; statistics/
makes it. Attempts that Failed count neither way and are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rocstar.engine.types import Failed, Trajectory
from rocstar.train.evaluation.statistics.estimators import pass_at_k
from rocstar.train.evaluation.statistics.intervals import interval_of_means
from rocstar.train.recipe.errors import ConfigError, TrainingStopped

EVAL_SEED = 1_000_003
"""Added to the run's seed: an evaluation draws other noise than training. Noise depends on the step too, so
`rocstar eval`, which counts as step 0, gives a checkpoint another draw than the run did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What k attempts per task gave."""

    k: int
    avg: float
    pass_at_k: float | None
    """Over the tasks with k scored attempts; None where there is none."""
    n_short: int
    """Tasks with fewer scored attempts than k, also those with none."""
    ci_low: float
    ci_high: float
    num_tasks: int
    failed: int
    failures: dict[str, int]
    """Of these, how many by each kind of failure."""
    tool_error_share: float
    is_truncated: float
    by_source: dict[str, float]
    rewards: dict[str, list[float]]
    correct: dict[str, list[bool]]
    """Of each task's scored attempts, in order, as `rewards`."""

    @property
    def reward_mean(self) -> float | None:
        """Mean over tasks of their mean reward; None where every reward is 1 if correct and else 0."""
        if self.rewards == {task: [float(c) for c in correct] for task, correct in self.correct.items()}:
            return None
        return fmean(fmean(rewards) for rewards in self.rewards.values())

    def metrics(self, name: str) -> dict[str, float]:
        """As metric names of train/record/metrics.py."""
        told = {f"eval/{name}/reward_mean": self.reward_mean, f"eval/{name}/pass@{self.k}": self.pass_at_k}
        return {key: value for key, value in told.items() if value is not None} | {
            f"eval/{name}/avg@{self.k}": self.avg,
            f"eval/{name}/ci_low": self.ci_low,
            f"eval/{name}/ci_high": self.ci_high,
            f"eval/{name}/num_tasks": self.num_tasks,
            f"eval/{name}/n_short": self.n_short,
            f"eval/{name}/failed": self.failed,
            f"eval/{name}/tool_error_share": self.tool_error_share,
            f"eval/{name}/is_truncated": self.is_truncated,
        }


def nothing_scored(trajectories: Sequence[Trajectory]) -> Exception:
    """What to raise where none of the attempts has a verdict: the likely reason, with the fix."""
    failures = [t.outcome for t in trajectories if isinstance(t.outcome, Failed)]
    kinds = Counter(failure.kind for failure in failures)
    if set(kinds) == {"too_long"}:
        lengths = [t.prompt_length for t in trajectories]
        return ConfigError(
            f"no attempt could be scored: prompts of {min(lengths)} to {max(lengths)} tokens are too long "
            f"({failures[0].detail}); take a model with more positions, a shorter model.template or shorter "
            "tasks, or give the engine more room"
        )
    last = f"; the last: {failures[-1].detail}" if failures else ""
    return TrainingStopped(f"no attempt could be scored; failures: {_counts(kinds)}{last}")


def _counts(kinds: Counter[str]) -> str:
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    return counts or "no attempt was made"


Judged = tuple[float | None, bool | None]
"""Reward and verdict of an attempt; both None where it Failed."""


def evaluation_of(
    judged: Mapping[str, tuple[str, Sequence[Judged]]],
    *,
    k: int,
    failures: Counter[str],
    calls: int,
    errors: int,
    truncated: Sequence[bool],
) -> Evaluation:
    """Summary of attempts. `judged`: source and attempts by task; the rest is of the scored attempts.

    Raises:
        TrainingStopped: no attempt was scored.
    """
    scored = {
        name: (source, [(r, c) for r, c in attempts if r is not None and c is not None])
        for name, (source, attempts) in judged.items()
    }
    scored = {name: found for name, found in scored.items() if found[1]}
    if not scored:
        raise TrainingStopped(f"no attempt could be scored; failures: {_counts(failures)}")
    correct = {name: [c for _, c in attempts] for name, (_, attempts) in scored.items()}
    by_source: dict[str, list[float]] = {}
    for name, (source, _) in scored.items():
        by_source.setdefault(source, []).append(fmean(correct[name]))
    means = [fmean(c) for c in correct.values()]
    low, high = interval_of_means(means, num_attempts=sum(map(len, correct.values())))
    whole = [pass_at_k(len(c), sum(c), k) for c in correct.values() if len(c) >= k]
    return Evaluation(
        k=k,
        avg=fmean(means),
        pass_at_k=fmean(whole) if whole else None,
        n_short=len(judged) - len(whole),
        ci_low=low,
        ci_high=high,
        num_tasks=len(scored),
        failed=failures.total(),
        failures=dict(sorted(failures.items())),
        tool_error_share=errors / calls if calls else 0.0,
        is_truncated=fmean(map(float, truncated)),
        by_source={source: fmean(values) for source, values in sorted(by_source.items())},
        rewards={name: [r for r, _ in attempts] for name, (_, attempts) in scored.items()},
        correct=correct,
    )
