"""The composition root: the one file that puts together everything a run is made of.

    train ─┬─ rank 0: _led -> _run ─┬─ live:     sandbox, model, cold start, engine, agent ─┬─> run_stages
           │                        └─ recorded: model, records                            ─┘
           └─ other ranks: follow (nodes.py), driven by rank 0's LearnerTeam

From here to the loss: `train_step` (loop.py), `Learner.policy_step` (learner.py), `policy_loss`
(algorithm/loss.py).
A model from nothing is cold-started on rank 0 alone and handed to the others as a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvloop
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.garbage import settled_garbage
from rocstar.engine.progress.progress import working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.types import Task, TurnForm
from rocstar.sandbox.types import Sandbox
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.groups.from_rollouts import Records, VersionCounter, recorded_source
from rocstar.train.groups.journal import Journal, origin_of
from rocstar.train.groups.live_source import live_source
from rocstar.train.groups.source import OpenSource, Source
from rocstar.train.learner import checkpoint
from rocstar.train.learner.cold_start import build_from_nothing, conversations_for, run_cold_start
from rocstar.train.learner.determinism import deterministic_torch
from rocstar.train.learner.host_memory import give_freed_memory_back, keep_freed_memory
from rocstar.train.learner.load_parts import load_learner
from rocstar.train.learner.model_io import load_model, load_tokenizer
from rocstar.train.learner.roles import Roles
from rocstar.train.learner.team import LearnerTeam, World, is_apart, local_device, shard
from rocstar.train.loop import run_stages, tell_saved
from rocstar.train.plan.preflight import Tasks, check, loaded_tasks
from rocstar.train.plan.prompts import dated
from rocstar.train.plan.resume import bytes_to_keep, check_same_kind, complete, take_recipe
from rocstar.train.reading.diagnosis.watch import Watch
from rocstar.train.reading.view.report import write_eval_report, write_report
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig
from rocstar.train.recipe.stage_config import StageConfig
from rocstar.train.record.callbacks import Callback, Listeners
from rocstar.train.record.console import Console
from rocstar.train.record.console_log import ConsoleLog
from rocstar.train.record.listening import listening
from rocstar.train.record.loop_lag import LoopLag
from rocstar.train.record.manifest import recorded
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.run_directory import METRICS, REPORT, claim, cold_start_of, discard_if_unused
from rocstar.train.record.stall import guarded, stall_s
from rocstar.train.record.time_budget import TimeBudget
from rocstar.train.run import Live, Run
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.backend import InitialPolicy, Learning, backend_of
from rocstar.train.serving.base import Publisher
from rocstar.train.serving.nodes import Start, follow, new_token, open_nodes, serve_alone
from rocstar.train.serving.placement import hide_servers
from rocstar.train.serving.serving_node import as_served_alone
from rocstar.train.tasks.chat_format import chat_format, check_scratch


def train(
    recipe: Recipe,
    run_dir: Path,
    *,
    resume: bool,
    rollouts: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Run a whole recipe, or learn its stages from the records at `rollouts`; called on every rank.

    `callbacks` listen beside those that the recipe names; of several ranks, rank 0's. A resumed run that is
    complete says so and is left as it is.
    """
    recipe = dated(recipe, former=run_dir if resume else rollouts)
    if resume and _told_complete(recipe, run_dir, rollouts):
        return
    if Roles.of().serves:
        recipe = as_served_alone(recipe, torch.cuda.device_count())
    with _joined(recipe, run_dir, rollouts, resume=resume) as (world, conversations):
        if world.only_serves:
            serve_alone(recipe, world)
            return
        if world.rank:
            follow(recipe, world)
            return
        with (
            _led(
                recipe, run_dir, world, conversations, resume=resume, rollouts=rollouts, callbacks=callbacks
            ) as work,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(work)


async def train_in_loop(
    recipe: Recipe,
    run_dir: Path,
    *,
    resume: bool = False,
    rollouts: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """`train` in a loop that runs already, as one process. Cancelled, it leaves what Ctrl-C leaves."""
    recipe = dated(recipe, former=run_dir if resume else rollouts)
    if resume and _told_complete(recipe, run_dir, rollouts):
        return
    with (
        _joined(recipe, run_dir, rollouts, resume=resume) as (world, conversations),
        _led(
            recipe, run_dir, world, conversations, resume=resume, rollouts=rollouts, callbacks=callbacks
        ) as work,
    ):
        await work


def _told_complete(recipe: Recipe, run_dir: Path, rollouts: Path | None) -> bool:
    """Whether nothing is left to do of the run; then it has been said."""
    told = complete(recipe, run_dir, live=rollouts is None)
    if told and os.environ.get("RANK", "0") == "0":
        print(told, file=sys.stderr)
        if not (run_dir / REPORT).exists():
            write_report(run_dir)
    return bool(told)


@contextlib.contextmanager
def _joined(
    recipe: Recipe, run_dir: Path, rollouts: Path | None, *, resume: bool
) -> Iterator[tuple[World, list[dict[str, Any]]]]:
    """This process checked, among its ranks and with its settings of torch; and the conversations of its cold
    start, of which there may be gigabytes: only rank 0 keeps them."""
    conversations: list[dict[str, Any]] = []
    if rollouts is None:
        if not Roles.of().serves:
            hide_servers(recipe.engine)
        conversations = check(recipe, run_dir, resume=resume, built_in=load_tasks_of)
    world = World.join()
    if world.rank:
        conversations.clear()
    device = local_device()
    on_cpu = device.type == "cpu"
    if on_cpu:
        keep_freed_memory()
    checkpoint.set_threads(world.threads(recipe.run.threads))
    try:
        with deterministic_torch(recipe.engine.deterministic, device):
            yield world, conversations
    finally:
        world.leave()
        if on_cpu:
            give_freed_memory_back()


@contextlib.contextmanager
def _led(
    recipe: Recipe,
    run_dir: Path,
    world: World,
    conversations: list[dict[str, Any]],
    *,
    resume: bool,
    rollouts: Path | None,
    callbacks: Sequence[Callback],
) -> Iterator[Coroutine[None, None, None]]:
    """Rank 0's work, to be run to its end inside, in a folder that is claimed; then its report."""
    told = False

    def tell(start: Start) -> None:
        nonlocal told
        told = True
        world.broadcast(start)

    try:
        supply: Tasks | Records
        if rollouts is None:
            supply = loaded_tasks(recipe, built_in=load_tasks_of, conversations=conversations)
        else:
            supply = Records.open(rollouts, recipe, run_dir)
            recipe = supply.recipe
        with claim(run_dir, resume=resume):
            try:
                saved = checkpoint.latest(run_dir) if resume else None
                cold = checkpoint.latest(cold_start_of(run_dir)) if resume and saved is None else None
                if saved is not None:
                    check_same_kind(checkpoint.load_progress(saved), live=rollouts is None)
                with ConsoleLog(run_dir) as log:
                    if told_changes := take_recipe(recipe, run_dir, saved or cold):
                        log.write(told_changes)
                        print(told_changes, file=sys.stderr)
                    with recorded(run_dir, recipe, world_size=world.size):
                        began = saved, cold
                        yield _run(recipe, run_dir, world, supply, tell, began, log, callbacks, resume=resume)
                    with StatusLine(log=log), working("writing the report"):
                        write_report(run_dir)
            finally:
                discard_if_unused(run_dir)
    finally:
        if not told:
            world.broadcast(None)


async def _run(
    recipe: Recipe,
    run_dir: Path,
    world: World,
    supply: Tasks | Records,
    tell: Callable[[Start], None],
    began: tuple[Path | None, Path | None],
    log: ConsoleLog,
    callbacks: Sequence[Callback],
    *,
    resume: bool,
) -> None:
    stages, (saved, cold) = recipe.stages, began
    keep_bytes = bytes_to_keep(run_dir, saved or cold) if resume else None
    step = checkpoint.load_progress(saved)["step"] if saved else 0
    watch = Watch()
    with (
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
        MetricsWriter(run_dir / METRICS, keep_bytes=keep_bytes) as metrics,
        Console(sum(s.steps for s in stages), [s.name for s in stages], log=log) as console,
        listening(recipe, run_dir, console, (*callbacks, watch), step=step) as listeners,
        LoopLag() as lag,
    ):
        watch.tell = listeners.note
        if saved or cold:
            listeners.note(f"resuming from {saved or cold}")
        builder = _Builder(recipe, run_dir, world, thread, metrics, listeners, watch, lag, tell, saved, cold)
        patience_s = stall_s(recipe.engine.trajectory_timeout_s)
        with settled_garbage():
            async with guarded(run_dir, stall_s=patience_s, note=listeners.note, board=console.waits):
                if isinstance(supply, Records):
                    await builder.recorded(supply)
                else:
                    await builder.live(supply)


Made = Callable[[], PreTrainedModel]
"""The model: made already, or loaded now."""


def _the_same(model: PreTrainedModel) -> PreTrainedModel:
    return model


@dataclass(frozen=True, slots=True)
class _Builder:
    """Puts the parts together, in the order of a run. Runs on rank 0."""

    recipe: Recipe
    run_dir: Path
    world: World
    thread: ThreadPoolExecutor
    metrics: MetricsWriter
    listeners: Listeners
    watch: Watch
    lag: LoopLag
    tell: Callable[[Start], None]
    """Tells the other ranks where the model is."""
    saved: Path | None
    """The checkpoint to go on from."""
    cold: Path | None
    """The same inside the cold start; None where `saved` is not."""

    # ---- a run that rolls out ----

    async def live(self, tasks: Tasks) -> None:
        """Cold start, evaluation, every stage, evaluation."""
        recipe, saved, token = self.recipe, self.saved, new_token(self.recipe, self.world)
        for note in tasks.left_out:
            self.listeners.note(note)
        async with open_sandbox(recipe) as sandbox:
            made, tokenizer = await self._first_model(tasks, sandbox)
            chat = chat_format(recipe, tokenizer)
            if recipe.lora.rank or is_apart(self.world, recipe.model):
                begun = saved or (self.cold if recipe.model.path != "scratch" else None)
                start = str(begun) if begun else self._hand_over(made, tokenizer)
                learned = self._load_sharded(start, token)
            else:
                learned = made()
                made = partial(_the_same, learned)
                if self.world.servers:
                    self.tell(Start(path="", token=token, date=recipe.model.date))
                tokens = recipe.rl.tokens_per_microbatch
                shard(learned, self.world, recipe.model, tokens_per_microbatch=tokens)
            team = LearnerTeam(learned, self.world, self.thread, recipe.model)
            tunes = saved is None and recipe.model.path != "scratch" and recipe.sft.steps > 0
            if tunes:
                await self._tune(team, tasks, sandbox, chat, tokenizer)
            tasks.conversations.clear()  # what follows needs none, and there may be gigabytes
            learning = Learning(
                origin=self._origin(made, tokenizer, is_tuned=tunes),
                team=team,
                thread=self.thread,
                run_dir=self.run_dir,
                note=self.listeners.note,
            )
            async with (
                backend_of(recipe).open_learning(recipe, learning) as opened,
                open_nodes(recipe, opened.others, token, opened.engine.load, self.listeners.note) as nodes,
            ):
                publisher = opened.publisher
                if tunes and publisher.version == 0:  # this engine has the model of before
                    await publisher.publish(1)
                agent = make_agent(recipe, opened.engine, chat, sandbox)
                live = Live(
                    agent=agent,
                    heldout=tasks.heldout,
                    learned=tasks.learned,
                    measure=opened.measure,
                    nodes=nodes,
                )
                run = self._assemble(team, publisher, chat, live)

                def source(
                    stage: StageConfig, tasks: Sequence[Task], state: dict[str, Any] | None
                ) -> AbstractAsyncContextManager[Source]:
                    opened.begin(stage.name)
                    return live_source(
                        recipe,
                        agent,
                        opened.engine,
                        stage,
                        tasks,
                        state,
                        next_step=run.step + 1,
                        budget=run.budget,
                        nodes=nodes,
                        journal=run.journal,
                    )

                await self._finish(run, tokenizer, tasks.stages, source)

    def _origin(self, made: Made, tokenizer: PreTrainedTokenizerBase, *, is_tuned: bool) -> InitialPolicy:
        """What the engine begins with."""
        path = self.recipe.model.path
        is_given = path != "scratch" and Path(path).is_dir()
        stays = self.saved is None and not is_tuned and is_given
        version = checkpoint.load_progress(self.saved)["version"] if self.saved else int(is_tuned)
        return InitialPolicy(
            made=made,
            tokenizer=tokenizer,
            folder=Path(path).absolute() if stays else None,
            saved=self.saved,
            version=version,
        )

    async def _tune(
        self,
        team: LearnerTeam,
        tasks: Tasks,
        sandbox: Sandbox,
        chat: ChatFormat,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        """The cold start of a model that was given."""
        rows = await self._conversations(tasks, sandbox, chat.form)
        await run_cold_start(
            team, self.recipe, chat, rows, tokenizer, self.listeners, self.metrics, self.cold
        )

    async def _first_model(self, tasks: Tasks, sandbox: Sandbox) -> tuple[Made, PreTrainedTokenizerBase]:
        """A model to load, or one from nothing after its cold start, with the run's threads set."""
        recipe, world = self.recipe, self.world
        try:
            if self.saved is not None or recipe.model.path != "scratch":
                path = str(self.saved or self.cold or recipe.model.path)
                return partial(load_model, path, recipe.model.dtype), load_tokenizer(path)
            self._set_threads(world.threads(recipe.run.threads, alone=True))
            rows = await self._conversations(tasks, sandbox, check_scratch(recipe))
            if self.cold is not None:
                model, tokenizer = load_model(str(self.cold), "float32"), load_tokenizer(str(self.cold))
            else:
                model, tokenizer = build_from_nothing(recipe, rows)
            alone = World(rank=0, size=1)
            # It learns in float32, whatever comes later.
            shard(model, alone, ModelConfig(), tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
            team = LearnerTeam(model, alone, self.thread)
            chat = chat_format(recipe, tokenizer)
            await run_cold_start(team, recipe, chat, rows, tokenizer, self.listeners, self.metrics, self.cold)
            return partial(_the_same, model), tokenizer
        finally:
            self._set_threads(world.threads(recipe.run.threads))

    def _set_threads(self, threads: int) -> None:
        self.thread.submit(checkpoint.set_threads, threads).result()

    async def _conversations(self, tasks: Tasks, sandbox: Sandbox, form: TurnForm) -> list[dict[str, Any]]:
        """What the cold start learns."""
        return tasks.conversations or await conversations_for(
            self.recipe, tasks.demonstrations, sandbox, self.listeners, form
        )

    def _hand_over(self, made: Made, tokenizer: PreTrainedTokenizerBase) -> str:
        """Where the other ranks find rank 0's model: a directory, or the name it was loaded from."""
        if self.recipe.model.path != "scratch":
            return self.recipe.model.path
        directory, model = self.run_dir / "cold_start", made()
        checkpoint.save_model(directory, model, checkpoint.full_weights(model), tokenizer)
        return str(directory)

    # ---- a run that learns from records ----

    async def recorded(self, records: Records) -> None:
        """Every stage, from the groups that another run rolled out."""
        path = str(self.saved or self.recipe.model.path)
        self._set_threads(self.world.threads(self.recipe.run.threads))
        tokenizer = load_tokenizer(path)
        chat = chat_format(self.recipe, tokenizer)
        team = LearnerTeam(self._load_sharded(path), self.world, self.thread, self.recipe.model)
        refill = ", rl.refill draws nothing" if self.recipe.rl.refill else ""
        self.listeners.note(f"learning from {records}: nothing is rolled out or evaluated{refill}")
        run = self._assemble(team, VersionCounter(), chat, None)
        no_tasks: list[list[Task]] = [[] for _ in self.recipe.stages]
        await self._finish(run, tokenizer, no_tasks, partial(recorded_source, records))

    # ---- both ----

    def _load_sharded(self, path: str, token: str | None = None) -> PreTrainedModel:
        """This rank's part of the model at `path`, which the other ranks load too."""
        if self.world.size > 1 or self.world.servers:
            self.tell(Start(path=path, token=token, date=self.recipe.model.date))
        return load_learner(path, self.world, self.recipe)

    def _assemble(self, team: LearnerTeam, publisher: Publisher, chat: ChatFormat, live: Live | None) -> Run:
        return Run(
            recipe=self.recipe,
            directory=self.run_dir,
            live=live,
            publisher=publisher,
            team=team,
            decode=chat.decode,
            metrics=self.metrics,
            journal=Journal(
                self.run_dir,
                origin_of(self.recipe),
                decode=chat.decode,
                goes_on=self.saved is not None,
                keep_steps=self.recipe.run.keep_records,
            ),
            listeners=self.listeners,
            budget=TimeBudget(),
            lag=self.lag,
            write_eval_page=write_eval_report,
            alarms=self.watch.measured,
        )

    async def _finish(
        self,
        run: Run,
        tokenizer: PreTrainedTokenizerBase,
        tasks: Sequence[Sequence[Task]],
        opened: OpenSource,
    ) -> None:
        """Run the stages and see the last checkpoint written; then the other ranks may go."""
        run.team.writer.use_tokenizer(tokenizer)
        with contextlib.closing(run.team):
            stopped: TrainingStopped | None = None
            try:
                async with run.journal:
                    await run_stages(run, tasks, opened, self.saved)
            except TrainingStopped as error:
                stopped = error
            with working("finishing the last checkpoint"):
                await run.team.finish_saving()
            tell_saved(run)
            await run.team.stop()
            if stopped is not None:
                raise stopped
