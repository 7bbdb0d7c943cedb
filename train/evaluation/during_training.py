"""Evaluations between two steps of a run, the difficulty filter, and the measure after the cold start.

A run that learns from records (`run.live` is None) has none of these.
"""

import asyncio
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Sequence

from rocstar.engine.types import Failed, Group, Outcome, Scored, Task, Trajectory, TrajectoryKey
from rocstar.train.evaluation.evaluate_sets import (
    EvaluationContext,
    evaluate_sets,
    run_attempts,
    run_share,
    split_shares,
)
from rocstar.train.evaluation.evaluation_folder import EvaluationFolder, recipe_overlap, replace_folder, run_folder
from rocstar.train.evaluation.provenance import file_digests, identity, sandbox_facts, settings_facts, template_digest
from rocstar.train.evaluation.results import Evaluation
from rocstar.train.evaluation.sets import EVAL_SEED, EvaluationSet, evaluation_sets
from rocstar.train.groups.journal import Journal, may_be_tried, origin_of
from rocstar.train.groups.source import agent_for
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.manifest import recorded
from rocstar.train.record.run_directory import write_json
from rocstar.train.run import Live, Run
from rocstar.train.tasks.verify import extract_answer

FILTER_SEED = 2_000_003
"""Added to the run's seed: the filter has other noise than training and evaluation."""
SMOKE_TASKS, FEW_BOXED = 32, 0.5
"""The measure after the cold start: number of tasks, and the share of boxed answers below which it warns."""
FILTERS = "filters"
"""The folder of a run with the journal of a running difficulty filter, and the results of finished ones."""


async def run_evaluation(run: Run, *, between: bool = False) -> dict[str, Evaluation] | None:
    """Evaluate the present policy on the recipe's sets; if `between` steps, on those that are due.

    None without a set or an agent. An earlier folder for this step is kept until the new one is complete.
    """
    if run.live is None or not run.recipe.eval:
        return None
    sets = evaluation_sets(run.recipe, run.live.heldout)
    sets = [chosen for chosen in sets if not between or (chosen.every and run.step % chosen.every == 0)]
    target = run_folder(run.directory, run.step)
    making = target.with_name(f"{target.name}.partial")
    with run.budget.phase("eval"):
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            found = await _evaluate(run, run.live, sets, EvaluationFolder(making))
        except (ConfigError, TrainingStopped):  # no attempt was scored: the records show why
            replace_folder(making, target)
            raise
        replace_folder(making, target)
        await asyncio.to_thread(run.write_eval_page, target)
    _forget_counts(run.live)
    metrics = [result.metrics(name) for name, result in found.items()]
    run.log({name: value for each in metrics for name, value in each.items()}, stage="eval", phase="eval")
    return found


async def _evaluate(
    run: Run, live: Live, sets: Sequence[EvaluationSet], folder: EvaluationFolder
) -> dict[str, Evaluation]:
    recipe = run.recipe
    with recorded(folder.directory, recipe, world_size=run.team.world.size) as entry:
        model = {
            "weights": None,
            "step": run.step,
            "version": run.publisher.version,
            "template": template_digest(live.agent.chat.template),
        }
        entry["evaluation"] = identity(recipe, sets, model) | {
            "settings": settings_facts(recipe, sets, step=run.step),
            "sandbox": await sandbox_facts(live.agent.tools),
        }
        found = await evaluate_sets(
            live.agent,
            sets,
            folder,
            recipe=recipe,
            step=run.step,
            decode=run.decode,
            nodes=live.nodes,
            contaminants=recipe_overlap(live.learned, left_out=True),
        )
        entry["files"] = file_digests(folder.directory, folder.files(list(found)))
    return found


async def measure_cold_start(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> None:
    """Log the share of greedy answers to the stage's first tasks whose box the judge can read.

    Nothing without a cold start, and for a reward that does not read a box.
    """
    recipe = run.recipe
    boxed_tasks = [task for task in tasks if recipe.reads_box(task.environment)][:SMOKE_TASKS]
    if run.live is None or not recipe.sft.steps or not boxed_tasks:
        return
    agent = agent_for(run.live.agent, stage)
    greedy = dataclasses.replace(agent, sampling=dataclasses.replace(agent.sampling, temperature=0.0))
    context = EvaluationContext(recipe=recipe, agent=greedy, nodes=run.live.nodes)
    groups: list[Group] = []
    seed, at_once = recipe.run.seed + EVAL_SEED, recipe.engine.max_running * recipe.engine.num_replicas
    with run.budget.phase("eval"):
        for share in split_shares(boxed_tasks, at_once):
            groups += await run_share(context, share, 1, seed, run.step, "answers after the cold start")
    _forget_counts(run.live)
    scored = [t for group in groups for t in group.scored]
    if not scored:
        return
    boxed = sum(not t.is_truncated and extract_answer(t).answer is not None for t in scored)
    run.log({"sft/boxed": boxed / len(scored)}, stage="sft", phase="eval")
    note = f"cold start: {boxed} of {len(scored)} greedy answers are in a box (sft/boxed)"
    if boxed < FEW_BOXED * len(scored):
        note += (
            ": RL starts with a reward near 0; raise sft.steps, or give conversations that end with "
            "<answer>\\boxed{...}</answer> within the first stage's max_response_tokens"
        )
    run.listeners.note(note)


async def filter_by_difficulty(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> list[Task]:
    """Drop tasks that the policy solves in all of k attempts (paper: 8 of 8, before stage 3).

    A task with an unscored attempt is kept. Each attempt is journaled when it ends, and the result when all
    have: a resumed run rolls out the missing ones. With `engine.deterministic`, attempts that share a forward
    are journaled together and repeated together.
    """
    k = stage.filter_rollouts
    if not k or run.live is None:
        return list(tasks)
    with run.budget.phase("eval"):
        mastered, failures = await _mastered(run, run.live, stage, tasks)
    _forget_counts(run.live)
    kept = [task for task in tasks if task.id not in mastered]
    run.dropped_tasks = sorted({*run.dropped_tasks, *mastered})
    run.log(
        {
            "difficulty/tasks_seen": float(len(tasks)),
            "difficulty/tasks_dropped": float(len(mastered)),
            "difficulty/failed": float(failures.total()),
        },
        stage=stage.name,
        phase="eval",
    )
    note = f"{stage.name}: {len(kept)} of {len(tasks)} tasks are not mastered yet ({k} attempts each)"
    if failures:
        kinds = ", ".join(f"{number} {kind}" for kind, number in failures.most_common())
        note += f"; {failures.total()} of {k * len(tasks)} attempts have no score ({kinds}), their tasks stay"
    run.listeners.note(note)
    return kept


async def _mastered(run: Run, live: Live, stage: StageConfig, tasks: Sequence[Task]) -> tuple[set[str], Counter[str]]:
    """Return ids of the tasks solved in all attempts, and the counts of failed attempts by kind.

    The result is final once an attempt has a score; otherwise a resumed run retries.
    """
    about = {**origin_of(run.recipe), "version": run.publisher.version}
    folder = run.directory / FILTERS
    result = folder / f"step_{run.step:06d}.json"
    if run.journal.goes_on and result.exists():
        former = json.loads(result.read_text(encoding="utf-8"))
        if former["about"] == about:
            return set(former["mastered"]), Counter(former["failures"])
    journal = Journal(folder, about, decode=run.decode, goes_on=run.journal.goes_on)
    async with journal:
        outcomes = await _filter_outcomes(run, live, stage, tasks, journal)
    mastered = {name for name, of in outcomes.items() if all(isinstance(o, Scored) and o.is_correct for o in of)}
    failures = Counter(o.kind for of in outcomes.values() for o in of if isinstance(o, Failed))
    if failures.total() < stage.filter_rollouts * len(tasks):
        write_json(result, {"about": about, "mastered": sorted(mastered), "failures": failures})
        shutil.rmtree(journal.folder)
    return mastered, failures


async def _filter_outcomes(
    run: Run, live: Live, stage: StageConfig, tasks: Sequence[Task], journal: Journal
) -> dict[str, list[Outcome]]:
    """Return the outcomes of k attempts at each task, by its id, from the journal or new ones."""
    k, step, seed = stage.filter_rollouts, run.step, run.recipe.run.seed + FILTER_SEED
    deterministic, what = run.recipe.engine.deterministic, f"{stage.name}: difficulty filter"
    outcomes: dict[str, list[Outcome]] = {}
    written: set[TrajectoryKey] = set()

    async def found(task: Task) -> list[Trajectory]:
        known = await journal.attempts(step, task, size=k)
        written.update(t.key for t in known)
        return known

    async def attempt_ended(trajectory: Trajectory) -> None:
        if not may_be_tried(trajectory):  # the journal returns no retryable failure
            await journal.ended(step, Group(task=trajectory.task, trajectories=(trajectory,)))
            written.add(trajectory.key)

    async def ended(group: Group) -> None:
        for trajectory in group.trajectories:
            if trajectory.key not in written:  # it ended on another node
                await attempt_ended(trajectory)
        outcomes[group.task.id] = [t.outcome for t in group.trajectories]

    context = EvaluationContext(
        recipe=run.recipe,
        agent=agent_for(live.agent, stage),
        nodes=live.nodes,
        ended=None if deterministic else attempt_ended,
    )
    window = context.window(k)
    if not deterministic:
        await run_attempts(
            context.roller, tasks, k, seed, step, in_flight=window, on_group=ended, found=found, what=what
        )
        return outcomes
    for share in split_shares(tasks, window.most):
        known = [await found(task) for task in share]
        if all(len(siblings) == k for siblings in known):
            groups = [Group(task=t, trajectories=tuple(of)) for t, of in zip(share, known, strict=True)]
        else:  # rounding depends on the rows that share a forward
            groups = await run_share(context, share, k, seed, step, what)
        for group in groups:
            await ended(group)
    return outcomes


def _forget_counts(live: Live) -> None:
    """Exclude the nodes' counts for an evaluation or a filter from the metrics of the next step."""
    if live.nodes is not None:
        live.nodes.counts()
