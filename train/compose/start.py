"""Begin a run: the checks of recipe, machine and data, the run's folder, and a run that rolls out or reads."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.chat.callforms import FORMS
from rocstar.engine.progress.progress import working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.types import Task, TurnForm
from rocstar.sandbox.types import Sandbox
from rocstar.train.compose.setup import Begun, Setup, TrainOrder
from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
from rocstar.train.groups.from_rollouts import Records, VersionCounter
from rocstar.train.groups.live_source import live_source
from rocstar.train.groups.source import Source
from rocstar.train.learner import checkpoint
from rocstar.train.learner.cold_start import build_tokenizer, run_cold_start
from rocstar.train.learner.model_io import load_model, load_tokenizer
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.sharding import is_apart, load_learner, shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import Roles, World
from rocstar.train.plan.preflight import Findings, Tasks, check_start
from rocstar.train.plan.prompts import dated
from rocstar.train.plan.resume import bytes_to_keep, check_same_kind, complete, take_recipe
from rocstar.train.reading.view.export_page import write_report
from rocstar.train.recipe.model_config import ModelConfig
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.manifest import ConsoleLog, recorded
from rocstar.train.record.run_directory import REPORT, claim, cold_start_of, discard_if_unused
from rocstar.train.run import Live, Run
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import InitialPolicy, Learning, backend_of
from rocstar.train.serving.nodes import Start, open_nodes
from rocstar.train.serving.placement import hide_servers, recipe_of_serving_node
from rocstar.train.tasks.chat_format import chat_format, check_scratch
from rocstar.train.tasks.demonstrations import make_demonstrations
from rocstar.train.tasks.tools import demonstrated_tool


@dataclass(slots=True, kw_only=True)
class FirstModel:
    """A model in memory, or the place from which it is loaded when it is needed."""

    path: str
    dtype: Literal["float32", "bfloat16"]
    loaded: PreTrainedModel | None = None

    def load(self) -> PreTrainedModel:
        """Return the model in memory, or a new copy from `path`."""
        return load_model(self.path, self.dtype) if self.loaded is None else self.loaded


def make_team(setup: Setup, model: FirstModel, tokenizer: PreTrainedTokenizerBase, token: str | None) -> LearnerTeam:
    """Return the learners of all ranks on `model`; without adapters or shards rank 0 learns in that copy."""
    recipe, world = setup.recipe, setup.world
    is_scratch = recipe.model.path == "scratch"
    if recipe.lora.rank or is_apart(world, recipe.model):
        begun = setup.saved or (None if is_scratch else setup.cold)
        if begun:
            path = str(begun)
        elif is_scratch:  # the other ranks find rank 0's model in a folder
            folder, whole = setup.run_dir / "cold_start", model.load()
            checkpoint.save_model(folder, whole, checkpoint.full_weights(whole), tokenizer)
            path = str(folder)
        else:
            path = recipe.model.path
        return load_team(setup, path, token)
    model.loaded = model.load()
    if world.servers:
        setup.send(Start(path="", token=token, date=recipe.model.date))
    shard(model.loaded, world, recipe.model, tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
    return LearnerTeam(model.loaded, world, setup.thread, recipe.model)


def load_team(setup: Setup, path: str, token: str | None = None) -> LearnerTeam:
    """Return the learners of all ranks, each with its part of the model at `path`."""
    recipe, world = setup.recipe, setup.world
    if world.size > 1 or world.servers:
        setup.send(Start(path=path, token=token, date=recipe.model.date))
    return LearnerTeam(load_learner(path, world, recipe), world, setup.thread, recipe.model)


async def first_model(setup: Setup, tasks: Tasks, sandbox: Sandbox) -> tuple[FirstModel, PreTrainedTokenizerBase]:
    """Return the model of the run's beginning: one to load, or one from nothing after its cold start."""
    recipe, world = setup.recipe, setup.world
    try:
        if setup.saved is not None or recipe.model.path != "scratch":
            path = str(setup.saved or setup.cold or recipe.model.path)
            return FirstModel(path=path, dtype=recipe.model.dtype), load_tokenizer(path)
        setup.set_threads(world.threads(recipe.run.threads, alone=True))
        rows = await conversations(setup, tasks, sandbox, check_scratch(recipe))
        if setup.cold is not None:
            model, tokenizer = load_model(str(setup.cold), "float32"), load_tokenizer(str(setup.cold))
        else:
            tokenizer = build_tokenizer(recipe, rows)
            model = build_model(recipe.model.scratch, len(tokenizer), seed=recipe.run.seed)
        alone = World(rank=0, size=1)
        # The cold start learns in float32, whatever `model.sharding` asks of the later learner.
        shard(model, alone, ModelConfig(), tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
        team, chat = LearnerTeam(model, alone, setup.thread), chat_format(recipe, tokenizer)
        await run_cold_start(team, recipe, chat, rows, tokenizer, setup.listeners, setup.metrics, setup.cold)
        return FirstModel(path=recipe.model.path, dtype="float32", loaded=model), tokenizer
    finally:
        setup.set_threads(world.threads(recipe.run.threads))


async def conversations(setup: Setup, tasks: Tasks, sandbox: Sandbox, form: TurnForm) -> list[dict[str, Any]]:
    """Return the rows that the cold start learns: the recipe's own, or demonstrations on tasks.

    `form`: how the policy's turns are read; it says whether a call may have text in front.
    """
    if tasks.conversations:
        return tasks.conversations
    rows = await make_demonstrations(
        tasks.demonstrations,
        setup.recipe.sft.num_demonstrations,
        seed=setup.recipe.run.seed,
        sandbox=sandbox,
        tool=demonstrated_tool(setup.recipe),
        noise=setup.recipe.sft.noise,
        speaks=not FORMS[form.calls].at_start,
    )
    setup.listeners.note(f"cold start: {len(rows)} conversations, tool results from real executions")
    return rows


@contextlib.asynccontextmanager
async def open_live(setup: Setup, tasks: Tasks) -> AsyncIterator[Run]:
    """Build a run on `tasks`; its cold start is over when the block begins."""
    recipe = setup.recipe
    token = secrets.token_hex(32) if setup.world.has_nodes else None  # of the services of other nodes
    for note in tasks.left_out:
        setup.listeners.note(note)
    async with open_sandbox(recipe) as sandbox:
        model, tokenizer = await first_model(setup, tasks, sandbox)
        chat = chat_format(recipe, tokenizer)
        team = make_team(setup, model, tokenizer, token)
        is_tuned = setup.saved is None and recipe.model.path != "scratch" and recipe.sft.steps > 0
        if is_tuned:
            rows = await conversations(setup, tasks, sandbox, chat.form)
            await run_cold_start(team, recipe, chat, rows, tokenizer, setup.listeners, setup.metrics, setup.cold)
        tasks.conversations.clear()  # not needed any more, and possibly gigabytes
        learning = Learning(
            origin=_initial_policy(setup, model, tokenizer, is_tuned=is_tuned),
            team=team,
            thread=setup.thread,
            run_dir=setup.run_dir,
            note=setup.listeners.note,
        )
        async with (
            backend_of(recipe).open_learning(recipe, learning) as opened,
            open_nodes(recipe, opened.others, token, opened.engine.load, setup.listeners.note) as nodes,
            open_agent(recipe, opened.engine, chat, sandbox, log=setup.run_dir / "logs" / "agent.log") as agent,
        ):
            if is_tuned and opened.publisher.version == 0:  # this engine has the model before the cold start
                await opened.publisher.publish(1)
            team.writer.use_tokenizer(tokenizer)
            live = Live(agent=agent, heldout=tasks.heldout, learned=tasks.learned, measure=opened.measure, nodes=nodes)

            def open_source(
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

            run = setup.run(team, opened.publisher, chat, tasks.stages, open_source, live)
            yield run


def _initial_policy(
    setup: Setup, model: FirstModel, tokenizer: PreTrainedTokenizerBase, *, is_tuned: bool
) -> InitialPolicy:
    """Return the policy with which the engine begins."""
    path, saved = setup.recipe.model.path, setup.saved
    is_given = path != "scratch" and Path(path).is_dir()
    return InitialPolicy(
        made=model.load,
        tokenizer=tokenizer,
        folder=Path(path).absolute() if is_given and saved is None and not is_tuned else None,
        saved=saved,
        version=checkpoint.load_progress(saved)["version"] if saved else int(is_tuned),
    )


def checked(order: TrainOrder) -> tuple[TrainOrder, Findings] | None:
    """Return the order with the recipe of this node, and what its checks loaded.

    None if the run is complete, which rank 0 prints. ConfigErrors for all that is missing.
    """
    is_live = order.rollouts is None
    recipe = dated(order.recipe, former=order.run_dir if order.resume else order.rollouts)
    message = complete(recipe, order.run_dir, live=is_live) if order.resume else None
    if message:
        if os.environ.get("RANK", "0") == "0":
            print(message, file=sys.stderr)
            if not (order.run_dir / REPORT).exists():
                write_report(order.run_dir)
        return None
    if Roles.of().serves:
        recipe = recipe_of_serving_node(recipe, torch.cuda.device_count())
    elif is_live:
        hide_servers(recipe.engine)
    check = partial(check_start, resume=order.resume, rollouts=order.rollouts, built_in=load_tasks_of)
    with StatusLine(), working("checking the recipe and its data"):
        found = check(recipe, order.run_dir)
    found.refuse()
    for line in found.tasks.unreadable if found.tasks else ():
        print(line, file=sys.stderr)
    return replace(order, recipe=recipe, callbacks=(*found.callbacks, *order.callbacks)), found


@contextlib.contextmanager
def begin_run(order: TrainOrder, world: World, found: Findings) -> Iterator[Begun]:
    """Claim the folder for the block; write the report after it. `found`: from `checked`.

    The other ranks hear that there is no run unless the block sent them the start message.
    """
    sent = False

    def send(start: Start) -> None:
        nonlocal sent
        sent = True
        world.broadcast(start)

    recipe, run_dir = order.recipe, order.run_dir
    try:
        if found.records is not None:
            recipe, build = found.records.recipe, partial(_open_recorded, records=found.records)
        else:
            assert found.tasks is not None
            build = partial(open_live, tasks=found.tasks)
        with claim(run_dir, resume=order.resume):
            try:
                saved = checkpoint.latest(run_dir) if order.resume else None
                cold = checkpoint.latest(cold_start_of(run_dir)) if order.resume and saved is None else None
                if saved is not None:
                    check_same_kind(checkpoint.load_progress(saved), live=order.rollouts is None)
                with ConsoleLog(run_dir) as log:
                    if changes := take_recipe(recipe, run_dir, saved or cold):
                        log.write(changes)
                        print(changes, file=sys.stderr)
                    with recorded(run_dir, recipe, world_size=world.size) as start:
                        yield Begun(
                            order=replace(order, recipe=recipe),
                            build=build,
                            saved=saved,
                            cold=cold,
                            keep_bytes=bytes_to_keep(run_dir, saved or cold) if order.resume else None,
                            log=log,
                            start=start,
                            send=send,
                        )
                    with StatusLine(log=log), working("writing the report"):
                        write_report(run_dir)
            finally:
                discard_if_unused(run_dir)
    finally:
        if not sent:
            world.broadcast(None)


@contextlib.asynccontextmanager
async def _open_recorded(setup: Setup, records: Records) -> AsyncIterator[Run]:
    """Build a run that learns from the records of another run: its model alone."""
    recipe, path = setup.recipe, str(setup.saved or setup.recipe.model.path)
    setup.set_threads(setup.world.threads(recipe.run.threads))
    tokenizer = load_tokenizer(path)
    chat, team = chat_format(recipe, tokenizer), load_team(setup, path)
    team.writer.use_tokenizer(tokenizer)
    refill = ", rl.refill draws nothing" if recipe.rl.refill else ""
    setup.listeners.note(f"learning from {records}: nothing is rolled out or evaluated{refill}")
    tasks: list[list[Task]] = [[] for _ in recipe.stages]
    yield setup.run(team, VersionCounter(), chat, tasks, lambda stage, tasks, state: contextlib.nullcontext(records))
