"""The composition root: the one file that builds everything a run is made of.

    recipe -> tasks, sandbox, model, tokenizer, chat -> cold start -> evaluation -> stages -> evaluation

Under torchrun rank 0 does all of it and drives the other ranks' learners (train/team.py); a model from
nothing is cold-started on rank 0 alone and handed to the others as a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rocstar.engine.chat import ChatFormat
from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded import EmbeddedEngine
from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.tools import JupyterToolBox, PythonToolBox, ToolBox
from rocstar.engine.types import Task
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.pool import AUTO, SandboxPool
from rocstar.sandbox.types import Limits, SessionSandbox
from rocstar.train import checkpoint
from rocstar.train.cold_start import build_from_nothing, conversations_for
from rocstar.train.config import ConfigError, Recipe, to_toml
from rocstar.train.console import Console
from rocstar.train.loop import Run, filter_by_difficulty, run_evaluation, run_stage, save, stage_optimizer
from rocstar.train.metrics import MetricsWriter
from rocstar.train.model_io import load_model, load_tokenizer
from rocstar.train.preflight import Tasks, chat_format, check, load_all_tasks
from rocstar.train.report import write_report
from rocstar.train.reward import VERIFIER_FLAVOUR, Judge
from rocstar.train.run_directory import CONFIG, METRICS, claim, discard_if_unused
from rocstar.train.scratch import digit_token_mask
from rocstar.train.sft import cold_start, tokenise
from rocstar.train.team import LearnerTeam, World, shard
from rocstar.train.time_budget import TimeBudget
from rocstar.train.trackers import Tracker, TrackerError, make_tracker


def train(recipe: Recipe, run_dir: Path, *, resume: bool) -> None:
    """Run a whole recipe; called on every rank."""
    check(recipe)
    world = World.join()
    checkpoint.set_threads(world.threads(recipe.run.threads))
    try:
        if world.rank == 0:
            _lead(recipe, run_dir, world, resume=resume)
        else:
            _follow(recipe, world)
    finally:
        world.leave()


def _follow(recipe: Recipe, world: World) -> None:
    path = world.broadcast(None)
    if path is None:  # rank 0 could not begin; its message says why
        return
    model = load_model(path, recipe.model.dtype)
    shard(model, world)
    with ThreadPoolExecutor(1) as thread:
        LearnerTeam(model, world, thread).follow()


def _lead(recipe: Recipe, run_dir: Path, world: World, *, resume: bool) -> None:
    told = False

    def tell(path: str) -> None:
        nonlocal told
        told = True
        world.broadcast(path)

    try:
        tasks = load_all_tasks(recipe)
        with claim(run_dir, resume=resume):
            try:
                (run_dir / CONFIG).write_text(to_toml(recipe), encoding="utf-8")
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_run(recipe, run_dir, world, tasks, tell, resume=resume))
                write_report(run_dir)
            finally:
                discard_if_unused(run_dir)
    finally:
        if not told:
            world.broadcast(None)


@contextlib.asynccontextmanager
async def open_sandbox(recipe: Recipe) -> AsyncIterator[SandboxPool]:
    """The zygotes that tools and grading need, and room for the interpreter of every trajectory in flight."""
    tool, engine = recipe.tool, recipe.engine
    chosen = [name for name, flavour in FLAVOURS.items() if flavour.chosen]
    flavours = [*(chosen if tool.flavour == AUTO else [tool.flavour]), VERIFIER_FLAVOUR]
    pool = SandboxPool(
        flavours,
        max_live=engine.sandbox_children or None,
        max_sessions=engine.max_running if tool.kind == "jupyter" else 0,
        # A trajectory ends within its own time limit: no interpreter is taken from a living one.
        lease_s=engine.turn_timeout_s + 60.0,
    )
    async with pool:
        yield pool


def tool_box(recipe: Recipe, sandbox: SessionSandbox) -> ToolBox:
    tool = recipe.tool
    limits = Limits(wall_s=tool.wall_s, cpu_s=max(1, int(tool.wall_s) + 1), memory_bytes=tool.memory_mb << 20)
    box = JupyterToolBox if tool.kind == "jupyter" else PythonToolBox
    return box(
        sandbox=sandbox,
        limits=limits,
        flavour=tool.flavour,
        style=tool.text,
        max_parallel_calls=tool.max_parallel_calls,
    )


async def _run(
    recipe: Recipe, run_dir: Path, world: World, tasks: Tasks, tell: Callable[[str], None], *, resume: bool
) -> None:
    saved = checkpoint.latest(run_dir) if resume else None
    stages, threads = recipe.stages, recipe.run.threads
    if resume:
        _rewind(run_dir / METRICS, saved)
    with (
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
        MetricsWriter(run_dir / METRICS) as metrics,
        _open_trackers(recipe, run_dir) as trackers,
        Console(sum(s.steps for s in stages), [s.name for s in stages]) as console,
    ):
        async with open_sandbox(recipe) as sandbox:
            builder = _Builder(recipe, run_dir, world, tasks, sandbox, thread, metrics, trackers, console)
            if saved is None:
                thread.submit(checkpoint.set_threads, world.threads(threads, alone=True)).result()
                model, tokenizer = await builder.begin()
            else:
                model, tokenizer = load_model(str(saved), recipe.model.dtype), load_tokenizer(str(saved))
                console.note(f"resuming from {saved}")
            thread.submit(checkpoint.set_threads, world.threads(threads)).result()
            await builder.reinforce(model, tokenizer, saved, tell)


def _rewind(metrics: Path, saved: Path | None) -> None:
    """Forget the rows of what will be done again: all behind the checkpoint."""
    size = checkpoint.load_progress(saved)["metrics_bytes"] if saved else 0
    os.truncate(metrics, min(size, metrics.stat().st_size))


@contextlib.contextmanager
def _open_trackers(recipe: Recipe, run_dir: Path) -> Iterator[list[Tracker]]:
    with contextlib.ExitStack() as stack:
        trackers = []
        for name in recipe.run.trackers:
            try:
                trackers.append(make_tracker(name, run_dir=run_dir, config=recipe.model_dump()))
            except TrackerError as error:
                raise ConfigError(f"run.trackers: {error}") from None
            stack.callback(trackers[-1].close)
        yield trackers


@dataclass(frozen=True, slots=True)
class _Builder:
    """Puts the parts together, in the order of a run."""

    recipe: Recipe
    run_dir: Path
    world: World
    tasks: Tasks
    sandbox: SandboxPool
    thread: ThreadPoolExecutor
    metrics: MetricsWriter
    trackers: list[Tracker]
    console: Console

    async def begin(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A loaded model, or one from nothing after its cold start."""
        recipe = self.recipe
        if recipe.model.path != "scratch":
            tokenizer = load_tokenizer(recipe.model.path)
            return load_model(recipe.model.path, recipe.model.dtype), tokenizer
        rows = await conversations_for(
            recipe, self.tasks.demonstrations, self._known(), self.sandbox, self.console
        )
        model, tokenizer = build_from_nothing(recipe, rows)
        chat = chat_format(recipe, tokenizer)
        await self._cold_start(LearnerTeam(model, World(rank=0, size=1), self.thread), chat, rows, tokenizer)
        return model, tokenizer

    def _known(self) -> list[Task]:
        """Tasks that demonstrations must not show."""
        return [*self.tasks.heldout, *(task for stage in self.tasks.stages for task in stage)]

    async def _cold_start(
        self,
        team: LearnerTeam,
        chat: ChatFormat,
        rows: Sequence[dict[str, object]],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        sft = self.recipe.sft
        conversations, skipped = tokenise(rows, chat, max_tokens=sft.max_tokens)
        if skipped:
            self.console.note(
                f"cold start: {skipped} of {len(rows)} conversations skipped (too long or empty)"
            )
        total = sft.steps

        def on_step(step: int, loss: float, grad_norm: float) -> None:
            self.console.sft_progress(step, total, loss)
            if step % max(1, total // 50) == 0 or step == total:
                values = {"loss/sft": loss, "optim/grad_norm": grad_norm}
                self.metrics.write(values, step=step, stage="sft", phase="sft")

        await cold_start(
            team,
            conversations,
            sft,
            digit_ids=frozenset(
                k
                for k, is_digit in enumerate(digit_token_mask(cast("PreTrainedTokenizerFast", tokenizer)))
                if is_digit
            ),
            tokens_per_microbatch=self.recipe.rl.tokens_per_microbatch,
            seed=self.recipe.run.seed,
            on_step=on_step,
        )

    async def reinforce(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        saved: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        """Evaluation, every stage, evaluation."""
        recipe, world = self.recipe, self.world
        chat = chat_format(recipe, tokenizer)
        served = model
        if world.size > 1:
            start = str(saved) if saved else await self._hand_over(model, tokenizer)
            tell(start)
            model = load_model(start, recipe.model.dtype)
            shard(model, world)
        team = LearnerTeam(model, world, self.thread)
        engine = EmbeddedEngine(
            served,
            max_running=recipe.engine.max_running,
            thread=self.thread,
            lockstep=recipe.engine.deterministic,
        )
        async with engine:
            run = self._assemble(team, engine, chat)
            if saved is None and recipe.model.path != "scratch" and recipe.sft.steps:
                rows = await conversations_for(
                    recipe, self.tasks.demonstrations, self._known(), self.sandbox, self.console
                )
                await self._cold_start(team, chat, rows, tokenizer)
                await engine.publish(engine.version + 1, await team.full_weights())
            team.writer.use_tokenizer(tokenizer)
            with contextlib.closing(team):
                await _stages(run, self.tasks, saved)
                await team.finish_saving()
                await team.stop()

    async def _hand_over(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
        """Where the other ranks find rank 0's model: a directory, or the name it was loaded from."""
        if self.recipe.model.path != "scratch":
            return self.recipe.model.path
        directory = self.run_dir / "cold_start"
        checkpoint.save_model(directory, model, checkpoint.full_weights(model), tokenizer)
        return str(directory)

    def _assemble(self, team: LearnerTeam, engine: EmbeddedEngine, chat: ChatFormat) -> Run:
        recipe = self.recipe
        limits = RolloutLimits(
            max_response_tokens=1,
            max_turns=1,
            max_tool_tokens=recipe.tool.max_output_tokens,
            timeout_s=recipe.engine.turn_timeout_s,
        )
        agent = Agent(
            inference=engine,
            chat=chat,
            tools=tool_box(recipe, self.sandbox),
            judge=Judge(self.sandbox),
            limits=limits,
            sampling=Sampling(temperature=recipe.rl.temperature),
        )
        return Run(
            recipe=recipe,
            directory=self.run_dir,
            agent=agent,
            engine=engine,
            team=team,
            heldout=self.tasks.heldout,
            metrics=self.metrics,
            console=self.console,
            trackers=self.trackers,
            budget=TimeBudget(),
            clock=time.perf_counter,
        )


async def _stages(run: Run, tasks: Tasks, saved: Path | None) -> None:
    """Evaluate, run or continue each stage, evaluate again."""
    progress = checkpoint.load_progress(saved) if saved else None
    if progress:
        run.step, run.dropped_tasks = progress["step"], progress["dropped_tasks"]
        run.bad_steps = progress.get("bad_steps", 0)
        await run.engine.publish(progress["version"]) if progress["version"] else None
    else:
        await run_evaluation(run)
        await run.team.use(stage_optimizer(run.recipe))
        await save(run, None, None, first_step=0)
    first, fresh = 0, False
    for stage, stage_tasks in zip(run.recipe.stages, tasks.stages, strict=True):
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
            cursor = progress["cursor"] if continued and progress else None
            await run_stage(run, stage, chosen, first_step=first, cursor_state=cursor)
        first = end
    if run.recipe.stages:
        await run_evaluation(run)
