"""Forks: other continuations of a trajectory from a turn whose calls are answered.

    turn t, results --chooses?--> the parent goes on, in its own noise stream, exactly as without forks
                          |----> t.1, t.2, ...: its ids, a copy of its tools' sessions, own streams, own clock

The choice depends on the history up to the fork alone, never on the outcome. The parent waits only until its
sessions are copied. Branches are tasks of their group; a failed one is data, as a failed sibling is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from rocstar.engine.inference.base import TakesBranches
from rocstar.engine.rollout.rollout import Agent, Draft, RolloutLimits, run_trajectory
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Tools
from rocstar.engine.types import Task, Trajectory, TrajectoryKey, Turn


def after_an_error(task: Task, turns: Sequence[Turn]) -> bool:
    """Choose the turns of which a call failed."""
    return any(result.is_error for result in turns[-1].results)


def after_every_turn(task: Task, turns: Sequence[Turn]) -> bool:
    """Choose every turn."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRule:
    """Where trajectories fork, and how often.

    Attributes:
        chooses: of a task and its turns so far, the last one answered: whether it forks there.
        width: continuations at a fork, the parent's own included.
        depth: forks on one path.
        tokens: most tokens behind forks, tool results included, of all branches of a root together; 0 = no limit.
            Each branch may have its even share, whether the others are there or not.
    """

    chooses: Callable[[Task, Sequence[Turn]], bool]
    width: int = 2
    depth: int = 1
    tokens: int = 0

    @property
    def most_branches(self) -> int:
        """The bound on the branches of one root."""
        return int(self.width**self.depth) - 1

    def limits(self, common: RolloutLimits, trunk: Draft) -> RolloutLimits:
        """Return the limits of a branch of `trunk`."""
        if not self.tokens:
            return common
        end = len(trunk.ids) - trunk.segments[0].end + self.tokens // self.most_branches
        return replace(common, max_response_tokens=min(common.max_response_tokens, end))


class Branches:
    """The branches of a group, as tasks of its `tasks`."""

    def __init__(self, rule: ForkRule, agent: Agent, tasks: asyncio.TaskGroup) -> None:
        self._rule, self._agent, self._tasks = rule, agent, tasks
        self.running: list[asyncio.Task[Trajectory]] = []

    async def answered(self, draft: Draft, tools: Tools) -> None:
        """Fork here if the rule chooses it and the tools can; return when the sessions are copied."""
        rule = self._rule
        if draft.num_forks >= rule.depth or not rule.chooses(draft.task, tuple(draft.turns)):
            return
        keys = [draft.key.behind(len(draft.turns), number) for number in range(1, rule.width)]
        openings = [tools.branch(seed=stream_of(key, purpose="tools")) for key in keys]
        opened = [opening for opening in openings if opening is not None]
        if len(opened) < len(keys):
            return
        draft.num_forks += 1
        if isinstance(self._agent.inference, TakesBranches):
            self._agent.inference.branch(draft.name, [str(key) for key in keys])
        copied = [self._start(draft, key, opening) for key, opening in zip(keys, opened, strict=True)]
        async with draft.clock.waiting(draft.name, "the copies of its sessions", kind="tool"):
            for event in copied:
                await event.wait()

    def _start(self, trunk: Draft, key: TrajectoryKey, opening: AbstractAsyncContextManager[Tools]) -> asyncio.Event:
        """Start a branch; return an event that is set when its sessions are copied, or it has ended."""
        copied = asyncio.Event()
        agent = replace(self._agent, limits=self._rule.limits(self._agent.limits, trunk))
        work = run_trajectory(
            agent,
            trunk.task,
            key,
            begun=lambda draft: draft.follow(trunk),
            answered=self.answered,
            opening=_announced(opening, copied),
        )
        running = self._tasks.create_task(work, name=f"branch {key}")
        running.add_done_callback(lambda _: copied.set())
        self.running.append(running)
        return copied


@contextlib.asynccontextmanager
async def _announced(opening: AbstractAsyncContextManager[Tools], copied: asyncio.Event) -> AsyncIterator[Tools]:
    async with opening as tools:
        copied.set()
        yield tools
