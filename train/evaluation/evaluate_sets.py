"""Roll out k attempts per task and write the ones that an evaluation folder lacks.

    evaluate_sets: per set   AttemptsFile ──missing tasks──> run_attempts ──group by group──> AttemptsFile
                   then      records ──> results.json
    run_attempts:  tasks ──Window──> found attempts or Roller ──retry what failed──> on_group(group)

A group waits until its records are on disk; sets run one after the other. Only groups in flight are in
memory. A retried sibling has the key, and so the noise, of the failed one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rocstar.engine.nodes.grants import PART, Window
from rocstar.engine.nodes.nodes import Nodes
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
from rocstar.train.serving.backend import backend_of

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
    """Run the missing attempts and compute the numbers.

    Args:
        agent: the agent of training.
        sets: in order of evaluation.
        folder: receives the files.
        recipe: defines the run, with its seed.
        step: the step of the trajectory keys.
        decode: text of token ids.
        nodes: the nodes that roll out besides this one.
        contaminants: the questions that the policy may have learned.

    Raises:
        ConfigError: every prompt of a set is too long.
        TrainingStopped: no attempt at a set, or fewer than 99%, has a score for other reasons. The attempts
            and their numbers stay in the folder.
        RecordError: the attempts in the folder are damaged.
    """
    for chosen in sets:
        if chosen.is_hidden:
            folder.withhold(chosen.name)
        file = AttemptsFile(folder.attempts(chosen.name), chosen.tasks, k=chosen.samples)
        context = EvaluationContext(
            recipe=recipe, agent=agent_for_set(agent, chosen), nodes=nodes if chosen.is_plain else None
        )
        await _run_missing(context, chosen, file, step, decode)
        file.settle()
    found = write_numbers(sets, folder, seed=recipe.run.seed, step=step, contaminants=contaminants)
    for chosen in sets:
        failures = Counter(found[chosen.name].failures)
        check_unscored(failures, total=len(chosen.tasks) * chosen.samples)
    return found


def check_unscored(failures: Counter[str], *, total: int) -> None:
    """Raise TrainingStopped if more than MOST_UNSCORED of `total` attempts failed. `failures` counts by
    kind."""
    count = failures.total()
    if count > MOST_UNSCORED * total:
        kinds = ", ".join(f"{number} {kind}" for kind, number in failures.most_common())
        raise TrainingStopped(
            f"{count} of {total} attempts stayed without a score, more than {MOST_UNSCORED:.0%}: the mean of "
            f"the others would be biased; failures, after up to {TRIES} tries: {kinds}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """How the attempts at a set, or of a difficulty filter, are rolled out."""

    recipe: Recipe
    agent: Agent
    """With the settings of the set."""
    nodes: Nodes | None
    ended: Callable[[Trajectory], Awaitable[None]] | None = None
    """See `Roller.ended`."""

    @property
    def roller(self) -> Roller:
        whole = self.recipe.engine.deterministic
        return Roller(agent=self.agent, nodes=self.nodes, whole_groups=whole, ended=self.ended)

    def window(self, k: int) -> Window:
        """Return the window of groups of `k` in flight: the share of one node times the number of nodes.

        With `engine.deterministic` a share is the number that the engine runs at a time, in sequential waves:
        the rows that share a forward then do not depend on the order of completion.
        """
        recipe, nodes, load = self.recipe, self.nodes, self.agent.inference.load
        num_nodes: Callable[[], int] = (lambda: 1) if nodes is None else (lambda: nodes.num_up)
        if recipe.engine.deterministic:
            wave = max(k, recipe.engine.max_running * recipe.engine.num_replicas)
            return Window(size=k, trajectories=lambda: num_nodes() * wave)
        at_once = backend_of(recipe).groups_at_once(recipe)
        if at_once is not None:
            each = at_once * min(PART, recipe.rl.rollouts_per_task)
            return Window(size=k, trajectories=lambda: num_nodes() * each)
        kv_tokens: Callable[[], int] = (lambda: load().total) if nodes is None else (lambda: nodes.total_tokens)
        return Window(size=k, kv_tokens=kv_tokens, limit_tokens=self.agent.limits.max_response_tokens)


async def _run_missing(
    context: EvaluationContext, chosen: EvaluationSet, file: AttemptsFile, step: int, decode: Decode
) -> None:
    """Run the attempts that the file lacks."""
    k, what, engine = chosen.samples, f"evaluation on {chosen.name}", context.recipe.engine
    seed = context.recipe.run.seed + EVAL_SEED

    async def ended(group: Group) -> None:
        await file.append([group], decode)

    if not engine.deterministic:
        left = [task for task in chosen.tasks if task.id not in file.done]
        window = context.window(k)
        await run_attempts(context.roller, left, k, seed, step, in_flight=window, on_group=ended, what=what)
        return
    # Rounding depends on the rows that share a forward, so a resumed evaluation uses the same shares.
    shares = split_shares(chosen.tasks, max(1, engine.max_running * engine.num_replicas // k))
    whole = [share for share in shares if all(task.id in file.done for task in share)]
    if not file.is_settled:
        file.keep({task.id for share in whole for task in share})
    for number, share in enumerate(shares, 1):
        if any(task.id not in file.done for task in share):
            part = what if len(shares) == 1 else f"{what}, share {number} of {len(shares)}"
            await file.append(await run_share(context, share, k, seed, step, part), decode)


def split_shares(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """Split the tasks, in order, into lists of `size`."""
    return [tasks[at : at + size] for at in range(0, len(tasks), size)]


async def run_share(
    context: EvaluationContext, share: Sequence[Task], k: int, seed: int, step: int, what: str
) -> list[Group]:
    """Roll out tasks that are all in flight together. Return their groups in the order of the tasks."""
    made: dict[str, Group] = {}

    async def keep(group: Group) -> None:
        made[group.task.id] = group

    window = Window(size=k, trajectories=lambda: k * len(share))
    await run_attempts(context.roller, share, k, seed, step, in_flight=window, on_group=keep, what=what)
    return [made[task.id] for task in share]


TRIES = 3
FIRST_REST_S = 1.0
"""Seconds before the first retry of a failed sibling; four times as long before the next."""

FindAttempts = Callable[[Task], Awaitable[Sequence[Trajectory]]]
"""Return the stored attempts at a task, k or fewer."""


async def run_attempts(
    roller: Roller,
    tasks: Sequence[Task],
    k: int,
    seed: int,
    step: int,
    *,
    in_flight: Window,
    on_group: Callable[[Group], Awaitable[None]],
    found: FindAttempts | None = None,
    what: str = "evaluation",
) -> None:
    """Roll out k attempts at each task; the same (seed, step) gives the same noise.

    Args:
        roller: rolls out siblings, on any node.
        tasks: each once.
        k: attempts per task.
        seed: with the step, the key of the noise.
        step: the step of the trajectory keys.
        in_flight: the number of concurrent groups.
        on_group: receives each group when it ends, in any order and possibly concurrently.
        found: returns attempts that exist. With `roller.whole_groups` it returns all k or none.
        what: the name of the work in progress displays.
    """
    counted = Attempts(total=k * len(tasks))
    supply, running = iter(tasks), set[asyncio.Future[Group]]()
    with working(what, unit="tasks", total=len(tasks), attempts=counted) as work:

        async def group_of(task: Task) -> Group:
            known = {t.key.sibling: t for t in await found(task)} if found is not None else {}
            counted.total -= len(known)
            group = await _run_with_retries(roller, task, known, k, seed, step, counted)
            await on_group(group)
            work.done += 1
            return group

        try:
            while True:
                room = max(0, in_flight.most - len(running))
                running |= {asyncio.ensure_future(group_of(task)) for task in islice(supply, room)}
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for group in await asyncio.gather(*done):
                    in_flight.ended(group)
        finally:  # an exception in one group, or a cancellation, cancels the others
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _run_with_retries(
    roller: Roller, task: Task, made: dict[int, Trajectory], k: int, seed: int, step: int, counted: Attempts
) -> Group:
    """Return the group of a task: the siblings in `made`, and the missing ones; retry retryable failures."""
    for number in range(TRIES):
        lost = [sibling for sibling in range(k) if sibling not in made or may_be_tried(made[sibling])]
        if not lost:
            break
        if roller.whole_groups:
            lost = list(range(k))
        if number:
            await asyncio.sleep(FIRST_REST_S * 4 ** (number - 1))
            counted.total += len(lost)
        if len(lost) == k:
            groups = [await roller.roll_out(task, size=k, seed=seed, step=step)]
        else:
            async with asyncio.TaskGroup() as running:
                siblings = [
                    running.create_task(roller.roll_out(task, size=1, seed=seed, step=step, first=sibling))
                    for sibling in lost
                ]
            groups = [one.result() for one in siblings]
        made |= {t.key.sibling: t for group in groups for t in group.trajectories}
    return Group(task=task, trajectories=tuple(made[sibling] for sibling in range(k)))
