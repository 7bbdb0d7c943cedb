"""A model on disk without a learner: opened as an agent, or evaluated."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import uvloop

from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout import Agent
from rocstar.train import checkpoint
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.between_steps import EVAL_SEED
from rocstar.train.config import ConfigError, Recipe, StageConfig
from rocstar.train.determinism import deterministic_torch
from rocstar.train.engines import open_engine_at
from rocstar.train.evaluate import Evaluation, evaluate
from rocstar.train.model_io import check_model_path, check_vocabulary, load_tokenizer
from rocstar.train.preflight import chat_format, check_engine, load_all_tasks
from rocstar.train.source import Engine

T = TypeVar("T")


def evaluate_model(recipe: Recipe, model: str | None, *, limit: int) -> Evaluation:
    """avg@k and pass@k on the recipe's held-out tasks. ConfigError if there are none."""
    tasks = load_all_tasks(recipe, model).heldout
    if not tasks:
        raise ConfigError("the recipe has no eval.data; add [eval.data] with the tasks to evaluate on")
    tasks = tasks[:limit] if limit else tasks
    config = recipe.eval
    stage = last_stage(recipe)

    async def work(agent: Agent) -> Evaluation:
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=config.temperature))
        seed = recipe.run.seed + EVAL_SEED
        result, _ = await evaluate(agent, tasks, k=config.samples_per_task, seed=seed, step=0)
        return result

    async def everything() -> Evaluation:
        tokens, turns = (
            config.max_response_tokens or stage.max_response_tokens,
            config.max_turns or stage.max_turns,
        )
        async with open_agent(recipe, model, tokens, turns) as agent:
            return await work(agent)

    return run_to_end(everything())


def last_stage(recipe: Recipe) -> StageConfig:
    if not recipe.stages:
        raise ConfigError("the recipe has no [[stages]]: there are no limits to roll out under")
    return recipe.stages[-1]


def run_to_end(work: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def model_on_disk(recipe: Recipe, model: str | None) -> str:
    """The path that was meant. ConfigError if there is no model to load."""
    path = model or recipe.model.path
    if path == "scratch":
        raise ConfigError("model.path is 'scratch'; pass --model with a checkpoint directory")
    check_model_path(path)
    return path


@contextlib.asynccontextmanager
async def open_agent(
    recipe: Recipe, model: str | None, max_response_tokens: int, max_turns: int
) -> AsyncIterator[Agent]:
    """The agent of a recipe around a model on disk, with its sandbox and engine running."""
    async with open_engine_and_agent(recipe, model, max_response_tokens, max_turns) as (_, agent):
        yield agent


@contextlib.asynccontextmanager
async def open_engine_and_agent(
    recipe: Recipe, model: str | None, max_response_tokens: int, max_turns: int
) -> AsyncIterator[tuple[Engine, Agent]]:
    """The same, with the engine that the agent talks to."""
    path = model_on_disk(recipe, model)
    checkpoint.set_threads(recipe.run.threads)
    tokenizer = load_tokenizer(path)
    chat = chat_format(recipe, tokenizer)
    check_vocabulary(path, tokenizer)
    check_engine(recipe)
    with (
        deterministic_torch(recipe.engine.deterministic),
        ThreadPoolExecutor(1, thread_name_prefix="device") as thread,
    ):
        thread.submit(checkpoint.set_threads, recipe.run.threads or torch.get_num_threads()).result()
        async with open_sandbox(recipe) as sandbox, open_engine_at(recipe, path, thread) as engine:
            yield (
                engine,
                make_agent(
                    recipe,
                    engine,
                    chat,
                    sandbox,
                    max_response_tokens=max_response_tokens,
                    max_turns=max_turns,
                ),
            )
