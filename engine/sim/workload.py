"""The work of a rollout step: the turns of each trajectory. Only the simulator sees it.

One trajectory: prompt, then per turn `new_tokens` written by the policy, `tool_s` seconds of tools, and
`tool_tokens` of results behind them (0 and 0 for the last turn).

Generated workloads, fitted to the paper's figures of a step (arXiv 2508.20722, sections 3 and 4.3).

`paper`: 512 tasks x 32 siblings, about 2.75 tool calls and 0.3 s per call, 6K tokens on average (the report's
4K-8K), limit 12K and about an eighth of the trajectories cut there (at a tenth it raised an earlier limit).
`short-tail`: lengths of 4K that hardly vary, limit 8K. `tool-heavy`: eight calls of two seconds each, some
of half a minute, with short turns between them.

Each length is exp(normal): a task's own difficulty and a sibling's chance, cut at the limit. Calls are
binomial with a mean that grows with the length, as longer attempts call more.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class TurnWork:
    new_tokens: int
    tool_tokens: int
    tool_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryWork:
    """`max_tokens` bounds everything behind the prompt, as a rollout's limit does."""

    traj: str
    group: str
    stage: str
    prompt_tokens: int
    max_tokens: int
    turns: tuple[TurnWork, ...]
    fork: tuple[str, int] | None = None
    """The trajectory that a branch begins with, and how many turns of that come before its own."""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or not self.turns or any(t.new_tokens < 1 for t in self.turns):
            raise ValueError(f"{self.traj}: needs a prompt, a turn, and a token in every turn")
        if any(t.tool_tokens < 0 or not t.tool_s >= 0 for t in self.turns):
            raise ValueError(f"{self.traj}: tool results and waits cannot be negative")
        if self.turns[-1].tool_tokens or self.turns[-1].tool_s:
            raise ValueError(f"{self.traj}: the last turn has no tool behind it")
        if self.response_tokens > self.max_tokens:
            raise ValueError(f"{self.traj}: {self.response_tokens} tokens exceed its {self.max_tokens}")

    @property
    def generated_tokens(self) -> int:
        return sum(t.new_tokens for t in self.turns)

    @property
    def response_tokens(self) -> int:
        """Tokens of the policy and of the tools."""
        return sum(t.new_tokens + t.tool_tokens for t in self.turns)

    def contexts(self) -> Iterator[tuple[int, TurnWork]]:
        """(tokens before the turn, the turn), in order."""
        context = self.prompt_tokens
        for turn in self.turns:
            yield context, turn
            context += turn.new_tokens + turn.tool_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Trajectories in order of submission, all submitted at time 0: one synchronous step.

    Invariant: siblings of a group share one prompt, so they give its length alike; names are unique.
    """

    name: str
    trajectories: tuple[TrajectoryWork, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"workload {self.name!r} is empty")
        prompts: dict[str, int] = {}
        for t in self.trajectories:
            if prompts.setdefault(t.group, t.prompt_tokens) != t.prompt_tokens:
                raise ValueError(f"{t.traj}: group {t.group} has prompts of different lengths")
        (name, count), *_ = Counter(t.traj for t in self.trajectories).most_common(1)
        if count > 1:
            raise ValueError(f"workload {self.name!r} has {name!r} {count} times")
        turns = {t.traj: len(t.turns) for t in self.trajectories}
        for t in self.trajectories:
            if t.fork is not None and not 0 < t.fork[1] < turns.get(t.fork[0], 0):
                raise ValueError(f"{t.traj}: no trajectory {t.fork[0]!r} goes on behind turn {t.fork[1]}")

    @property
    def generated_tokens(self) -> int:
        return sum(t.generated_tokens for t in self.trajectories)

    @property
    def limit_tokens(self) -> int:
        """The most KV that one trajectory may ask for: prompt and limit."""
        return max(t.prompt_tokens + t.max_tokens for t in self.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Medians in tokens and seconds; spreads are standard deviations of the logarithm."""

    limit_tokens: int
    median_tokens: float
    task_spread: float
    sibling_spread: float
    mean_calls: float
    max_turns: int
    tool_median_s: float
    tool_spread: float
    tool_limit_s: float
    result_median_tokens: float
    prompt_median_tokens: float = 600.0


_ENTRIES = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text(encoding="utf-8"))
SHAPES: Mapping[str, Shape] = {name: Shape(**entry) for name, entry in _ENTRIES.items()}


def generate(name: str, *, tasks: int = 512, siblings: int = 32, seed: int = 0) -> Workload:
    """The named workload. The same arguments give the same one; siblings follow each other in groups."""
    recipe = SHAPES[name]
    rng = np.random.default_rng([seed, sum(name.encode())])
    trajectories: list[TrajectoryWork] = []
    for task in range(tasks):
        difficulty = rng.normal(0.0, recipe.task_spread)
        prompt = int(np.clip(rng.lognormal(math.log(recipe.prompt_median_tokens), 0.25), 200, 2048))
        for sibling in range(siblings):
            length = recipe.median_tokens * math.exp(difficulty + rng.normal(0.0, recipe.sibling_spread))
            trajectories.append(
                TrajectoryWork(
                    traj=f"s{seed}/t{task}/{sibling}",
                    group=f"s{seed}/t{task}",
                    stage=name,
                    prompt_tokens=prompt,
                    max_tokens=recipe.limit_tokens,
                    turns=_turns(recipe, length, rng),
                )
            )
    return Workload(name=name, trajectories=tuple(trajectories))


def with_branches(workload: Workload, *, rate: float, width: int = 2, seed: int = 0) -> Workload:
    """Return the workload with `width - 1` branches of a share `rate` of its turns that a tool answered.

    A branch has the parent's tokens so far as its prompt, which its engine computes once for all branches of a fork,
    and rests of other lengths: it goes on as a random sibling does behind the same number of turns, where there is
    one. It begins when the tools have answered.
    """
    rng = np.random.default_rng([seed, 38])
    siblings: dict[str, list[TrajectoryWork]] = {}
    for t in workload.trajectories:
        siblings.setdefault(t.group, []).append(t)
    made = list(workload.trajectories)
    for t in workload.trajectories:
        contexts = list(t.contexts())
        for turn in range(1, len(t.turns)):
            if rng.random() >= rate:
                continue
            prompt, room = contexts[turn][0], t.max_tokens - (contexts[turn][0] - t.prompt_tokens)
            rests = [other.turns[turn:] for other in siblings[t.group] if len(other.turns) > turn]
            fitting = [rest for rest in rests if sum(one.new_tokens + one.tool_tokens for one in rest) <= room]
            for branch in range(1, width):
                made.append(
                    TrajectoryWork(
                        traj=f"{t.traj}~{turn}.{branch}",
                        group=f"{t.traj}~{turn}",
                        stage=t.stage,
                        prompt_tokens=prompt,
                        max_tokens=room,
                        turns=fitting[int(rng.integers(len(fitting)))],
                        fork=(t.traj, turn),
                    )
                )
    return Workload(name=workload.name, trajectories=tuple(made))


def earlier_step(name: str, tasks: int, siblings: int, seed: int) -> Workload:
    """Return half as many other tasks of the same kind: the history of the scheduler before the step of
    `seed`."""
    return generate(name, tasks=max(1, tasks // 2), siblings=siblings, seed=seed + 1000)


def _turns(recipe: Shape, length: float, rng: np.random.Generator) -> tuple[TurnWork, ...]:
    """Turns of uneven lengths that sum to `length` with the tools' results, cut at the limit."""
    pull = (length / recipe.median_tokens) ** 0.5
    calls = int(rng.binomial(recipe.max_turns - 1, min(0.95, recipe.mean_calls * pull / (recipe.max_turns - 1))))
    results = np.clip(rng.lognormal(math.log(recipe.result_median_tokens), 0.8, calls), 20, 1024).astype(int)
    waits = np.minimum(rng.lognormal(math.log(recipe.tool_median_s), recipe.tool_spread, calls), recipe.tool_limit_s)
    written = max(length - float(results.sum()), 16.0 * (calls + 1))
    shares = rng.dirichlet(np.full(calls + 1, 2.0)) * written
    turns: list[TurnWork] = []
    room = recipe.limit_tokens
    for k in range(calls + 1):
        new = min(max(1, round(float(shares[k]))), room)
        room -= new
        # A result behind which no token would fit is not appended: the trajectory ends there.
        if k == calls or room <= int(results[k]):
            turns.append(TurnWork(new, 0, 0.0))
            break
        turns.append(TurnWork(new, int(results[k]), float(waits[k])))
        room -= int(results[k])
    return tuple(turns)
