"""Evaluation: k attempts per task by the agent that trains, summarised with intervals.

avg@k: mean reward over tasks and attempts. pass@k: share of tasks with a correct attempt. The interval is
a cluster bootstrap: tasks are resampled, their attempts stay together, because attempts at one task are
alike (percentile method, 2000 draws, fixed seed). Attempts that Failed count neither way and are reported.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rocstar.engine.group import run_groups
from rocstar.engine.progress import Attempts, working
from rocstar.engine.rollout import Agent
from rocstar.engine.types import Failed, Group, Scored, Task, Trajectory
from rocstar.train.config import ConfigError, TrainingStopped

DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What k attempts per task gave."""

    k: int
    avg: float
    pass_at_k: float
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

    def metrics(self, name: str) -> dict[str, float]:
        """As metric names of train/metrics.py."""
        return {
            f"eval/{name}/avg@{self.k}": self.avg,
            f"eval/{name}/pass@{self.k}": self.pass_at_k,
            f"eval/{name}/ci_low": self.ci_low,
            f"eval/{name}/ci_high": self.ci_high,
            f"eval/{name}/num_tasks": self.num_tasks,
            f"eval/{name}/failed": self.failed,
            f"eval/{name}/tool_error_share": self.tool_error_share,
            f"eval/{name}/is_truncated": self.is_truncated,
        }


def bootstrap_interval(
    rewards: Sequence[Sequence[float]], *, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean of per-task means, resampling tasks. One task: the mean twice."""
    means = [fmean(r) for r in rewards]
    if len(means) < 2:
        return means[0], means[0]
    rng = random.Random(seed)
    draws = sorted(fmean(rng.choices(means, k=len(means))) for _ in range(DRAWS))
    tail = (1 - level) / 2
    return draws[int(tail * DRAWS)], draws[min(DRAWS - 1, int((1 - tail) * DRAWS))]


def _nothing_scored(trajectories: Sequence[Trajectory]) -> Exception:
    failures = [t.outcome for t in trajectories if isinstance(t.outcome, Failed)]
    kinds = Counter(failure.kind for failure in failures)
    if set(kinds) == {"too_long"}:
        lengths = [t.prompt_length for t in trajectories]
        return ConfigError(
            f"no attempt could be scored: prompts of {min(lengths)} to {max(lengths)} tokens are too long "
            f"({failures[0].detail}); take a model with more positions, a shorter model.template or shorter "
            "tasks, or give the engine more room"
        )
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    last = f"; the last: {failures[-1].detail}" if failures else ""
    return TrainingStopped(f"no attempt could be scored; failures: {counts or 'no attempt was made'}{last}")


def summarise(groups: Sequence[Group], *, k: int) -> Evaluation:
    """Summary of finished groups.

    Raises:
        ConfigError: no prompt has room.
        TrainingStopped: no attempt was scored for other reasons.
    """
    rewards: dict[str, list[float]] = {}
    by_source: dict[str, list[float]] = {}
    trajectories: list[Trajectory] = []
    for group in groups:
        trajectories += group.scored
        scores = [t.outcome.reward for t in group.scored if isinstance(t.outcome, Scored)]
        if scores:
            rewards[group.task.id] = scores
            by_source.setdefault(group.task.source, []).append(fmean(scores))
    failures = Counter(
        t.outcome.kind for g in groups for t in g.trajectories if isinstance(t.outcome, Failed)
    )
    if not rewards:
        raise _nothing_scored([t for g in groups for t in g.trajectories])
    results = [r for t in trajectories for r in t.results]
    low, high = bootstrap_interval(list(rewards.values()))
    return Evaluation(
        k=k,
        avg=fmean(fmean(r) for r in rewards.values()),
        pass_at_k=fmean(float(max(r)) for r in rewards.values()),
        ci_low=low,
        ci_high=high,
        num_tasks=len(rewards),
        failed=failures.total(),
        failures=dict(sorted(failures.items())),
        tool_error_share=fmean([float(r.is_error) for r in results]) if results else 0.0,
        is_truncated=fmean(float(t.is_truncated) for t in trajectories),
        by_source={source: fmean(values) for source, values in sorted(by_source.items())},
        rewards=rewards,
    )


async def attempt(
    agent: Agent, tasks: Sequence[Task], *, k: int, seed: int, step: int, what: str = "evaluation"
) -> list[Group]:
    """Roll out k attempts at each task; same (seed, step) = same noise.

    In the order of the tasks, whichever ended first: the bootstrap draws by place, so that another order
    would give another interval. what: as who watches knows it.
    """
    places = {task.id: place for place, task in enumerate(tasks)}
    groups: list[Group] = []
    rolled_out = run_groups(agent, tasks, size=k, seed=seed, step=step, max_groups=len(tasks))
    with working(what, unit="tasks", total=len(tasks), attempts=Attempts(total=k * len(tasks))) as work:
        async for group in rolled_out:
            groups.append(group)
            work.done += 1
    return sorted(groups, key=lambda group: places[group.task.id])


async def evaluate(
    agent: Agent, tasks: Sequence[Task], *, k: int, seed: int, step: int, what: str = "evaluation"
) -> tuple[Evaluation, list[Group]]:
    """k attempts at each task, and their summary."""
    groups = await attempt(agent, tasks, k=k, seed=seed, step=step, what=what)
    return summarise(groups, k=k), groups
