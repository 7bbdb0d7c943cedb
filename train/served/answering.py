"""A model's engine, the endpoint over it and the folder of its records, put together.

recipe | run | checkpoint ──> recipe ──> engine and sandbox ──> Endpoint ──> clients
                                                                  └─> records, config.toml
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocstar.engine.progress.progress import working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.endpoint import Endpoint
from rocstar.engine.serve.server import ANY_PORT, open_endpoint, serve_until_signal
from rocstar.sandbox.http.access_log import access_log
from rocstar.sandbox.http.guard import reload_on_sighup
from rocstar.sandbox.http.listening import Address
from rocstar.sandbox.http.printable import printable_line
from rocstar.train.evaluation import saved_model
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import AgentConfig, Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import to_toml
from rocstar.train.record.run_directory import CONFIG, METRICS, TRAJECTORIES, claim, discard_if_unused, write_config

RESPONSE_TOKENS, TURNS = 4096, 16
"""Limits of an answer of a recipe that has no stage to take them from."""


def print_line(line: str) -> None:
    """Show the operator a line, which may quote a client."""
    with contextlib.suppress(OSError):  # a terminal that is closed does not end the server
        print(f"rocstar: {printable_line(line, 1000)}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrder:
    """The model to serve and its limits.

    Attributes:
        recipe: the recipe, with the model.
        out: the folder of records; None to keep none.
        max_tokens: limit of an answer, tool results included; None: the recipe's last stage.
        max_turns: limit of an answer; None: the recipe's last stage.
    """

    recipe: Recipe
    out: Path | None
    max_tokens: int | None = None
    max_turns: int | None = None
    address: Address = ANY_PORT
    options: ServeOptions = field(default_factory=ServeOptions)
    access_log: bool = False
    note: Callable[[str], None] = print_line
    drain_s: float = 30.0


def serve(order: ServeOrder) -> None:
    """Serve until a signal. ConfigError for what cannot be served."""
    records = "no records are kept" if order.out is None else f"records in {os.path.relpath(order.out)}"

    async def work() -> None:
        owners = order.options.owners
        with reload_on_sighup(owners, order.note):
            async with open_served(order) as (_, endpoint):
                guard = "token required" if owners else "no token, loopback only"
                order.note(f"serving {order.recipe.model.path} at {endpoint.url}/v1 ({guard})")
                order.note(f"models rocstar-agent and rocstar-raw; {records}; Ctrl-C ends it")
                await serve_until_signal(endpoint, order.drain_s, order.note)

    saved_model.run_to_end(work())


@contextlib.asynccontextmanager
async def open_served(order: ServeOrder) -> AsyncIterator[tuple[Agent, Endpoint]]:
    """Open the agent of the model, and the endpoint over it."""
    order = dataclasses.replace(order, recipe=dated(order.recipe, former=order.out))
    stages = order.recipe.stages
    tokens, turns = (stages[-1].max_response_tokens, stages[-1].max_turns) if stages else (RESPONSE_TOKENS, TURNS)
    async with contextlib.AsyncExitStack() as stack:
        if order.out is not None:
            stack.enter_context(_folder(order.out, order.recipe))
        with StatusLine(), working("loading the model"):
            recipe = saved_model.with_model(order.recipe.model_copy(update={"agent": AgentConfig()}), None)
            max_context = saved_model.max_positions(recipe)
            _, agent = await stack.enter_async_context(
                saved_model.open_engine_and_agent(
                    recipe, max_response_tokens=order.max_tokens or tokens, max_turns=order.max_turns or turns
                )
            )
        store = None
        if order.out is not None:
            store = ConversationStore(
                order.out,
                decode=agent.chat.decode,
                num_answers=saved_model.num_answers,
                temperature=order.recipe.rl.temperature,
            )
            await stack.enter_async_context(store)
        options = dataclasses.replace(order.options, max_context=max_context, isolation=isolation_of(agent))
        access = access_log(order.access_log, "rocstar.serve.access")
        opening = open_endpoint(agent, options, address=order.address, access=access, store=store, note=order.note)
        try:
            endpoint = await stack.enter_async_context(opening)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        yield agent, endpoint


def isolation_of(agent: Agent) -> str:
    """Return the isolation of its tools, or "" if the sandbox does not report it."""
    return str(getattr(getattr(agent.tools, "sandbox", None), "isolation", ""))


@contextlib.contextmanager
def _folder(out: Path, recipe: Recipe) -> Iterator[None]:
    """The folder of the records, this process's alone: new, or of the same recipe and model."""
    if (out / METRICS).exists():
        raise ConfigError(f"--out {str(out)!r} holds a run, whose records are of training; take another folder")
    with claim(out, resume=(out / TRAJECTORIES).exists(), mark=TRAJECTORIES):
        try:
            write_config(out, to_toml(recipe), is_started=(out / CONFIG).exists())
            yield
        finally:
            discard_if_unused(out)
