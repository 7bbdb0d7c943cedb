"""What a run does between its steps: evaluate, drop mastered tasks, begin a checkpoint.

A run that learns from records (`run.live` is None) neither evaluates nor filters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.engine.progress import working
from rocstar.engine.types import Task
from rocstar.train.checkpoint_writer import Order
from rocstar.train.config import ConfigError, StageConfig
from rocstar.train.evaluate import Evaluation, attempt, evaluate, summarise
from rocstar.train.evaluation_files import evaluation_files, summary, write_attempts
from rocstar.train.run import Run
from rocstar.train.run_directory import write_json
from rocstar.train.source import Source, agent_for

EVAL_SEED = 1_000_003
FILTER_SEED = 2_000_003
"""Added to the run's seed: evaluation and filter draw other noise than training. Noise depends on the step
too, so `rocstar eval`, which counts as step 0, gives a checkpoint another draw than the run did."""


# ---- what only a run that rolls out does ----


async def run_evaluation(run: Run) -> Evaluation | None:
    """Evaluate the present policy on the held-out tasks; None without such tasks, or without an agent."""
    if run.live is None or not run.live.heldout:
        return None
    config, last = run.recipe.eval, run.recipe.stages[-1] if run.recipe.stages else None
    limits = dataclasses.replace(
        run.live.agent.limits,
        max_response_tokens=config.max_response_tokens or (last.max_response_tokens if last else 1024),
        max_turns=config.max_turns or (last.max_turns if last else 8),
    )
    sampling = dataclasses.replace(run.live.agent.sampling, temperature=config.temperature)
    agent = dataclasses.replace(run.live.agent, limits=limits, sampling=sampling)
    with run.budget.phase("eval"):
        seed, k = run.recipe.run.seed + EVAL_SEED, config.samples_per_task
        groups = await attempt(agent, run.live.heldout, k=k, seed=seed, step=run.step)
        attempts, numbers = evaluation_files(run.directory, run.step)
        write_attempts(attempts, groups, run.decode)
        result = summarise(groups, k=k)
        write_json(numbers, summary(result, seed=run.recipe.run.seed, step=run.step))
    run.log(result.metrics("heldout"), stage="eval", phase="eval")
    return result


async def filter_by_difficulty(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> list[Task]:
    """Drop tasks that the policy solves in all of k attempts (paper: 8 of 8, before stage 3)."""
    k = stage.filter_rollouts
    if not k or run.live is None:
        return list(tasks)
    seed = run.recipe.run.seed + FILTER_SEED
    agent = agent_for(run.live.agent, stage)
    with run.budget.phase("eval"):
        what = f"{stage.name}: difficulty filter"
        result, _ = await evaluate(agent, tasks, k=k, seed=seed, step=run.step, what=what)
    mastered = {
        task_id for task_id, rewards in result.rewards.items() if len(rewards) == k and min(rewards) == 1.0
    }
    kept = [task for task in tasks if task.id not in mastered]
    run.dropped_tasks = sorted({*run.dropped_tasks, *mastered})
    run.log(
        {"difficulty/tasks_seen": float(len(tasks)), "difficulty/tasks_dropped": float(len(mastered))},
        stage=stage.name,
        phase="eval",
    )
    run.console.note(
        f"{stage.name}: {len(kept)} of {len(tasks)} tasks are not mastered yet ({k} attempts each)"
    )
    return kept


# ---- where a run can be resumed ----


async def save(run: Run, stage: StageConfig | None, source: Source | None, *, first_step: int) -> None:
    """Begin to write checkpoint step_N; the next steps go on meanwhile."""
    progress = {
        "step": run.step,
        "version": run.publisher.version,
        "stage": stage.name if stage else None,
        "first_step": first_step,
        "source": _kind(live=run.live is not None),
        "cursor": source.state() if source else None,
        "dropped_tasks": run.dropped_tasks,
        "bad_steps": run.bad_steps,
        "metrics_bytes": run.metrics.num_bytes,
    }
    keep = run.recipe.checkpoint
    order = Order(
        run_dir=run.directory,
        step=run.step,
        progress=progress,
        keep_last=keep.keep_last,
        keep_every=keep.keep_every,
    )
    with working(f"checkpoint of step {run.step}"):
        await run.team.save(order)


def _kind(*, live: bool) -> str:
    return "live" if live else "records"


def check_same_kind(progress: Mapping[str, Any], *, live: bool) -> None:
    """A run is resumed the way it began. ConfigError if it rolled out and now would not, or the reverse."""
    began = progress.get("source", "live")
    if began != _kind(live=live):
        wrong, fix = (
            ("with --from-rollouts", "leave it out")
            if began == "live"
            else ("without it", "pass the --from-rollouts it began with")
        )
        how = "rolled out" if began == "live" else "learned from records (--from-rollouts)"
        raise ConfigError(
            f"the run {how} so far and cannot go on {wrong}; {fix}, or take another --output-dir"
        )
