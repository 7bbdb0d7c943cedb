"""The policy before reinforcement learning: the first model, and the cold start of it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.types import TurnForm
from rocstar.sandbox.types import Sandbox
from rocstar.train.compose.model import FirstModel
from rocstar.train.compose.setup import Setup
from rocstar.train.learner.cold_start import build_from_nothing, conversations_for, run_cold_start
from rocstar.train.learner.model_io import load_model, load_tokenizer
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.plan.preflight import Tasks
from rocstar.train.recipe.model_config import ModelConfig
from rocstar.train.tasks.chat_format import chat_format, check_scratch


async def first_model(
    setup: Setup, tasks: Tasks, sandbox: Sandbox
) -> tuple[FirstModel, PreTrainedTokenizerBase]:
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
            model, tokenizer = build_from_nothing(recipe, rows)
        alone = World(rank=0, size=1)
        # The cold start learns in float32, whatever `model.sharding` asks of the later learner.
        shard(model, alone, ModelConfig(), tokens_per_microbatch=recipe.rl.tokens_per_microbatch)
        team, chat = LearnerTeam(model, alone, setup.thread), chat_format(recipe, tokenizer)
        await tune(setup, team, chat, rows, tokenizer)
        return FirstModel(path=recipe.model.path, dtype="float32", loaded=model), tokenizer
    finally:
        setup.set_threads(world.threads(recipe.run.threads))


async def tune(
    setup: Setup,
    team: LearnerTeam,
    chat: ChatFormat,
    rows: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Run the cold start on the team's model."""
    await run_cold_start(
        team, setup.recipe, chat, rows, tokenizer, setup.listeners, setup.metrics, setup.cold
    )


async def conversations(setup: Setup, tasks: Tasks, sandbox: Sandbox, form: TurnForm) -> list[dict[str, Any]]:
    """Return the rows that the cold start learns."""
    return tasks.conversations or await conversations_for(
        setup.recipe, tasks.demonstrations, sandbox, setup.listeners, form
    )
