"""Parts of a recipe alone: evaluate a model, or roll out and save trajectories."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
import uvloop

from rocstar.engine.group import run_groups
from rocstar.engine.inference.base import Sampling
from rocstar.engine.record import to_record, write_records
from rocstar.engine.rollout import Agent
from rocstar.engine.types import Group
from rocstar.train import checkpoint
from rocstar.train.agent import make_agent, open_engine, open_sandbox
from rocstar.train.between_steps import EVAL_SEED
from rocstar.train.config import ConfigError, Recipe, StageConfig
from rocstar.train.evaluate import Evaluation, evaluate
from rocstar.train.model_io import check_model_path, check_vocabulary, load_model, load_tokenizer
from rocstar.train.preflight import chat_format, load_all_tasks
from rocstar.train.selection import policy_text, select
from rocstar.train.step_metrics import rollout_metrics
from rocstar.train.verify import num_answers

T = TypeVar("T")


def evaluate_model(recipe: Recipe, model: str | None, *, limit: int) -> Evaluation:
    """avg@k and pass@k on the recipe's held-out tasks. ConfigError if there are none."""
    tasks = load_all_tasks(recipe).heldout
    if not tasks:
        raise ConfigError("the recipe has no eval.data; add [eval.data] with the tasks to evaluate on")
    tasks = tasks[:limit] if limit else tasks
    config = recipe.eval
    stage = _last_stage(recipe)

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

    return _run(everything())


def rollout_model(recipe: Recipe, model: str | None, *, out: Path, limit: int) -> dict[str, float]:
    """Roll out groups on the first stage's tasks; write records; return their metrics."""
    _last_stage(recipe)
    stage, tasks = recipe.stages[0], load_all_tasks(recipe).stages[0][:limit]
    if not out.resolve().parent.is_dir() or out.is_dir():
        raise ConfigError(f"--out {str(out)!r} cannot be written: give a file in a folder that exists")
    rl, seed = recipe.rl, recipe.run.seed

    async def everything() -> dict[str, float]:
        async with open_agent(recipe, model, stage.max_response_tokens, stage.max_turns) as agent:
            groups: list[Group] = []
            size = rl.rollouts_per_task
            async for group in run_groups(agent, tasks, size=size, seed=seed, step=0, max_groups=len(tasks)):
                groups.append(group)
            selection = select(groups, rl, seed=seed, step=0)
            decode = agent.chat.decode
            write_records(
                out,
                (
                    to_record(t, v, stage=stage.name, num_answers=num_answers(policy_text(t)), decode=decode)
                    for t, v in selection.verdicts
                ),
            )
            return rollout_metrics(selection)

    return _run(everything())


def _last_stage(recipe: Recipe) -> StageConfig:
    if not recipe.stages:
        raise ConfigError("the recipe has no [[stages]]: there are no limits to roll out under")
    return recipe.stages[-1]


def _run(work: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.asynccontextmanager
async def open_agent(
    recipe: Recipe, model: str | None, max_response_tokens: int, max_turns: int
) -> AsyncIterator[Agent]:
    """The agent of a recipe around a model on disk, with its sandbox and engine running."""
    path = model or recipe.model.path
    if path == "scratch":
        raise ConfigError("model.path is 'scratch'; pass --model with a checkpoint directory")
    check_model_path(path)
    checkpoint.set_threads(recipe.run.threads)
    tokenizer = load_tokenizer(path)
    chat = chat_format(recipe, tokenizer)
    check_vocabulary(path, tokenizer)
    policy = load_model(path, recipe.model.dtype)
    with ThreadPoolExecutor(1, thread_name_prefix="device") as thread:
        thread.submit(checkpoint.set_threads, recipe.run.threads or torch.get_num_threads()).result()
        async with open_sandbox(recipe) as sandbox, open_engine(recipe, policy, thread) as engine:
            yield make_agent(
                recipe,
                engine,
                chat,
                sandbox,
                max_response_tokens=max_response_tokens,
                max_turns=max_turns,
            )
