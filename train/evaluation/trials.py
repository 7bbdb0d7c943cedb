"""k attempts at each of many tasks: on every node, some groups at a time, and failures tried again.

    tasks ──Window──> Roller: a group in flight ──> what failed retryably, again ──> on_group(group)
                                                                    └─ left unscored: counted, 1% at most

Who waits: `attempts` for the next group to end; a task for its place in the window. Only groups in flight are
in memory: what is kept of an ended one is `on_group`'s matter. A sibling that is tried again has the key, and
so the noise, of the one that failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rocstar.engine.nodes.window import Window
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.types import Failed, Group, Task, Trajectory
from rocstar.train.groups.source import Roller
from rocstar.train.recipe.errors import ConfigError, TrainingStopped

TRIES = 3
FIRST_REST_S = 1.0
"""Before a failed sibling is tried again; four times as long before the next try."""
MOST_UNSCORED = 0.01


@dataclass(slots=True, kw_only=True)
class Unscored:
    """The attempts that stayed without a score: how many of `total` by kind, and what the last one said."""

    total: int
    most: float = MOST_UNSCORED
    kinds: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    """Tokens of the shortest and the longest prompt that was too long."""
    last: str = ""

    @property
    def count(self) -> int:
        return self.kinds.total()

    def add(self, group: Group) -> None:
        """Count a group that is not tried again."""
        for trajectory in group.trajectories:
            if isinstance(trajectory.outcome, Failed):
                self._count(trajectory, trajectory.outcome)

    def check(self) -> None:
        """Whether they are too many; they can only become more.

        Raises:
            ConfigError: more than `most` of all, for prompts have no room.
            TrainingStopped: ... for other reasons.
        """
        if self.count > self.most * self.total:
            raise self._error()

    def _count(self, trajectory: Trajectory, failed: Failed) -> None:
        self.kinds[failed.kind] += 1
        self.last = failed.detail
        if failed.kind == "too_long":
            lengths = [*self.lengths, trajectory.prompt_length]
            self.lengths = [min(lengths), max(lengths)]

    def _error(self) -> Exception:
        share = f"{self.count} of {self.total} attempts stayed without a score, more than {self.most:.0%}"
        if set(self.kinds) == {"too_long"} and self.lengths:
            return ConfigError(
                f"{share}: prompts of {self.lengths[0]} to {self.lengths[1]} tokens are too long "
                f"({self.last}); take a model with more positions, a shorter model.template or shorter "
                "tasks, or give the engine more room"
            )
        counts = ", ".join(f"{number} {kind}" for kind, number in self.kinds.most_common())
        return TrainingStopped(
            f"{share}: a mean of the others would not be a mean of all; failures, after {TRIES} tries where "
            f"that can help: {counts}; the last: {self.last}"
        )


async def attempts(
    roller: Roller,
    tasks: Sequence[Task],
    k: int,
    seed: int,
    step: int,
    *,
    in_flight: Window,
    on_group: Callable[[Group], Awaitable[None]],
    what: str = "evaluation",
    most_unscored: float = MOST_UNSCORED,
) -> Unscored:
    """Roll out k attempts at each task; same (seed, step) = same noise. Returns what stayed unscored.

    Args:
        roller: rolls out siblings, on whichever node.
        tasks: each once.
        k: attempts at a task.
        seed: with the step, names the noise.
        step: as it stands in the keys.
        in_flight: how many groups at a time.
        on_group: takes a group when it has ended, in no order, perhaps several at a time; nothing is kept.
        what: as who watches knows it.
        most_unscored: share of all attempts.

    Raises:
        ConfigError, TrainingStopped: more than that stays unscored (`Unscored.check`).
    """
    unscored = Unscored(total=k * len(tasks), most=most_unscored)
    counted = Attempts(total=unscored.total)
    supply, running = iter(tasks), set[asyncio.Future[Group]]()
    with working(what, unit="tasks", total=len(tasks), attempts=counted) as work:

        async def group_of(task: Task) -> Group:
            group = await _tried(roller, task, k, seed, step, counted)
            await on_group(group)
            return group

        make = work.counting(group_of)
        try:
            while True:
                is_wave = roller.whole_groups and running  # who shares a forward is settled at its start
                room = 0 if is_wave else max(0, in_flight.most - len(running))
                running |= {asyncio.ensure_future(make(task)) for task in islice(supply, room)}
                if not running:
                    return unscored
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for group in [one.result() for one in done]:
                    in_flight.ended(group)
                    unscored.add(group)
                unscored.check()
        finally:  # a bug in one, or a cancellation, ends the others
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _tried(roller: Roller, task: Task, k: int, seed: int, step: int, counted: Attempts) -> Group:
    """The group, with what failed retryably tried again."""
    group = await roller.roll_out(task, size=k, seed=seed, step=step)
    for number in range(TRIES - 1):
        lost = [t.key.sibling for t in group.trajectories if _may_be_tried(t)]
        if not lost:
            break
        await asyncio.sleep(FIRST_REST_S * 4**number)
        if roller.whole_groups:
            counted.total += k
            group = await roller.roll_out(task, size=k, seed=seed, step=step)
            continue
        counted.total += len(lost)
        async with asyncio.TaskGroup() as siblings:
            made = [
                siblings.create_task(roller.roll_out(task, size=1, seed=seed, step=step, first=sibling))
                for sibling in lost
            ]
        again = {t.key.sibling: t for one in made for t in one.result().trajectories}
        group = Group(task=task, trajectories=tuple(again.get(t.key.sibling, t) for t in group.trajectories))
    return group


def _may_be_tried(trajectory: Trajectory) -> bool:
    return isinstance(trajectory.outcome, Failed) and trajectory.outcome.retryable
