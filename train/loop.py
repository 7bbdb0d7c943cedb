"""The training loop: every stage, step by step. A step is the same wherever its groups come from.

    [evaluation] -> per stage: difficulty filter -> source -> steps, evaluations, checkpoints -> [evaluation]
    step: source.take -> select (RoC, advantages) -> pack -> team.policy_step -> publish -> record

Who waits: the step waits for its batch (source.py), then the publisher waits for the learner. Published
weights serve every later token.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

from rocstar.engine.progress import working
from rocstar.engine.record import to_record, write_records
from rocstar.engine.types import Task
from rocstar.engine.waits import waiting
from rocstar.train import checkpoint, gate
from rocstar.train.algorithm.off_policy import Correction, Gate
from rocstar.train.bad_batch import stops_run
from rocstar.train.batch import MicroBatch, pack, policy_examples, split_updates
from rocstar.train.between_steps import filter_by_difficulty, run_evaluation, save
from rocstar.train.config import Recipe, StageConfig, TrainingStopped
from rocstar.train.learner import LossSettings
from rocstar.train.loss_stats import LossStats
from rocstar.train.optim import OptimSpec
from rocstar.train.run import Run
from rocstar.train.run_directory import records_file
from rocstar.train.selection import Selection, policy_text, select
from rocstar.train.source import OpenSource, Source
from rocstar.train.step_metrics import rollout_metrics, update_metrics
from rocstar.train.verify import num_answers


async def run_stages(
    run: Run, tasks: Sequence[Sequence[Task]], open_source: OpenSource, saved: Path | None
) -> None:
    """All stages on their tasks, from the begin or from where the checkpoint `saved` stood."""
    progress = checkpoint.load_progress(saved) if saved else None
    if progress:
        run.step, run.dropped_tasks = progress["step"], progress["dropped_tasks"]
        run.bad_steps = progress.get("bad_steps", 0)
        if progress["version"] > run.publisher.version:
            await run.publisher.publish(progress["version"])
    else:
        await run_evaluation(run)
        await run.team.use(stage_optimizer(run.recipe))
        await save(run, None, None, first_step=0)
    first, fresh = 0, False
    for stage, stage_tasks in zip(run.recipe.stages, tasks, strict=True):
        end = first + stage.steps
        begun = progress is not None and progress["stage"] == stage.name and progress["first_step"] == first
        continued = begun and run.step < end
        if run.step < end:
            chosen = [t for t in stage_tasks if t.id not in set(run.dropped_tasks)]
            if not continued:
                chosen = await filter_by_difficulty(run, stage, chosen)
            if saved is not None and not fresh:
                await run.team.use(stage_optimizer(run.recipe))
                await run.team.load_optimizer(saved)
            if not continued and stage.reset_optimizer:
                await run.team.use(stage_optimizer(run.recipe))
            fresh = True
            state = progress["cursor"] if continued and progress else None
            async with open_source(stage, chosen, state) as source:
                await run_stage(run, stage, source, first_step=first)
        first = end
    if run.recipe.stages:
        await run_evaluation(run)


async def run_stage(run: Run, stage: StageConfig, source: Source, *, first_step: int) -> None:
    """All steps of one RL stage; `first_step` is the run's step count at the stage's begin."""
    run.budget.finish()  # an evaluation before the stage is not its first step's time
    end = first_step + stage.steps
    while run.step < end:
        run.team.check_saved()
        metrics = await train_step(run, stage, source)
        run.log(metrics | run.budget.finish(), stage=stage.name, phase="rl")
        every = run.recipe.eval.every
        if every and run.step % every == 0 and run.step < end:
            await run_evaluation(run)
        # Last, so that a checkpoint has the rows of all that came before it; its time is the next step's.
        every = run.recipe.checkpoint.every
        stuck = gate.is_stuck(off_policy_gate(run.recipe), run.bad_steps)
        if run.step == end or (every and run.step % every == 0) or stuck:
            with run.budget.phase("checkpoint"):
                await save(run, stage, source, first_step=first_step)
        if stuck:
            raise TrainingStopped(gate.STUCK)


async def train_step(run: Run, stage: StageConfig, source: Source) -> dict[str, float]:
    """One batch of groups in, the next policy version out. Returns the step's metrics but its times."""
    recipe, rl, step = run.recipe, run.recipe.rl, run.step + 1
    batch = await source.take(step)
    selection = select(batch.groups, rl, seed=recipe.run.seed, step=step)
    metrics = rollout_metrics(selection) | batch.metrics
    if batch.staleness is not None:
        metrics["policy/staleness_max"] = float(batch.staleness)
    updates = pack_updates(selection, recipe, step=step)
    if selection.kept:
        metrics["batch/over_budget"] = float(over_budget(selection, rl.tokens_per_microbatch))
        wanted = min(rl.num_updates_per_batch, len(selection.kept))
        metrics["batch/empty_updates"] = float(wanted - len(updates))
    if updates:
        async with contextlib.AsyncExitStack() as stack:
            with run.budget.phase("publish"):
                await stack.enter_async_context(run.publisher.updating())
            metrics |= await _learn(run, step, updates)
    metrics |= run.live.measure() if run.live else {}
    metrics["policy/version"] = float(run.publisher.version)
    run.step = step
    record_step(run, stage, selection)
    return metrics


async def _learn(run: Run, step: int, updates: list[list[MicroBatch]]) -> dict[str, float]:
    """Update the weights and serve them."""
    with run.budget.phase("learn"), stops_run(run.directory, f"step_{step:06d}"):
        learner = run.team.learner
        lr = learner.optimizers.lr
        async with waiting(f"step {step}", "the learner", kind="learn", deadline=None):
            with working(f"step {step}, learning", unit="microbatches", count=lambda: learner.gone_through):
                stats = await run.team.policy_step(updates, loss_settings(run.recipe), run.bad_steps)
    note_gate(run, step, stats)
    with run.budget.phase("publish"):
        async with waiting(f"step {step}", "the engine to take new weights", kind="publish", deadline=None):
            await run.publisher.publish(run.publisher.version + 1)
    return {"optim/lr": lr, **update_metrics(stats)}


def pack_updates(selection: Selection, recipe: Recipe, *, step: int) -> list[list[MicroBatch]]:
    """The kept trajectories as microbatches per optimizer step; empty when no group had a signal.

    A part without a loss token is no update: a zero gradient would still move the weights by the optimizer's
    momentum.
    """
    rng = random.Random(f"{recipe.run.seed}|updates|{step}")
    parts = split_updates(len(selection.kept), recipe.rl.num_updates_per_batch, rng)
    return [
        pack(
            policy_examples([selection.kept[k] for k in part], [selection.advantages[k] for k in part]),
            tokens_per_microbatch=recipe.rl.tokens_per_microbatch,
        )
        for part in parts
        if any(selection.kept[k].num_policy_tokens for k in part)
    ]


def over_budget(selection: Selection, tokens_per_microbatch: int) -> int:
    """Kept trajectories that do not fit the token budget of a microbatch."""
    return sum(len(t.ids) - 1 > tokens_per_microbatch for t in selection.kept)


def loss_settings(recipe: Recipe) -> LossSettings:
    """What a recipe says about the policy loss."""
    rl, off_policy = recipe.rl, recipe.off_policy
    return LossSettings(
        temperature=rl.temperature,
        clip_low=rl.clip_low,
        clip_high=rl.clip_high,
        correction=Correction(off_policy.correction),
        cap=off_policy.cap,
        floor=off_policy.floor,
        gate=off_policy_gate(recipe),
    )


def off_policy_gate(recipe: Recipe) -> Gate:
    config = recipe.off_policy
    return Gate(kl=config.gate_kl, ratio_p99=config.gate_ratio_p99, steps=config.gate_steps)


def note_gate(run: Run, step: int, stats: LossStats) -> None:
    """Remember the gate's count; tell and dump a paused step."""
    run.bad_steps = stats.bad_steps
    if stats.is_paused:
        bounds = off_policy_gate(run.recipe)
        path = gate.dump(run.directory, step, stats, bounds, run.decode)
        run.console.note(gate.message(step, stats, bounds, path))


def record_step(run: Run, stage: StageConfig, selection: Selection) -> None:
    """Write every trajectory of the step, kept or not."""
    records = (
        to_record(t, verdict, stage=stage.name, num_answers=num_answers(policy_text(t)), decode=run.decode)
        for t, verdict in selection.verdicts
    )
    write_records(records_file(run.directory, run.step), records)


def stage_optimizer(recipe: Recipe) -> OptimSpec:
    """AdamW at a constant rate after the warm-up, which is counted in rollout steps."""
    rl = recipe.rl
    return OptimSpec(
        kind="adamw",
        lr=rl.lr,
        weight_decay=rl.weight_decay,
        grad_clip=rl.grad_clip,
        warmup_steps=rl.warmup_steps * rl.num_updates_per_batch,
    )
