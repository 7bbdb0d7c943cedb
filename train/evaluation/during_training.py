"""What a run asks of its present policy between two steps: held-out tasks, and which tasks it has mastered.

A run that learns from records (`run.live` is None) neither evaluates nor filters.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence

from rocstar.engine.types import Group, Scored, Task
from rocstar.train.evaluation.evaluate import Evaluation
from rocstar.train.evaluation.evidence import (
    data_facts,
    file_digests,
    judge_facts,
    sandbox_facts,
    settings_facts,
    template_digest,
    verifier_digest,
)
from rocstar.train.evaluation.folder import Folder, OfRecipe, replace_folder, run_folder
from rocstar.train.evaluation.making import evaluate_sets
from rocstar.train.evaluation.report.eval_report import write_eval_report
from rocstar.train.evaluation.sets import EvaluationSet, evaluation_sets
from rocstar.train.evaluation.trials import attempts
from rocstar.train.groups.source import Roller, agent_for
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.stage_config import StageConfig
from rocstar.train.record.manifest import recorded
from rocstar.train.run import Live, Run
from rocstar.train.serving.window import window_for

FILTER_SEED = 2_000_003
"""Added to the run's seed: the filter draws other noise than training and evaluation."""


async def run_evaluation(run: Run, *, between: bool = False) -> dict[str, Evaluation] | None:
    """Evaluate the present policy on the sets of the recipe, those that are due alone if it is `between`
    steps.

    None without a set, or without an agent. The folder of an earlier life of the run stays until this is
    whole.
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
            found = await _evaluate(run, run.live, sets, Folder(making))
        except (ConfigError, TrainingStopped):  # nothing could be scored: it is the attempts that tell why
            replace_folder(making, target)
            raise
        replace_folder(making, target)
        await asyncio.to_thread(write_eval_report, target, reveal=False)
    _forget_counts(run.live)
    metrics = [result.metrics(name) for name, result in found.items()]
    run.log({name: value for each in metrics for name, value in each.items()}, stage="eval", phase="eval")
    return found


async def _evaluate(
    run: Run, live: Live, sets: Sequence[EvaluationSet], folder: Folder
) -> dict[str, Evaluation]:
    recipe = run.recipe
    with recorded(folder.directory, recipe, world_size=run.team.world.size) as entry:
        entry["evaluation"] = {
            "model": {
                "weights": None,
                "step": run.step,
                "version": run.publisher.version,
                "template": template_digest(live.agent.chat.template),
            },
            "data": {
                chosen.name: data_facts(chosen, config.path)
                for chosen in sets
                for config in recipe.eval
                if config.label == chosen.name
            },
            "verifier": {chosen.name: verifier_digest(recipe, chosen) for chosen in sets},
            "judge": judge_facts(sets),
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
            contaminants=OfRecipe(learned=live.learned, left_out=True),
        )
        entry["files"] = file_digests(folder.directory, folder.files(list(found)))
    return found


async def filter_by_difficulty(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> list[Task]:
    """Drop tasks that the policy solves in all of k attempts (paper: 8 of 8, before stage 3)."""
    k = stage.filter_rollouts
    if not k or run.live is None:
        return list(tasks)
    seed = run.recipe.run.seed + FILTER_SEED
    agent = agent_for(run.live.agent, stage)
    mastered: set[str] = set()

    async def look(group: Group) -> None:
        if all(isinstance(t.outcome, Scored) and t.outcome.is_correct for t in group.trajectories):
            mastered.add(group.task.id)

    engine, nodes = run.recipe.engine, run.live.nodes
    roller = Roller(agent=agent, nodes=nodes, whole_groups=engine.deterministic)
    tokens = agent.limits.max_response_tokens
    window = window_for(run.recipe, agent.inference.load, nodes, size=k, limit_tokens=tokens)
    with run.budget.phase("eval"):
        unscored = await attempts(
            roller,
            tasks,
            k,
            seed,
            run.step,
            in_flight=window,
            on_group=look,
            what=f"{stage.name}: difficulty filter",
        )
    _forget_counts(run.live)
    kept = [task for task in tasks if task.id not in mastered]
    run.dropped_tasks = sorted({*run.dropped_tasks, *mastered})
    run.log(
        {
            "difficulty/tasks_seen": float(len(tasks)),
            "difficulty/tasks_dropped": float(len(mastered)),
            "difficulty/failed": float(unscored.count),
        },
        stage=stage.name,
        phase="eval",
    )
    run.listeners.note(
        f"{stage.name}: {len(kept)} of {len(tasks)} tasks are not mastered yet ({k} attempts each)"
    )
    return kept


def _forget_counts(live: Live) -> None:
    """Leave what nodes did for an evaluation or a filter out of the next step's row."""
    if live.nodes is not None:
        live.nodes.counts()
