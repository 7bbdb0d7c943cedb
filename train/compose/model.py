"""The first model of a run with its cold start, and the learners on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.chat.callforms import FORMS
from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.types import TurnForm
from rocstar.sandbox.types import Sandbox
from rocstar.train.compose.setup import Setup
from rocstar.train.learner import checkpoint
from rocstar.train.learner.cold_start import build_tokenizer, run_cold_start
from rocstar.train.learner.model_io import load_model, load_tokenizer
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.sharded_loading import load_learner
from rocstar.train.learner.sharding import is_apart, shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.plan.preflight import Tasks
from rocstar.train.recipe.model_config import ModelConfig
from rocstar.train.serving.nodes import Start
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
        await tune(setup, team, chat, rows, tokenizer)
        return FirstModel(path=recipe.model.path, dtype="float32", loaded=model), tokenizer
    finally:
        setup.set_threads(world.threads(recipe.run.threads))


async def tune(
    setup: Setup, team: LearnerTeam, chat: ChatFormat, rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Run the cold start on the team's model."""
    await run_cold_start(team, setup.recipe, chat, rows, tokenizer, setup.listeners, setup.metrics, setup.cold)


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
        speaks=not FORMS[form.calls].at_start,
    )
    setup.listeners.note(f"cold start: {len(rows)} conversations, tool results from real executions")
    return rows
