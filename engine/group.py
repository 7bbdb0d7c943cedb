"""Sibling trajectories of one task, rolled out concurrently.

Who waits: the group waits for all its siblings; with `EarlyFinish` for enough of them, and cancels the rest.
A sibling that failed is data, not an exception; any other exception is a bug and cancels the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocstar.engine.inference.base import Generation, Inference, KvLoad
from rocstar.engine.progress import attempting
from rocstar.engine.rollout import Agent, run_trajectory
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
)

SURPLUS = "surplus"
"""Failed.kind of a sibling that was cancelled because enough others had finished."""


@dataclass(slots=True, kw_only=True)
class SurplusCounts:
    """What early finishing threw away, over all groups of which it cancelled some.

    The first to finish are the short ones, so that what is kept is shorter than what the policy writes; how
    much is only known from below, as nobody knows how long the cancelled ones would have become.
    """

    groups: int = 0
    cancelled: int = 0
    cancelled_tokens: int = 0
    """Response tokens that they had when they were cancelled."""
    kept: int = 0
    kept_tokens: int = 0

    @property
    def length_bias_tokens(self) -> float:
        """Mean response length of all, the cancelled as far as they came, minus that of the kept: the kept
        are at least so much shorter. 0 if nothing was kept."""
        if not self.kept:
            return 0.0
        mean = (self.kept_tokens + self.cancelled_tokens) / (self.kept + self.cancelled)
        return mean - self.kept_tokens / self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyFinish:
    """Cancel a group's other siblings as soon as `enough` of them are scored. Biased to short answers, hence
    off unless asked for; `counts` says what it cost."""

    enough: int
    counts: SurplusCounts = field(default_factory=SurplusCounts)

    def __post_init__(self) -> None:
        if self.enough < 1:
            raise ValueError(f"enough must be at least 1, got {self.enough}")


async def run_group(
    agent: Agent,
    task: Task,
    *,
    size: int,
    seed: int,
    step: int,
    first: int = 0,
    early: EarlyFinish | None = None,
) -> Group:
    """Roll out `size` siblings of `task`, from number `first` on. A sibling that `early` cancelled is
    Failed(SURPLUS)."""
    keys = [
        TrajectoryKey(seed=seed, step=step, task_id=task.id, sibling=k) for k in range(first, first + size)
    ]
    agent.inference.join([str(key) for key in keys])
    meter = _Meter(agent.inference)
    if early is not None:
        agent = replace(agent, inference=meter)
    async with asyncio.TaskGroup() as siblings:
        running = [siblings.create_task(_followed(agent, task, key)) for key in keys]
        if early is not None:
            await _cancel_surplus(running, early.enough)
    if early is None or not any(sibling.cancelled() for sibling in running):
        return Group(task=task, trajectories=tuple(sibling.result() for sibling in running))
    prompt_ids = agent.chat.prompt_ids(task.question, task.context)
    trajectories = tuple(
        _surplus(task, key, prompt_ids, early.enough) if sibling.cancelled() else sibling.result()
        for key, sibling in zip(keys, running, strict=True)
    )
    _count(early.counts, trajectories, meter.context_tokens)
    return Group(task=task, trajectories=trajectories)


async def _followed(agent: Agent, task: Task, key: TrajectoryKey) -> Trajectory:
    with attempting(str(key)):
        return await run_trajectory(agent, task, key)


async def _cancel_surplus(running: list[asyncio.Task[Trajectory]], enough: int) -> None:
    """Wait until `enough` are scored, or all have ended; cancel the others."""
    pending = set(running)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        # One that raised is a bug: its task group cancels this wait.
        enough -= sum(not t.cancelled() and not t.exception() and _is_scored(t.result()) for t in done)
        if enough <= 0:
            for sibling in pending:
                sibling.cancel()
            return


def _is_scored(trajectory: Trajectory) -> bool:
    return isinstance(trajectory.outcome, Scored)


def _surplus(task: Task, key: TrajectoryKey, prompt_ids: list[int], enough: int) -> Trajectory:
    return Trajectory(
        key=key,
        task=task,
        ids=tuple(prompt_ids),
        logprobs=(None,) * len(prompt_ids),
        segments=(Segment(start=0, end=len(prompt_ids), origin=Origin.prompt),),
        version_spans=(),
        turns=(),
        finish_reason=FinishReason.aborted,
        outcome=Failed(kind=SURPLUS, retryable=False, detail=f"cancelled: {enough} siblings were scored"),
    )


def _count(counts: SurplusCounts, trajectories: Sequence[Trajectory], context_tokens: dict[str, int]) -> None:
    counts.groups += 1
    for trajectory in trajectories:
        if isinstance(trajectory.outcome, Scored):
            counts.kept += 1
            counts.kept_tokens += trajectory.response_length
        elif trajectory.outcome.kind == SURPLUS:
            counts.cancelled += 1
            reached = context_tokens.get(str(trajectory.key), trajectory.prompt_length)
            counts.cancelled_tokens += reached - trajectory.prompt_length


class _Meter:
    """Passes everything on, and remembers how far each trajectory was when last asked for or answered."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.context_tokens: dict[str, int] = {}

    async def generate(self, ids: list[int], *, request_id: str, **rest: Any) -> Generation:
        self.context_tokens[request_id] = len(ids)
        generation = await self._inference.generate(ids, request_id=request_id, **rest)
        self.context_tokens[request_id] += len(generation.ids)
        return generation

    def load(self) -> KvLoad:
        return self._inference.load()

    async def publish(self, version: int, source: Any = None) -> None:
        await self._inference.publish(version, source)

    async def abort(self, request_id: str) -> None:
        await self._inference.abort(request_id)

    def join(self, request_ids: Sequence[str]) -> None:
        self._inference.join(request_ids)

    def release(self, request_id: str) -> None:
        self._inference.release(request_id)


async def run_groups(
    agent: Agent,
    tasks: Sequence[Task],
    *,
    size: int,
    seed: int,
    step: int,
    max_groups: int,
    early: EarlyFinish | None = None,
) -> AsyncIterator[Group]:
    """Groups as they finish, at most `max_groups` of them in flight.

    Plain tasks, not a TaskGroup: a TaskGroup around a `yield` would cancel the consumer, wherever it is,
    instead of raising the bug of a sibling out of this iterator.
    """
    if max_groups < 1:
        raise ValueError(f"max_groups must be at least 1, got {max_groups}")
    room = asyncio.Semaphore(max_groups)

    async def one(task: Task) -> Group:
        async with room:
            return await run_group(agent, task, size=size, seed=seed, step=step, early=early)

    running = [asyncio.create_task(one(task)) for task in tasks]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
