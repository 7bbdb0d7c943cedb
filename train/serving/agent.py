"""The agent of a recipe: sandbox, tools, judge and foreign loop around an engine (backend.py), all chosen here."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.inference.base import Inference, Sampling
from rocstar.engine.progress.progress import working
from rocstar.engine.rollout.environment import EnvironmentPlace
from rocstar.engine.rollout.rollout import Agent, Harness, RolloutLimits
from rocstar.engine.types import Task
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.extras import shell_command
from rocstar.sandbox.fabric.cli import URL_VARIABLES, redis_url
from rocstar.sandbox.pool.pool import AUTO, SandboxPool
from rocstar.sandbox.types import BatchSandbox, SandboxError, SessionSandbox
from rocstar.train.learner.model_io import load_max_positions
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import AgentConfig, Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.model_config import QUESTION
from rocstar.train.serving.backend import backend_of
from rocstar.train.tasks.environments.kinds import environment_judge, places_of
from rocstar.train.tasks.own_reward import AgentReward, make_judge
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR
from rocstar.train.tasks.tools import tool_box

if TYPE_CHECKING:
    from rocstar.sandbox.fabric import RedisFabric


FIELD = "agent.kind"
MODEL = "policy"


@contextlib.asynccontextmanager
async def open_harness(
    config: AgentConfig, sandbox: object, *, log: Path | None, max_context: int | None, **sessions: Any
) -> AsyncIterator[Harness | None]:
    """Open the gateway on a free port of the loopback interface; None for the built-in loop.

    log: the end of each program's output is appended there. sessions: `open_session` of the harness.
    """
    if config.kind == "builtin":
        yield None
        return
    # Only here: a run with the built-in loop loads no server.
    from rocstar.engine.gateway.endpoint import open_gateway
    from rocstar.engine.gateway.harness import GatewayHarness, Solve, function_agent
    from rocstar.engine.gateway.programs import run_program
    from rocstar.engine.gateway.session import Sessions

    solve: Solve = partial(run_program, config.command, log=log)
    if config.kind != "program":
        solve = function_agent(_load_function(config), sandbox, config.args)
    async with open_gateway(Sessions(), model=MODEL, max_context=max_context) as gateway:
        yield GatewayHarness(gateway, solve, **sessions)


@contextlib.asynccontextmanager
async def open_environments(
    places: Mapping[str, EnvironmentPlace], *, max_context: int | None
) -> AsyncIterator[Mapping[str, EnvironmentPlace]]:
    """Yield the places with a gateway for the agents that their servers run, if there are any."""
    if all(place.environment.solve is None for place in places.values()):
        yield places
        return
    from rocstar.engine.gateway.endpoint import open_gateway
    from rocstar.engine.gateway.harness import GatewayHarness
    from rocstar.engine.gateway.session import Sessions

    async with open_gateway(Sessions(), model=MODEL, max_context=max_context) as gateway:
        harnesses = {
            name: None if place.environment.solve is None else GatewayHarness(gateway, place.environment.solve)
            for name, place in places.items()
        }
        yield {name: replace(place, harness=harnesses[name]) for name, place in places.items()}


def check_agent(config: AgentConfig) -> None:
    """ConfigError if the command or the function does not exist, or the function cannot be called as in a run."""
    if config.kind == "program" and shutil.which(config.command[0]) is None:
        raise ConfigError(
            f"agent.command: there is no program {config.command[0]!r} on PATH; install it, or give its path"
        )
    if config.kind not in ("builtin", "program"):
        _load_function(config)


def _load_function(config: AgentConfig) -> Callable[..., Any]:
    function: Callable[..., Any] = own_code.load(config.kind, field=FIELD)
    field = f"{FIELD} = {config.kind!r}"
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"{field} is no coroutine function; write `async def solve(task, client, sandbox)`")
    try:
        inspect.signature(function).bind(None, None, None, **config.args)
    except TypeError as error:
        raise ConfigError(
            f"{field} has the signature {inspect.signature(function)}, which does not fit a call with a task, a "
            f"client, a sandbox and agent.args = {config.args!r}: {error}"
        ) from None
    return function


REDIS_VARIABLE = URL_VARIABLES[0]
WORKERS_WAIT_S = 5.0

Toolable = BatchSandbox | SessionSandbox


@contextlib.asynccontextmanager
async def open_sandbox(recipe: Recipe, *, flavours: Sequence[str] | None = None) -> AsyncIterator[Toolable]:
    """Open the sandbox of tools and grading: zygotes on this machine, or the workers of a Redis.

    `flavours`: the needed ones; default: all that the recipe may need. Raises ConfigError without a Redis, a
    worker for a needed flavour, or a zygote for one on this machine; TrainingStopped if a retry may start
    that zygote.
    """
    if recipe.tool.sandbox == "redis":
        async with open_fabric(workers_url(), flavours or needed_flavours(recipe)) as fabric:
            yield fabric
        return
    engine = recipe.engine
    is_notebook = any(choice.kind == "jupyter" for choice in recipe.tools)
    pool = SandboxPool(
        flavours or needed_flavours(recipe),
        max_live=engine.sandbox_children or None,
        max_sessions=engine.max_running * engine.num_replicas * (1 + recipe.rl.most_branches) if is_notebook else 0,
        # A trajectory ends within its own time limit: no interpreter is taken from a living one.
        lease_s=engine.trajectory_timeout_s + 60.0,
    )
    async with contextlib.AsyncExitStack() as stack:
        with working("starting the sandbox"):
            try:
                await stack.enter_async_context(pool)
            except SandboxError as error:
                ended = TrainingStopped if error.retryable else ConfigError
                raise ended(f"the sandbox cannot start: {error}; see `{shell_command('sandbox', 'doctor')}`") from None
        yield pool


def needed_flavours(recipe: Recipe) -> list[str]:
    """Return the flavours of the tools and of the judge, each once."""
    chosen = [name for name, flavour in FLAVOURS.items() if flavour.chosen]
    flavours = chosen if recipe.tool.flavour == AUTO else [recipe.tool.flavour]
    return list(dict.fromkeys([*flavours, VERIFIER_FLAVOUR]))


def workers_url() -> str:
    """Where the workers are. Never from a recipe: it may hold a password. ConfigError if it is not set."""
    url = redis_url()
    if url is None:
        raise ConfigError(
            f"tool.sandbox = 'redis': {REDIS_VARIABLE} is not set; give it the URL of the Redis that the "
            "workers (`rocstar sandbox worker`) listen at, or set tool.sandbox = 'local'"
        )
    return url


@contextlib.asynccontextmanager
async def open_fabric(url: str, flavours: Sequence[str]) -> AsyncIterator[RedisFabric]:
    """The workers at `url`, once there is one for each of the flavours."""
    from rocstar.sandbox.fabric import RedisFabric  # the extra `fabric`; preflight says so where it is missing

    async with contextlib.AsyncExitStack() as stack:
        try:
            fabric = await stack.enter_async_context(RedisFabric(url))
            missing = await _unserved(fabric, flavours)
        except (SandboxError, ValueError) as error:
            raise ConfigError(f"tool.sandbox = 'redis': {error}; see {REDIS_VARIABLE}") from None
        if missing:
            raise ConfigError(
                f"tool.sandbox = 'redis': no worker runs {', '.join(missing)}; on every node that shall run "
                f"programs start `{shell_command('sandbox', 'worker', '--flavours', ','.join(flavours))}` "
                f"with the same {REDIS_VARIABLE}"
            )
        yield fabric


async def _unserved(fabric: RedisFabric, flavours: Sequence[str]) -> list[str]:
    """The flavours that no worker serves; workers that start together with us get a moment."""
    deadline = asyncio.get_running_loop().time() + WORKERS_WAIT_S
    while True:
        served = {flavour for worker in await fabric.workers() for flavour in worker.flavours}
        missing = [name for name in flavours if name not in served]
        if not missing or asyncio.get_running_loop().time() >= deadline:
            return missing
        await asyncio.sleep(0.2)


def max_positions(recipe: Recipe) -> int | None:
    """Return the tokens of a prompt and its response together, or None if unknown."""
    is_known = recipe.model.path != "scratch" and backend_of(recipe).reads_weights
    return load_max_positions(recipe.model.path) if is_known else None


def make_agent(
    recipe: Recipe,
    inference: Inference,
    chat: ChatFormat,
    sandbox: Toolable,
    *,
    max_response_tokens: int = 1,
    max_turns: int = 1,
) -> Agent:
    """Return the agent of a recipe. The two limits are a stage's; without them the caller sets them later."""
    reward, tools = recipe.agent.reward, replace(tool_box(recipe), sandbox=sandbox)
    plain = make_judge(recipe.reward, sandbox)
    judge = plain if reward == "recipe" else AgentReward(None if reward == "program" else plain)
    return Agent(
        inference=inference,
        chat=chat,
        tools=tools,
        judge=environment_judge(recipe.environments, plain, judge),
        environments=places_of(recipe, tools),
        limits=RolloutLimits(
            max_response_tokens=max_response_tokens,
            max_turns=max_turns,
            max_tool_tokens=recipe.tool.max_output_tokens,
            timeout_s=recipe.engine.trajectory_timeout_s,
        ),
        sampling=Sampling(temperature=recipe.rl.temperature),
        prompt=partial(_task_prompt, chat, recipe.model.task_prompt),
        listens=recipe.rl.timeouts == "negative",
    )


@contextlib.asynccontextmanager
async def open_agent(
    recipe: Recipe,
    inference: Inference,
    chat: ChatFormat,
    sandbox: Toolable,
    *,
    log: Path | None = None,
    **limits: int,
) -> AsyncIterator[Agent]:
    """Open the agent of a recipe, with its gateway if it is a foreign one.

    log: the end of the output of each program is appended there. limits: as of `make_agent`.
    """
    agent, context = make_agent(recipe, inference, chat, sandbox, **limits), max_positions(recipe)
    async with (
        open_harness(recipe.agent, sandbox, log=log, max_context=context) as harness,
        open_environments(agent.environments, max_context=context) as places,
    ):
        yield replace(agent, harness=harness, environments=places)


def _task_prompt(chat: ChatFormat, around: str, task: Task) -> list[int]:
    """Ids of a task's prompt, its question within the text of model.task_prompt."""
    return chat.prompt_ids(around.replace(QUESTION, task.question), task.context)
