"""The training loop: roll out groups, resample, learn, publish.

    cursor -> run_groups -> select (RoC, advantages) -> pack -> team.policy_step -> publish -> record

Who waits: a step waits for all its groups (staleness 0), then the engine waits for the learner: they share
the device thread. Published weights serve every later token.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from rocstar.engine.group import run_groups
from rocstar.engine.record import to_record, write_records
from rocstar.engine.rollout import Agent
from rocstar.engine.types import Group, Task
from rocstar.train import gate
from rocstar.train.algorithm.off_policy import Correction, Gate
from rocstar.train.batch import MicroBatch, pack, policy_examples, split_updates
from rocstar.train.checkpoint_writer import Order
from rocstar.train.config import Recipe, StageConfig, TrainingStopped
from rocstar.train.console import Console
from rocstar.train.data import TaskCursor
from rocstar.train.evaluate import Evaluation, evaluate
from rocstar.train.learner import LossSettings, LossStats
from rocstar.train.metrics import MetricsWriter
from rocstar.train.optim import OptimSpec
from rocstar.train.selection import Selection, policy_text, select
from rocstar.train.step_metrics import rollout_metrics, update_metrics
from rocstar.train.team import LearnerTeam
from rocstar.train.time_budget import TimeBudget
from rocstar.train.trackers import Tracker
from rocstar.train.verify import num_answers

EVAL_SEED = 1_000_003
FILTER_SEED = 2_000_003
"""Added to the run's seed: evaluation and filter draw other noise than training. Noise depends on the step
too, so `rocstar eval`, which counts as step 0, gives a checkpoint another draw than the run did."""


class Publisher(Protocol):
    """The part of an engine the loop drives beside rolling out."""

    version: int
    busy_s: float
    """Seconds of decoding so far."""

    async def publish(self, version: int, source: Sequence[tuple[str, Tensor]] | None = None) -> None: ...


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything a training run holds. Built in main.py; changed only by this module."""

    recipe: Recipe
    directory: Path
    agent: Agent
    engine: Publisher
    team: LearnerTeam
    heldout: list[Task]
    metrics: MetricsWriter
    console: Console
    trackers: list[Tracker]
    budget: TimeBudget
    clock: Callable[[], float]
    step: int = 0
    """RL steps done."""
    dropped_tasks: list[str] = field(default_factory=list)
    """Ids the difficulty filters removed so far."""
    bad_steps: int = 0
    """Steps in a row whose mismatch was beyond the off-policy gate's bounds."""

    def log(self, metrics: dict[str, float], *, stage: str, phase: Any) -> None:
        """One row everywhere it is looked at."""
        row = self.metrics.write(metrics, step=self.step, stage=stage, phase=phase)
        self.console.step(row)
        for tracker in self.trackers:
            tracker.log(self.step, metrics)


def agent_for(run: Run, stage: StageConfig) -> Agent:
    """The agent under a stage's limits."""
    limits = dataclasses.replace(
        run.agent.limits, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
    )
    return dataclasses.replace(run.agent, limits=limits)


async def run_evaluation(run: Run) -> Evaluation | None:
    """Evaluate the present policy on the held-out tasks; None without such tasks."""
    config, last = run.recipe.eval, run.recipe.stages[-1] if run.recipe.stages else None
    if not run.heldout:
        return None
    limits = dataclasses.replace(
        run.agent.limits,
        max_response_tokens=config.max_response_tokens or (last.max_response_tokens if last else 1024),
        max_turns=config.max_turns or (last.max_turns if last else 8),
    )
    sampling = dataclasses.replace(run.agent.sampling, temperature=config.temperature)
    agent = dataclasses.replace(run.agent, limits=limits, sampling=sampling)
    with run.budget.phase("eval"):
        seed = run.recipe.run.seed + EVAL_SEED
        result, _ = await evaluate(agent, run.heldout, k=config.samples_per_task, seed=seed, step=run.step)
    run.log(result.metrics("heldout"), stage="eval", phase="eval")
    path = run.directory / "evaluations" / f"step_{run.step:06d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"k": result.k, "rewards": result.rewards, "by_source": result.by_source}))
    return result


async def run_stage(
    run: Run,
    stage: StageConfig,
    tasks: Sequence[Task],
    *,
    first_step: int,
    cursor_state: dict[str, Any] | None,
) -> None:
    """All steps of one RL stage; `first_step` is the run's step count at the stage's begin."""
    cursor = TaskCursor(tasks, seed=run.recipe.run.seed)
    if cursor_state is not None:
        cursor.restore(cursor_state)
    run.budget.finish()  # an evaluation before the stage is not its first step's time
    end = first_step + stage.steps
    while run.step < end:
        run.team.check_saved()
        metrics = await train_step(run, stage, cursor)
        run.log(metrics | run.budget.finish(), stage=stage.name, phase="rl")
        every = run.recipe.eval.every
        if every and run.step % every == 0 and run.step < end:
            await run_evaluation(run)
        # Last, so that a checkpoint has the rows of all that came before it; its time is the next step's.
        every = run.recipe.checkpoint.every
        stuck = gate.is_stuck(off_policy_gate(run.recipe), run.bad_steps)
        if run.step == end or (every and run.step % every == 0) or stuck:
            with run.budget.phase("checkpoint"):
                await save(run, stage, cursor, first_step=first_step)
        if stuck:
            raise TrainingStopped(gate.STUCK)


async def train_step(run: Run, stage: StageConfig, cursor: TaskCursor) -> dict[str, float]:
    """One batch of groups in, the next policy version out."""
    recipe, rl, step = run.recipe, run.recipe.rl, run.step + 1
    # An epoch may end inside a batch: a task then comes once, for two attempts would be the same attempt.
    tasks = list({task.id: task for task in cursor.take(rl.tasks_per_step)}.values())
    groups = await roll_out(run, agent_for(run, stage), tasks, size=rl.rollouts_per_task, step=step)
    selection = select(groups, rl, seed=recipe.run.seed, step=step)
    metrics = rollout_metrics(selection)
    metrics["policy/staleness_max"] = 0.0
    updates = pack_updates(selection, recipe, step=step)
    if selection.kept:
        metrics["batch/over_budget"] = float(over_budget(selection, rl.tokens_per_microbatch))
        wanted = min(rl.num_updates_per_batch, len(selection.kept))
        metrics["batch/empty_updates"] = float(wanted - len(updates))
    if updates:
        with run.budget.phase("learn"):
            metrics["optim/lr"] = run.team.learner.optimizers.lr
            stats = await run.team.policy_step(updates, loss_settings(recipe), run.bad_steps)
            metrics |= update_metrics(stats)
        note_gate(run, step, stats)
        with run.budget.phase("publish"):
            await run.engine.publish(run.engine.version + 1, await run.team.full_weights())
    metrics["policy/version"] = float(run.engine.version)
    run.step = step
    record_step(run, stage, selection)
    return metrics


async def roll_out(run: Run, agent: Agent, tasks: Sequence[Task], *, size: int, step: int) -> list[Group]:
    """All groups of a step. Time in which nothing was decoding is tool wait."""
    busy_before, seed = run.engine.busy_s, run.recipe.run.seed
    with run.budget.phase("generate"):
        started = run.clock()
        groups = [
            g async for g in run_groups(agent, tasks, size=size, seed=seed, step=step, max_groups=len(tasks))
        ]
        idle = run.clock() - started - (run.engine.busy_s - busy_before)
        run.budget.move(max(0.0, idle), source="generate", target="tool_wait")
    return groups


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
        path = gate.dump(run.directory, step, stats, bounds, run.agent.chat.decode)
        run.console.note(gate.message(step, stats, bounds, path))


def record_step(run: Run, stage: StageConfig, selection: Selection) -> None:
    """Write every trajectory of the step, kept or not."""
    decode = run.agent.chat.decode
    records = (
        to_record(t, verdict, stage=stage.name, num_answers=num_answers(policy_text(t)), decode=decode)
        for t, verdict in selection.verdicts
    )
    write_records(run.directory / "trajectories" / f"step_{run.step:06d}.jsonl", records)


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


async def filter_by_difficulty(run: Run, stage: StageConfig, tasks: Sequence[Task]) -> list[Task]:
    """Drop tasks that the policy solves in all of k attempts (paper: 8 of 8, before stage 3)."""
    k = stage.filter_rollouts
    if not k:
        return list(tasks)
    seed = run.recipe.run.seed + FILTER_SEED
    agent = agent_for(run, stage)
    with run.budget.phase("eval"):
        result, _ = await evaluate(agent, tasks, k=k, seed=seed, step=run.step)
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


async def save(run: Run, stage: StageConfig | None, cursor: TaskCursor | None, *, first_step: int) -> None:
    """Begin to write checkpoint step_N; the next steps go on meanwhile."""
    progress = {
        "step": run.step,
        "version": run.engine.version,
        "stage": stage.name if stage else None,
        "first_step": first_step,
        "cursor": cursor.state() if cursor else None,
        "dropped_tasks": run.dropped_tasks,
        "bad_steps": run.bad_steps,
        "metrics_bytes": run.metrics.path.stat().st_size,
    }
    keep = run.recipe.checkpoint
    await run.team.save(
        Order(
            run_dir=run.directory,
            step=run.step,
            progress=progress,
            keep_last=keep.keep_last,
            keep_every=keep.keep_every,
        )
    )
