"""A model on disk without a learner: opened as an agent, or evaluated."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import uvloop

from rocstar.engine.inference.base import Sampling
from rocstar.engine.progress import working
from rocstar.engine.rollout import Agent
from rocstar.engine.status import Status
from rocstar.engine.types import Group, Task
from rocstar.train import checkpoint
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.between_steps import EVAL_SEED
from rocstar.train.config import ConfigError, Recipe, StageConfig, to_toml
from rocstar.train.determinism import deterministic_torch
from rocstar.train.engines import open_engine_at
from rocstar.train.evaluate import Evaluation, attempt, summarise
from rocstar.train.evaluation_files import summary, write_attempts
from rocstar.train.manifest import recipe_hash, recorded, versions
from rocstar.train.model_io import check_model_path, check_vocabulary, load_tokenizer
from rocstar.train.preflight import chat_format, check_engine, load_all_tasks
from rocstar.train.run_directory import CONFIG, discard_if_unused, write_json
from rocstar.train.source import Engine
from rocstar.train.targets import make_folder, write_or_rescue

T = TypeVar("T")
ATTEMPTS, SUMMARY = "attempts.jsonl", "summary.json"
"""What `eval --out` leaves beside config.toml and manifest.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation with what it is of."""

    result: Evaluation
    seed: int
    model: str
    recipe: str
    """The hash of the resolved recipe, `model` in it."""

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"seed": self.seed, "model": self.model, "recipe": self.recipe}


def evaluate_model(recipe: Recipe, model: str | None, *, limit: int, out: Path | None = None) -> Evaluated:
    """avg@k and pass@k on the recipe's held-out tasks; with `out` the attempts and the numbers in a folder.

    Raises:
        ConfigError: there are no such tasks, no such model, or `out` holds something or cannot be written.
    """
    with _evaluation(recipe, model, limit=limit, out=out) as work:
        return run_to_end(work)


async def evaluate_in_loop(
    recipe: Recipe, model: str | None, *, limit: int = 0, out: Path | None = None
) -> Evaluated:
    """`evaluate_model` in a loop that runs already."""
    with _evaluation(recipe, model, limit=limit, out=out) as work:
        return await work


@contextlib.contextmanager
def _evaluation(
    recipe: Recipe, model: str | None, *, limit: int, out: Path | None
) -> Iterator[Coroutine[None, None, Evaluated]]:
    """The work, to be run to its end inside."""
    if out is None:
        with _evaluation_into(None, recipe, model, limit) as work:
            yield work
        return
    make_folder(out)
    try:
        with _evaluation_into(out, recipe, model, limit) as work:
            yield work
    finally:
        if not (out / ATTEMPTS).exists():
            discard_if_unused(out)


@contextlib.contextmanager
def _evaluation_into(
    out: Path | None, recipe: Recipe, model: str | None, limit: int
) -> Iterator[Coroutine[None, None, Evaluated]]:
    with Status(), working("loading the tasks"):
        tasks = load_all_tasks(recipe, model).heldout
    if not tasks:
        raise ConfigError("the recipe has no eval.data; add [eval.data] with the tasks to evaluate on")
    tasks = tasks[:limit] if limit else tasks
    recipe, _ = with_model(recipe, model), last_stage(recipe)
    with contextlib.ExitStack() as stack:
        if out is not None:
            (out / CONFIG).write_text(to_toml(recipe), encoding="utf-8")
            stack.enter_context(recorded(out, recipe, world_size=1))
        stack.enter_context(Status())
        yield _evaluate(recipe, tasks, out)


async def _evaluate(recipe: Recipe, tasks: Sequence[Task], out: Path | None) -> Evaluated:
    config, stage = recipe.eval, last_stage(recipe)
    tokens = config.max_response_tokens or stage.max_response_tokens
    turns = config.max_turns or stage.max_turns
    async with open_agent(recipe, None, tokens, turns) as agent:
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=config.temperature))
        seed, k = recipe.run.seed + EVAL_SEED, config.samples_per_task
        groups = await attempt(agent, tasks, k=k, seed=seed, step=0)
        result = summarise(groups, k=k) if out is None else _keep(out, groups, recipe, agent)
    path = recipe.model.path
    return Evaluated(result=result, seed=recipe.run.seed, model=path, recipe=recipe_hash(recipe))


def _keep(out: Path, groups: list[Group], recipe: Recipe, agent: Agent) -> Evaluation:
    """Write the attempts, then their summary, which is returned."""

    def result() -> Evaluation:
        return summarise(groups, k=recipe.eval.samples_per_task)

    def write(folder: Path) -> None:
        write_attempts(folder / ATTEMPTS, groups, agent.chat.decode)
        facts = {"model": recipe.model.path, "recipe": recipe_hash(recipe), "versions": versions()}
        write_json(folder / SUMMARY, summary(result(), seed=recipe.run.seed, step=0) | facts)

    write_or_rescue(out, write)
    return result()


def with_model(recipe: Recipe, model: str | None) -> Recipe:
    """The recipe with the model that was meant. ConfigError if there is no model to load."""
    path = model_on_disk(recipe, model)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path})})


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
