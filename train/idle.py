"""Where the time of a wait for rollouts went: decoding (with or without room for all), tools, judging alone.

    engine.busy_s, .starved_s ─┐
    tools in flight ───────────┼─> Idle ──> time/generate, time/kv_wait, time/tool_wait, time/reward
    judges in flight ──────────┘

The tools and the judge of an agent are wrapped, so that it is known at every moment what is in flight.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rocstar.engine.rollout import Agent, Judge
from rocstar.engine.tools import ToolBox, Tools
from rocstar.engine.types import Outcome, Task, ToolCall, ToolResult
from rocstar.train.time_budget import TimeBudget


class Decoder(Protocol):
    """What is known of an engine."""

    @property
    def busy_s(self) -> float:
        """Seconds of decoding so far."""
        ...

    @property
    def starved_s(self) -> float:
        """... while a request found no room in its KV cache."""
        ...


class Idle:
    """Divides the time of a wait for rollouts.

    Invariant: of every wait, generate + kv_wait + tool_wait + reward is the whole, and `reward` is idle time
    in which answers were being judged and no tool was running.
    """

    def __init__(self, engine: Decoder, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._clock = engine, clock
        self._in_flight = {"tools": 0, "judge": 0}
        self._judging_s = 0.0
        """Idle time so far in which only the judge was at work. An engine counts a burst of decoding when it
        ends, so a part of it may be negative; the sum is right."""
        self._then, self._busy = clock(), engine.busy_s

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Something in flight: `tools` or `judge`."""
        self._settle()
        self._in_flight[what] += 1
        try:
            yield
        finally:
            self._settle()
            self._in_flight[what] -= 1

    def _settle(self) -> None:
        now, busy = self._clock(), self._engine.busy_s
        if self._in_flight["judge"] and not self._in_flight["tools"]:
            self._judging_s += (now - self._then) - (busy - self._busy)
        self._then, self._busy = now, busy

    @contextlib.contextmanager
    def divided(self, budget: TimeBudget) -> Iterator[None]:
        """Count the time of the block as `generate`, less `kv_wait`, `tool_wait` and `reward`."""
        with budget.phase("generate"):
            self._settle()
            started, busy, judging_s = self._then, self._busy, self._judging_s
            starved = self._engine.starved_s
            yield
            self._settle()
            budget.move(self._engine.starved_s - starved, source="generate", target="kv_wait")
            idle_s = max(0.0, (self._then - started) - (self._busy - busy))
            reward_s = min(idle_s, max(0.0, self._judging_s - judging_s))
            budget.move(reward_s, source="generate", target="reward")
            budget.move(idle_s - reward_s, source="generate", target="tool_wait")

    def watching(self, agent: Agent) -> Agent:
        """The agent with its tools and its judge wrapped."""
        tools, judge = _WatchedBox(self, agent.tools), _WatchedJudge(self, agent.judge)
        return Agent(
            inference=agent.inference,
            chat=agent.chat,
            tools=tools,
            judge=judge,
            limits=agent.limits,
            sampling=agent.sampling,
        )


@dataclass(frozen=True, slots=True)
class _WatchedJudge:
    idle: Idle
    judge: Judge

    async def score(
        self, policy_text: str, task: Task, *, truncated: bool, deadline: float | None
    ) -> Outcome:
        with self.idle.working("judge"):
            return await self.judge.score(policy_text, task, truncated=truncated, deadline=deadline)


@dataclass(frozen=True, slots=True)
class _WatchedBox:
    idle: Idle
    box: ToolBox

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return self.box.schemas

    @contextlib.asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        async with self.box.open(seed=seed) as tools:
            yield _WatchedTools(self.idle, tools)


@dataclass(frozen=True, slots=True)
class _WatchedTools:
    idle: Idle
    tools: Tools

    async def execute(
        self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        with self.idle.working("tools"):
            return await self.tools.execute(calls, turn=turn, deadline=deadline)
