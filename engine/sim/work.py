"""The work of a rollout step: the turns of each trajectory. Only the simulator sees it.

One trajectory: prompt, then per turn `new_tokens` written by the policy, `tool_s` seconds of tools, and
`tool_tokens` of results behind them (0 and 0 for the last turn).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


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

    @property
    def generated_tokens(self) -> int:
        return sum(t.generated_tokens for t in self.trajectories)

    @property
    def longest_tokens(self) -> int:
        """The most KV that one trajectory needs: prompt and response."""
        return max(t.prompt_tokens + t.response_tokens for t in self.trajectories)

    @property
    def limit_tokens(self) -> int:
        """The most KV that one trajectory may ask for: prompt and limit."""
        return max(t.prompt_tokens + t.max_tokens for t in self.trajectories)
