"""The foreign agent of a recipe, [agent], with the gateway where it finds the policy."""

from __future__ import annotations

import contextlib
import inspect
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rocstar.engine.rollout.environment import EnvironmentPlace
from rocstar.engine.rollout.rollout import Harness
from rocstar.train.recipe import own_code
from rocstar.train.recipe.agent_config import AgentConfig
from rocstar.train.recipe.errors import ConfigError

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
