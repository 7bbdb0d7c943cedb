"""What rolls out: sandbox, tools and judge around an engine (engines.py). The one place to choose them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from rocstar.engine.chat import ChatFormat
from rocstar.engine.inference.base import Inference, Sampling
from rocstar.engine.progress import working
from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.tools import JupyterToolBox, PythonToolBox, ToolBox
from rocstar.sandbox.fabric import RedisFabric
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.pool import AUTO, SandboxPool
from rocstar.sandbox.types import BatchSandbox, Limits, SandboxError, SessionSandbox
from rocstar.train.config import ConfigError, Recipe
from rocstar.train.reward import VERIFIER_FLAVOUR, Judge

REDIS_VARIABLE = "ROCSTAR_REDIS_URL"
WORKERS_WAIT_S = 5.0

Toolable = BatchSandbox | SessionSandbox


@contextlib.asynccontextmanager
async def open_sandbox(recipe: Recipe) -> AsyncIterator[Toolable]:
    """What runs tools and grading: zygotes on this machine, or the workers at a Redis.

    ConfigError if there is no Redis, or no worker for a flavour that is needed.
    """
    if recipe.tool.sandbox == "redis":
        async with open_fabric(redis_url(), needed_flavours(recipe)) as fabric:
            yield fabric
        return
    tool, engine = recipe.tool, recipe.engine
    pool = SandboxPool(
        needed_flavours(recipe),
        max_live=engine.sandbox_children or None,
        max_sessions=engine.max_running * engine.num_replicas if tool.kind == "jupyter" else 0,
        # A trajectory ends within its own time limit: no interpreter is taken from a living one.
        lease_s=engine.trajectory_timeout_s + 60.0,
    )
    async with contextlib.AsyncExitStack() as stack:
        with working("starting the sandbox"):
            await stack.enter_async_context(pool)
        yield pool


def needed_flavours(recipe: Recipe) -> list[str]:
    """What the tool may ask for, and what grades answers; each once."""
    chosen = [name for name, flavour in FLAVOURS.items() if flavour.chosen]
    flavours = chosen if recipe.tool.flavour == AUTO else [recipe.tool.flavour]
    return list(dict.fromkeys([*flavours, VERIFIER_FLAVOUR]))


def redis_url() -> str:
    """Where the workers are. Never from a recipe: it may hold a password. ConfigError if it is not set."""
    url = os.environ.get(REDIS_VARIABLE, "")
    if not url:
        raise ConfigError(
            f"tool.sandbox = 'redis': {REDIS_VARIABLE} is not set; give it the URL of the Redis that the "
            "workers (`rocstar sandbox worker`) listen at, or set tool.sandbox = 'local'"
        )
    return url


@contextlib.asynccontextmanager
async def open_fabric(url: str, flavours: Sequence[str]) -> AsyncIterator[RedisFabric]:
    """The workers at `url`, once there is one for each of the flavours."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            fabric = await stack.enter_async_context(RedisFabric(url))
            missing = await _unserved(fabric, flavours)
        except (SandboxError, ValueError) as error:
            raise ConfigError(f"tool.sandbox = 'redis': {error}; see {REDIS_VARIABLE}") from None
        if missing:
            raise ConfigError(
                f"tool.sandbox = 'redis': no worker runs {', '.join(missing)}; on every node that shall run "
                f"programs start `rocstar sandbox worker --flavours {','.join(flavours)}` with the same "
                f"{REDIS_VARIABLE}"
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


def tool_box(recipe: Recipe, sandbox: Toolable) -> ToolBox:
    tool = recipe.tool
    limits = Limits(wall_s=tool.wall_s, cpu_s=max(1, int(tool.wall_s) + 1), memory_bytes=tool.memory_mb << 20)
    common: dict[str, Any] = {
        "limits": limits,
        "flavour": tool.flavour,
        "style": tool.text,
        "max_parallel_calls": tool.max_parallel_calls,
    }
    if tool.kind == "jupyter":
        return JupyterToolBox(sandbox=cast("SessionSandbox", sandbox), **common)
    return PythonToolBox(sandbox=sandbox, **common)


def make_agent(
    recipe: Recipe,
    inference: Inference,
    chat: ChatFormat,
    sandbox: Toolable,
    *,
    max_response_tokens: int = 1,
    max_turns: int = 1,
) -> Agent:
    """The agent of a recipe. The two limits are a stage's; without them somebody sets them later."""
    return Agent(
        inference=inference,
        chat=chat,
        tools=tool_box(recipe, sandbox),
        judge=Judge(sandbox),
        limits=RolloutLimits(
            max_response_tokens=max_response_tokens,
            max_turns=max_turns,
            max_tool_tokens=recipe.tool.max_output_tokens,
            timeout_s=recipe.engine.trajectory_timeout_s,
        ),
        sampling=Sampling(temperature=recipe.rl.temperature),
    )
