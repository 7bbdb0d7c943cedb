"""The attempts of an evaluation, made where its folder lacks them.

    evaluate_sets: per set  AttemptsFile ──tasks not done yet──> attempts ──group by group──> AttemptsFile
                   then     records ──> results.json

Who waits: a group for its records to lie on the disk; the sets one after the other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.nodes.window import Window
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task, Trajectory
from rocstar.train.evaluation.evaluation_folder import (
    AttemptsFile,
    Contaminants,
    Decode,
    EvaluationFolder,
    write_numbers,
)
from rocstar.train.evaluation.results import Evaluation
from rocstar.train.evaluation.sets import EVAL_SEED, EvaluationSet, agent_for_set
from rocstar.train.groups.journal import may_be_tried
from rocstar.train.groups.source import Roller
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.serving.window import window_for

MOST_UNSCORED = 0.01


async def evaluate_sets(
    agent: Agent,
    sets: Sequence[EvaluationSet],
    folder: EvaluationFolder,
    *,
    recipe: Recipe,
    step: int,
    decode: Decode,
    nodes: Nodes | None = None,
    contaminants: Contaminants | None = None,
) -> dict[str, Evaluation]:
    """Make the attempts that are not there yet, and the numbers.

    Args:
        agent: asks as training does.
        sets: in the order in which they are evaluated.
        folder: takes the files.
        recipe: what runs, with the seed.
        step: as it stands in the keys.
        decode: text of token ids.
        nodes: those that roll out beside this one.
        contaminants: what of the sets the policy may have learned.

    Raises:
        ConfigError: no prompt of a set has room.
        TrainingStopped: none of the attempts at a set, or less than 99%, was scored for other reasons; the
            attempts and their numbers are kept.
        RecordError: attempts that are there are damaged.
    """
    for chosen in sets:
        if chosen.is_hidden:
            folder.withhold(chosen.name)
        file = AttemptsFile(folder.attempts(chosen.name), chosen.tasks, k=chosen.samples)
        context = EvaluationContext(
            recipe=recipe,
            agent=agent_for_set(agent, chosen),
            nodes=nodes if chosen.is_plain else None,
        )
        await _run_missing(context, chosen, file, step, decode)
        file.settle()
    found = write_numbers(sets, folder, seed=recipe.run.seed, step=step, contaminants=contaminants)
    for chosen in sets:
        failures = Counter(found[chosen.name].failures)
        check_unscored(failures, total=len(chosen.tasks) * chosen.samples)
    return found


def check_unscored(failures: Counter[str], *, total: int) -> None:
    """TrainingStopped if more than MOST_UNSCORED of `total` attempts failed; `failures` are by kind."""
    count = failures.total()
    if count > MOST_UNSCORED * total:
        kinds = ", ".join(f"{number} {kind}" for kind, number in failures.most_common())
        raise TrainingStopped(
            f"{count} of {total} attempts stayed without a score, more than {MOST_UNSCORED:.0%}: a mean of "
            "the others would not be a mean of all; failures, after "
            f"{TRIES} tries where that can help: {kinds}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """How the attempts at a set, or of a difficulty filter, are rolled out."""

    recipe: Recipe
    agent: Agent
    """Asks as the set does."""
    nodes: Nodes | None
    ended: Callable[[Trajectory], Awaitable[None]] | None = None
    """As of `Roller`."""

    @property
    def roller(self) -> Roller:
        whole = self.recipe.engine.deterministic
        return Roller(agent=self.agent, nodes=self.nodes, whole_groups=whole, ended=self.ended)

    def window(self, k: int) -> Window:
        """Groups of `k` in flight."""
        tokens = self.agent.limits.max_response_tokens
        return window_for(self.recipe, self.agent.inference.load, self.nodes, size=k, limit_tokens=tokens)


async def _run_missing(
    context: EvaluationContext, chosen: EvaluationSet, file: AttemptsFile, step: int, decode: Decode
) -> None:
    """The attempts that the file lacks."""
    k, what, engine = chosen.samples, f"evaluation on {chosen.name}", context.recipe.engine
    seed = context.recipe.run.seed + EVAL_SEED

    async def ended(group: Group) -> None:
        await file.append([group], decode)

    if not engine.deterministic:
        left = [task for task in chosen.tasks if task.id not in file.done]
        window = context.window(k)
        await run_attempts(context.roller, left, k, seed, step, in_flight=window, on_group=ended, what=what)
        return
    # Which rows share a forward shows in its rounding: whoever goes on must share as the first one did.
    shares = split_shares(chosen.tasks, max(1, engine.max_running * engine.num_replicas // k))
    whole = [share for share in shares if all(task.id in file.done for task in share)]
    if not file.is_settled:
        file.keep({task.id for share in whole for task in share})
    for number, share in enumerate(shares, 1):
        if any(task.id not in file.done for task in share):
            part = what if len(shares) == 1 else f"{what}, share {number} of {len(shares)}"
            await file.append(await run_share(context, share, k, seed, step, part), decode)


def split_shares(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in order, `size` at a time."""
    return [tasks[at : at + size] for at in range(0, len(tasks), size)]


async def run_share(
    context: EvaluationContext, share: Sequence[Task], k: int, seed: int, step: int, what: str
) -> list[Group]:
    """The groups of tasks that are all in flight together, in the order of the tasks."""
    made: dict[str, Group] = {}

    async def keep(group: Group) -> None:
        made[group.task.id] = group

    window = Window(size=k, trajectories=lambda: k * len(share))
    await run_attempts(context.roller, share, k, seed, step, in_flight=window, on_group=keep, what=what)
    return [made[task.id] for task in share]


TRIES = 3
FIRST_REST_S = 1.0
"""Before a failed sibling is tried again; four times as long before the next try."""

FindAttempts = Callable[[Task], Awaitable[Sequence[Trajectory]]]
"""The attempts at a task that an earlier process made; they may be fewer than k."""


async def find_nothing(_: Task) -> Sequence[Trajectory]:
    return ()


async def run_attempts(
    roller: Roller,
    tasks: Sequence[Task],
    k: int,
    seed: int,
    step: int,
    *,
    in_flight: Window,
    on_group: Callable[[Group], Awaitable[None]],
    found: FindAttempts = find_nothing,
    what: str = "evaluation",
) -> None:
    """Roll out k attempts at each task; same (seed, step) = same noise.

    Args:
        roller: rolls out siblings, on whichever node.
        tasks: each once.
        k: attempts at a task.
        seed: with the step, names the noise.
        step: as it stands in the keys.
        in_flight: how many groups at a time.
        on_group: takes a group when it has ended, in no order, perhaps several at a time; nothing is kept.
        found: what is not rolled out again; with `roller.whole_groups` a group is found whole or not at all.
        what: as who watches knows it.
    """
    counted = Attempts(total=k * len(tasks))
    supply, running = iter(tasks), set[asyncio.Future[Group]]()
    with working(what, unit="tasks", total=len(tasks), attempts=counted) as work:

        async def group_of(task: Task) -> Group:
            known = {t.key.sibling: t for t in await found(task)}
            counted.total -= len(known)
            group = await _run_with_retries(roller, task, known, k, seed, step, counted)
            await on_group(group)
            return group

        make = work.counting(group_of)
        try:
            while True:
                room = max(0, in_flight.most - len(running))
                running |= {asyncio.ensure_future(make(task)) for task in islice(supply, room)}
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for group in await asyncio.gather(*done):
                    in_flight.ended(group)
        finally:  # a bug in one, or a cancellation, ends the others
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _run_with_retries(
    roller: Roller, task: Task, made: dict[int, Trajectory], k: int, seed: int, step: int, counted: Attempts
) -> Group:
    """The group of `made`, by sibling, and of what is missing; what fails retryably is tried again."""
    for number in range(TRIES):
        lost = [sibling for sibling in range(k) if sibling not in made or may_be_tried(made[sibling])]
        if not lost:
            break
        if roller.whole_groups:
            lost = list(range(k))
        if number:
            await asyncio.sleep(FIRST_REST_S * 4 ** (number - 1))
            counted.total += len(lost)
        made |= await _run_siblings(roller, task, lost, k, seed, step)
    return Group(task=task, trajectories=tuple(made[sibling] for sibling in range(k)))


async def _run_siblings(
    roller: Roller, task: Task, siblings: Sequence[int], k: int, seed: int, step: int
) -> dict[int, Trajectory]:
    """Attempts by sibling: all k as one group, some of them one by one."""
    if len(siblings) == k:
        groups = [await roller.roll_out(task, size=k, seed=seed, step=step)]
    else:
        async with asyncio.TaskGroup() as running:
            made = [
                running.create_task(roller.roll_out(task, size=1, seed=seed, step=step, first=sibling))
                for sibling in siblings
            ]
        groups = [one.result() for one in made]
    return {t.key.sibling: t for group in groups for t in group.trajectories}
