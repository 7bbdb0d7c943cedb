"""The time of a wait for rollouts by cause: decoding (with or without KV space for all), tools, judging
alone.

    engine.busy_s, .starved_s ─┐
    tools in flight ───────────┼─> WaitingTimes ──> time/generate, time/kv_wait, time/tool_wait, time/reward
    judges in flight ──────────┘

The tools and the judge of an agent are wrapped to count calls in flight.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.rollout.rollout import Agent, Judge
from rocstar.engine.tools.box import ToolBox, Tools
from rocstar.engine.types import Attempt, Outcome, ToolCall, ToolResult
from rocstar.train.record.time_budget import TimeBudget


class WaitingTimes:
    """Divides the time of a wait for rollouts.

    Invariant: of every wait, generate + kv_wait + tool_wait + reward is the whole, and `reward` is idle time
    in which answers were being judged and no tool was running.
    """

    def __init__(self, engine: EngineTimes, *, clock: Callable[[], float] = time.perf_counter) -> None:
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
        return replace(agent, tools=tools, judge=judge)


@dataclass(frozen=True, slots=True)
class _WatchedJudge:
    times: WaitingTimes
    judge: Judge

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        with self.times.working("judge"):
            return await self.judge.score(attempt, deadline=deadline)


@dataclass(frozen=True, slots=True)
class _WatchedBox:
    times: WaitingTimes
    box: ToolBox

    def open(self, *, seed: int) -> AbstractAsyncContextManager[Tools]:
        return _watched(self.times, self.box.open(seed=seed))


@contextlib.asynccontextmanager
async def _watched(times: WaitingTimes, opening: AbstractAsyncContextManager[Tools]) -> AsyncIterator[Tools]:
    async with opening as tools:
        yield _WatchedTools(times, tools)


@dataclass(frozen=True, slots=True)
class _WatchedTools(Tools):
    times: WaitingTimes
    tools: Tools

    def branch(self, *, seed: int) -> AbstractAsyncContextManager[Tools] | None:
        opening = self.tools.branch(seed=seed)
        return None if opening is None else _watched(self.times, opening)

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        with self.times.working("tools"):
            return await self.tools.execute(calls, turn=turn, deadline=deadline)
