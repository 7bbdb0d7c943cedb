"""Environments: tasks that bring their own observation, tools and reward.

    task ──Environment.open──> episode: observation (ends the prompt) ──> turns call its tools ──> reward ──> close

An episode is one attempt. The turn loop, the limits of calls and the record are those of every other attempt.
Siblings have one task and one seed. A failure of an environment makes the trajectory Failed, never reward 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Dispatcher, Tools
from rocstar.engine.tools.tool import Tool, ToolFailure
from rocstar.engine.types import Given, Task, ToolCall, ToolResult, TrajectoryKey
from rocstar.sandbox.types import SandboxError

if TYPE_CHECKING:
    from rocstar.engine.rollout.rollout import Harness, RolloutLimits

T = TypeVar("T")


class EnvironmentFailure(ToolFailure):
    """An environment failed by no fault of the policy."""

    kind: ClassVar[str] = "environment_failed"


@dataclass(slots=True, kw_only=True)
class EnvironmentEpisode:
    """One attempt at a task in an environment.

    Attributes:
        observation: text behind the task's question.
        tools: of this episode, with the names that `Environment.functions` shows.
        is_over: set by the tools: the attempt ends with the results of this turn.
    """

    observation: str = ""
    tools: Sequence[Tool] = ()
    is_over: bool = False

    async def reward(self) -> float | None:
        """Return the reward after the last turn; None if the environment gives none. Called once."""
        return None

    async def close(self) -> None:
        """Release the resources of the episode. Called once, also after a failure."""


class Environment(ABC):
    """Where tasks are attempted. One object serves all trajectories of a process.

    Attributes:
        functions: its tools, as chat templates show them.
        gives_reward: False if `EnvironmentEpisode.reward` is always None.
        solve: runs an agent of its own (`engine.gateway.harness.Solve`) in place of the turn loop, if not None.
    """

    functions: Sequence[Mapping[str, Any]] = ()
    gives_reward: bool = True
    solve: Callable[..., Awaitable[Given]] | None = None

    @abstractmethod
    async def open(self, task: Task, seed: int) -> EnvironmentEpisode:
        """Begin an attempt. Equal `task` and `seed`, equal episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlace:
    """An environment in an agent.

    Attributes:
        around: text before and behind the question; the observation follows.
        box: the tools beside those of the environment, and the limits of calls.
        timeout_s: of each call to the environment.
        slots: limits the episodes that are open at a time; None for no limit.
        max_turns, max_response_tokens: at most the agent's; 0 for the agent's.
        harness: runs `environment.solve` in place of the turn loop.
    """

    name: str
    environment: Environment
    box: Dispatcher
    around: tuple[str, str] = ("", "")
    timeout_s: float = 60.0
    slots: asyncio.Semaphore | None = None
    max_turns: int = 0
    max_response_tokens: int = 0
    harness: Harness | None = None

    def limits(self, common: RolloutLimits) -> RolloutLimits:
        """Return the limits of its trajectories."""
        turns, tokens = common.max_turns, common.max_response_tokens
        return replace(
            common,
            max_turns=min(self.max_turns or turns, turns),
            max_response_tokens=min(self.max_response_tokens or tokens, tokens),
        )

    @property
    def functions(self) -> list[Mapping[str, Any]]:
        """Return all tools that the prompt shows."""
        return [*self.environment.functions, *self.box.schemas]

    @contextlib.asynccontextmanager
    async def open(self, task: Task, key: TrajectoryKey) -> AsyncIterator[OpenEpisode]:
        """Open the episode of a trajectory.

        Raises:
            EnvironmentFailure: the environment failed, now or at the end.
        """
        async with self.slots or contextlib.nullcontext():
            seed = stream_of(replace(key, sibling=0), purpose="environment")
            episode = await self.ask("its reset", self.environment.open(task, seed))
            try:
                box = replace(self.box, tools=[*episode.tools, *self.box.tools])
                async with box.open(seed=stream_of(key, purpose="tools")) as tools:
                    yield OpenEpisode(self, episode, tools, task)
            except BaseException:  # raise the error that ended the trajectory, not a later one of its environment
                with contextlib.suppress(ToolFailure, SandboxError):
                    await self.ask("its end", episode.close())
                raise
            await self.ask("its end", episode.close())

    async def ask(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call to the environment, or raise its failure."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await work
        except (ToolFailure, SandboxError):
            raise
        except TimeoutError:
            detail = f"{what} took longer than timeout_s = {self.timeout_s:g}"
            raise EnvironmentFailure(f"{self.name}: {detail}") from None
        except (Exception, SystemExit) as error:  # user code: whatever it raises is its failure
            frames = traceback.extract_tb(error.__traceback__)
            where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
            detail = f"{what}: {type(error).__name__}: {error}{where}"
            raise EnvironmentFailure(f"{self.name}: {detail}", retryable=False) from error


class OpenEpisode(Tools):
    """The tools of one trajectory in an environment, and what else it asks of it."""

    def __init__(self, place: EnvironmentPlace, episode: EnvironmentEpisode, tools: Tools, task: Task) -> None:
        self._place, self._episode, self._tools = place, episode, tools
        self.question = task.question.join(place.around) + episode.observation
        self.functions = place.functions

    @property
    def is_over(self) -> bool:
        return self._episode.is_over

    async def execute(self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None) -> tuple[ToolResult, ...]:
        return await self._tools.execute(calls, turn=turn, deadline=deadline)

    async def reward(self) -> float | None:
        """Return the environment's reward. EnvironmentFailure if it is not a finite number."""
        value = await self._place.ask("its reward", self._episode.reward())
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            detail = f"its reward is {value!r:.200}; it must be a finite number"
            raise EnvironmentFailure(f"{self._place.name}: {detail}", retryable=False)
        return number


def place_of(task: Task, places: Mapping[str, EnvironmentPlace]) -> EnvironmentPlace | None:
    """Return the environment of a task; None for a task without one.

    Raises:
        EnvironmentFailure: `places` has no environment of its name.
    """
    name = task.environment
    if name is None:
        return None
    if name not in places:
        raise EnvironmentFailure(f"there is no environment {name!r}", retryable=False)
    return places[name]
