"""The training loop: every stage, step by step. A step does not depend on the source of its groups.

    [boxed answers, evaluation] -> per stage: difficulty filter -> source -> steps, evaluations, checkpoints
    -> [evaluation]
    step: source.take -> select (RoC, advantages) -> pack -> team.policy_step -> publish -> record

The step waits for its batch (source.py), then the publisher waits for the learner. Published weights serve
every later token.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rocstar.engine.progress.progress import working
from rocstar.engine.waits import waiting
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import Selection, select
from rocstar.train.groups.source import Batch, Source
from rocstar.train.groups.teacher_scores import teacher_scores
from rocstar.train.learner import checkpoint
from rocstar.train.learner.bad_batch import stops_run
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.batch import TOKENS, BodyMask, MicroBatch
from rocstar.train.learner.checkpoint import source_kind
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.commands import LoadStart
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.loss_stats import STOP_AFTER, STUCK, report_paused_step, update_metrics
from rocstar.train.learner.settings import EntropyControl, loss_settings, off_policy_gate, stage_optimizer
from rocstar.train.learner.token_stats_writer import TokenStatsPath
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.run_directory import cold_start_of
from rocstar.train.run import Run


async def begin_loop(run: Run) -> dict[str, Any] | None:
    """Evaluate and save a new run, as step 0; or restore one from its checkpoint, whose progress is returned."""
    if run.saved is not None:
        progress = checkpoint.load_progress(run.saved)
        run.step, run.dropped_tasks = progress["step"], progress["dropped_tasks"]
        run.bad_steps = progress.get("bad_steps", 0)
        run.entropy = EntropyControl(**progress.get("entropy", {}))
        if progress["version"] > run.publisher.version:
            await run.publisher.publish(progress["version"])
        await run.team.use(stage_optimizer(run.recipe))
        await run.team.load_optimizer(run.saved)
    else:
        progress = None
        if run.recipe.stages:
            await run.evaluation.measure_cold_start(run, run.recipe.stages[0], run.tasks[0])
        await run.evaluation.run_evaluation(run)
        await run.team.use(stage_optimizer(run.recipe))
        await save(run)
    if run.recipe.rl.start_kl_every and run.recipe.stages:
        await run.team.finish_saving()
        await run.team.run(LoadStart(checkpoint.step_directory(run.directory, 0), run.recipe))
    return progress


async def run_stages(run: Run) -> None:
    """All stages on their tasks, from the beginning or from where the run's checkpoint stood."""
    progress = await begin_loop(run)
    first = 0
    for stage, stage_tasks in zip(run.recipe.stages, run.tasks, strict=True):
        if run.listeners.stop is not None:
            break
        end = first + stage.steps
        begun = progress is not None and progress["stage"] == stage.name and progress["first_step"] == first
        continued = begun and run.step < end
        if run.step < end:
            dropped = set(run.dropped_tasks)
            chosen = [t for t in stage_tasks if t.id not in dropped]
            if not continued:
                chosen = await run.evaluation.filter_by_difficulty(run, stage, chosen)
            if not continued and stage.reset_optimizer:
                await run.team.use(stage_optimizer(run.recipe))
            state = progress["cursor"] if continued and progress else None
            async with run.open_source(stage, chosen, state) as source:
                await run_stage(run, stage, source, first_step=first)
        first = end
    if run.recipe.stages:
        await run.evaluation.run_evaluation(run)
    if run.listeners.stop is not None:
        run.listeners.note(f"stopped behind step {run.step} by {run.listeners.stop}; --resume goes on")


async def run_stage(run: Run, stage: StageConfig, source: Source, *, first_step: int) -> None:
    """All steps of one RL stage; `first_step` is the run's step count at the stage's begin."""
    run.budget.finish()  # an evaluation before the stage is not its first step's time
    end = first_step + stage.steps
    while run.step < end and run.listeners.stop is None:
        run.team.writer.check()
        tell_saved(run)
        metrics = await train_step(run, stage, source)
        run.log(metrics | run.budget.finish() | run.lag.take(), stage=stage.name, phase="rl")
        is_due = any(s.every and run.step % s.every == 0 for s in run.recipe.eval)
        if is_due and run.step < end and run.listeners.stop is None:  # a run's end has an evaluation of its own
            await run.evaluation.run_evaluation(run, between=True)
        # Last, so that a checkpoint has the rows of all that came before it; its time is the next step's.
        every = run.recipe.checkpoint.every
        stuck = off_policy_gate(run.recipe).skipped(run.bad_steps) >= STOP_AFTER
        stops = run.listeners.stop is not None
        if run.step == end or (every and run.step % every == 0) or stuck or stops:
            with run.budget.phase("checkpoint"):
                await save(run, stage, source, first_step=first_step)
        if stuck:
            raise TrainingStopped(STUCK)


async def train_step(run: Run, stage: StageConfig, source: Source) -> dict[str, float]:
    """One batch of groups in, the next policy version out. Returns the step's metrics but its times."""
    recipe, step = run.recipe, run.step + 1
    batch, teacher = await source.take(step), dict[str, list[float]]()
    if not recipe.rl.uses_rewards:
        with run.budget.phase("reward"):
            teacher = await teacher_scores(recipe.teacher, batch.groups)
    # Seconds of a large step, in which the loop has tools, nodes and servers to answer.
    selection, metrics, updates = await asyncio.to_thread(
        prepare,
        batch,
        recipe,
        stage,
        step=step,
        ranks=run.team.world.size,
        cost=run.team.row_cost,
        bodies=run.bodies,
        teacher=teacher,
    )
    if updates:
        async with contextlib.AsyncExitStack() as stack:
            with run.budget.phase("publish"):
                await stack.enter_async_context(run.publisher.updating())
            metrics |= await _learn(run, step, updates)
    else:
        await run.journal.unlearned(step)
    metrics |= run.live.measure() if run.live else {}
    metrics["policy/version"] = float(run.publisher.version)
    await record(run, stage, selection)
    return metrics


async def record(run: Run, stage: StageConfig, selection: Selection) -> None:
    """Record the trajectories of the step that ends, with the decisions on them."""
    run.step += 1
    await run.journal.seal(run.step, selection.verdicts, stage=stage.name)
    run.listeners.groups(run.step, selection.verdicts)


async def _learn(run: Run, step: int, updates: list[list[MicroBatch]]) -> dict[str, float]:
    """Update the weights and serve them."""
    with run.budget.phase("learn"), stops_run(run.directory, f"step_{step:06d}"):
        learner: Learner = run.team.learner
        lr = learner.optimizers.lr
        async with waiting(f"step {step}", "the learner", kind="learn", deadline=None):
            with working(f"step {step}, learning", unit="microbatches", count=lambda: learner.gone_through):
                token_stats = TokenStatsPath(folder=run.journal.folder, step=step)
                settings = loss_settings(run.recipe, step, alpha=run.entropy.alpha)
                stats = await run.team.policy_step(updates, settings, run.bad_steps, token_stats)
    run.bad_steps = stats.bad_steps
    if stats.is_paused:
        bounds = off_policy_gate(run.recipe)
        run.listeners.note(report_paused_step(run.directory, step, stats, bounds, run.decode))
    run.entropy = run.entropy.after(stats, run.recipe.rl)
    for problem in stats.unwritten:
        run.listeners.note(problem)
    with run.budget.phase("publish"):
        await publish(run)
    released = run.team.rank.released.metrics() if run.team.rank.released else {}
    alpha = {"entropy/alpha": settings.entropy_alpha} if run.recipe.rl.entropy_target else {}
    return {"optim/lr": lr, **update_metrics(stats), **alpha, **released}


async def publish(run: Run) -> None:
    """Serve the learner's weights as the next version, for every later token."""
    async with waiting(f"step {run.step + 1}", "the engine to take new weights", kind="publish", deadline=None):
        await run.publisher.publish(run.publisher.version + 1)


def prepare(
    batch: Batch,
    recipe: Recipe,
    stage: StageConfig,
    *,
    step: int,
    ranks: int = 1,
    cost: Cost = TOKENS,
    bodies: BodyMask | None = None,
    teacher: Mapping[str, Sequence[float]],
) -> tuple[Selection, dict[str, float], list[list[MicroBatch]]]:
    """Return the selection of a batch, its metrics, and its microbatches. Callable from any thread; does not
    wait."""
    rl = recipe.rl
    limit, seed = stage.max_response_tokens, recipe.run.seed
    selection = select(batch.groups, rl, seed=seed, limit=limit, teacher=teacher)
    metrics = rollout_metrics(selection) | batch.metrics
    if gaps := [gap for given in selection.advantages if not isinstance(given, float) for gap in given if teacher]:
        metrics["distill/kl"] = -fmean(gaps)
    if batch.staleness is not None:
        metrics["policy/staleness_max"] = float(batch.staleness)
    updates = pack_updates(selection, recipe, step=step, ranks=ranks, cost=cost, bodies=bodies)
    if selection.kept:
        metrics["batch/over_budget"] = float(
            sum(s.stop - s.start - 1 > rl.tokens_per_microbatch for t in selection.kept for s in t.sequences)
        )
        wanted = min(rl.num_updates_per_batch, len(selection.kept))
        metrics["batch/empty_updates"] = float(wanted - len(updates))
    return selection, metrics, updates


async def save(
    run: Run, stage: StageConfig | None = None, source: Source | None = None, *, first_step: int = 0
) -> None:
    """Begin to write checkpoint step_N, whose records are whole; the next steps go on meanwhile."""
    await run.journal.settled()
    progress = {
        "step": run.step,
        "version": run.publisher.version,
        "stage": stage.name if stage else None,
        "first_step": first_step,
        "source": source_kind(live=run.live is not None),
        "cursor": source.state() if source else None,
        "dropped_tasks": run.dropped_tasks,
        "bad_steps": run.bad_steps,
        "entropy": asdict(run.entropy),
        "metrics_bytes": run.metrics.num_bytes,
    }
    keep = run.recipe.checkpoint
    order = Order(
        run_dir=run.directory, step=run.step, progress=progress, keep_last=keep.keep_last, keep_every=keep.keep_every
    )
    with working(f"checkpoint of step {run.step}"):
        await run.team.save(order)
    tell_saved(run)  # of the one before
    run.saving = order


def tell_saved(run: Run) -> None:
    """Tell of a checkpoint once it is whole; the step waits for none."""
    if run.saving is not None and (run.saving.directory / checkpoint.COMPLETE).exists():
        run.listeners.checkpoint(run.saving.step, run.saving.directory)
        run.saving = None
        # The checkpoint of the stages replaces those of the cold start.
        shutil.rmtree(cold_start_of(run.directory), ignore_errors=True)
