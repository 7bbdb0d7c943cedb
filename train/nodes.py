"""Rollouts on several nodes: what the first rank of every node does beside learning.

    rank 0 ── Start(path, token) ──> every rank: its part of the learner
      │                              first rank of another node: sandbox, engine, agent -> NodeService
      │<── NodeAddress, by rank ─────┘      learner thread: LearnerTeam.follow
      └── Nodes: groups over HTTP, at home in this process

Who waits: rank 0 once, for every node to serve; later as engine/nodes/nodes.py says. A leader's event loop
waits for requests and for its learner thread, which waits for rank 0's verbs. New weights reach a leader's
engine through the `full_weights` verb, in which every rank takes part anyway; it returns when they serve.
Servers (SGLang) of other nodes take orders instead: server_nodes.py.
Whatever ends the learner thread or the service ends the process, with a code that is not 0 unless rank 0 said
stop: torchrun then ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvloop
from torch import Tensor

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes.client import HttpNode, node_session
from rocstar.engine.nodes.grants import FILL, PART
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.nodes.service import NodeService, serving
from rocstar.engine.rollout import Agent
from rocstar.engine.waits import waiting
from rocstar.train import checkpoint
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.config import ConfigError, Recipe, TrainingStopped
from rocstar.train.engines import open_embedded
from rocstar.train.model_io import load_model, load_tokenizer
from rocstar.train.node_address import START_TIMEOUT_S, NodeAddress, http_url, own_address
from rocstar.train.preflight import chat_format
from rocstar.train.server_nodes import Orders, serve_node
from rocstar.train.shared_threads import SharedThreads
from rocstar.train.team import LearnerTeam, Serve, World, placed, shard

T = TypeVar("T")
Weights = list[tuple[str, Tensor]]
Publish = Callable[[int, Weights], Coroutine[Any, Any, None]]

PUBLISH_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What rank 0 tells the others. token: of the nodes' services; None where no other node rolls out."""

    path: str
    token: str | None = None


def new_token(recipe: Recipe, world: World) -> str | None:
    """A secret of this run, where other nodes roll out."""
    return secrets.token_hex(32) if world.has_nodes else None


# ---- rank 0 ----


async def gather_nodes(recipe: Recipe, world: World, thread: ThreadPoolExecutor) -> list[NodeAddress]:
    """Where the other nodes serve, once they do; a collective that `follow` answers. None where there are no
    others, or where they start servers, which rank 0 orders later (engines.py).

    TrainingStopped: a node could not start.
    """
    if not world.has_nodes or recipe.engine.kind == "sglang":
        return []
    loop = asyncio.get_running_loop()
    async with waiting(
        "the run", "every node to start", kind="start", deadline=loop.time() + START_TIMEOUT_S
    ):
        told = await loop.run_in_executor(thread, world.gather, None)
    addresses = [address for address in told if address is not None]
    if problems := [f"rank {a.rank}: its node cannot roll out: {a.problem}" for a in addresses if a.problem]:
        raise TrainingStopped("; ".join(problems))
    return addresses


@contextlib.asynccontextmanager
async def open_nodes(
    recipe: Recipe,
    addresses: Sequence[NodeAddress],
    token: str | None,
    home_load: Callable[[], KvLoad],
    note: Callable[[str], None],
) -> AsyncIterator[Nodes | None]:
    """This node and the others; None where there are none."""
    if token is None:
        yield None
        return
    async with node_session(token) as session:
        others = [HttpNode(str(k), address.url, session) for k, address in enumerate(addresses, 1)]
        async with Nodes(
            others,
            home_load=home_load,
            max_groups=max_groups_of(recipe),
            part=None if recipe.engine.deterministic else PART,
            fill=FILL if recipe.engine.kind == "sglang" else 1.0,
            note=note,
        ) as nodes:
            note(f"{nodes.num_up} nodes roll out: this one and {', '.join(a.url for a in addresses)}")
            yield nodes


def max_groups_of(recipe: Recipe) -> int | None:
    """Orders of one node at a time: what fills its slots twice, so that the last of a group leave none empty,
    and the rest can still go to whichever node is done first.

    With `engine.deterministic` one: what shares a forward is then no matter of timing, nor of how many nodes
    there are. None for servers: their KV says how much they have (FILL).
    """
    if recipe.engine.deterministic:
        return 1
    if recipe.engine.kind == "sglang":
        return None
    slots = recipe.engine.max_running * recipe.engine.num_replicas
    return max(1, math.ceil(2 * slots / min(PART, recipe.rl.rollouts_per_task)))


# ---- the other ranks ----


def follow(recipe: Recipe, world: World) -> None:
    """The whole life of a rank that is not 0."""
    start: Start | None = world.broadcast(None)
    if start is None:  # rank 0 could not begin; its message says why
        return
    model = load_model(start.path, "float32")
    shard(model, world, recipe.model)
    with ThreadPoolExecutor(1) as thread:
        team = LearnerTeam(model, world, thread)
        if start.token is not None and world.local_rank == 0:
            _lead(recipe, world, team, start, start.token)
            return
        if start.token is not None and recipe.engine.kind == "embedded":
            world.gather(None)
        team.follow()


def _lead(recipe: Recipe, world: World, team: LearnerTeam, start: Start, token: str) -> None:
    """Roll out and learn, until rank 0 says stop. Anything else leaves at once: a learner thread that is
    stuck in a collective would keep an orderly exit waiting; children die with us."""
    code = 1
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(recipe, world, team, start, token))
        return
    except KeyboardInterrupt:
        code = 130
    except ConfigError as error:
        print(f"rocstar: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


async def _serve(recipe: Recipe, world: World, team: LearnerTeam, start: Start, token: str) -> None:
    threads = world.threads(recipe.run.threads)

    def in_learner(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        def run() -> T:
            checkpoint.set_threads(threads)
            return work(*arguments)

        return in_daemon(run, name="learner")

    if recipe.engine.kind == "sglang":
        orders = Orders()
        team.obey = orders
        await serve_node(recipe, team, in_learner(team.follow), orders, partial(_open_service, token))
        return
    told = False
    try:
        async with _service(recipe, team, start, token, threads) as (publish, url):
            told = True
            await in_learner(world.gather, NodeAddress(rank=world.rank, url=url))
            team.serve = serve_in(publish, asyncio.get_running_loop())
            await in_learner(team.follow)
    except Exception as error:
        if not told:
            problem = f"{type(error).__name__}: {error}"
            await in_learner(world.gather, NodeAddress(rank=world.rank, problem=problem))
        raise


@contextlib.asynccontextmanager
async def _service(
    recipe: Recipe, team: LearnerTeam, start: Start, token: str, threads: int
) -> AsyncIterator[tuple[Publish, str]]:
    """This node's agent behind its service; yields how to give it weights, and the service's address."""
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        thread.submit(checkpoint.set_threads, threads).result()
        team.learner.learning = SharedThreads(thread, threads).learning
        async with open_sandbox(recipe) as sandbox:
            model = placed(load_model(start.path, recipe.model.dtype), recipe.model)
            chat = chat_format(recipe, load_tokenizer(start.path))
            async with open_embedded(recipe, model, thread) as (engine, engines):

                async def publish(version: int, weights: Weights) -> None:
                    with contextlib.ExitStack() as held:
                        for one in engines:
                            held.enter_context(one.hold())
                        await engine.publish(version, weights)

                agent = make_agent(recipe, engine, chat, sandbox)
                async with _open_service(token, agent, lambda: engine.version) as url:
                    yield publish, url


@contextlib.asynccontextmanager
async def _open_service(token: str, agent: Agent, version: Callable[[], int]) -> AsyncIterator[str]:
    """Yields its address."""
    host = own_address()
    async with serving(NodeService(agent, token, version=version), host) as port:
        yield http_url(host, port)


def serve_in(publish: Publish, loop: asyncio.AbstractEventLoop) -> Serve:
    """For the learner thread: publishes on the loop, and waits until the weights serve."""

    def serve(version: int, weights: Weights) -> str | None:
        publishing = asyncio.run_coroutine_threadsafe(publish(version, weights), loop)
        try:
            publishing.result(PUBLISH_TIMEOUT_S)
        except Exception as error:  # every rank is told, and all of them stop
            publishing.cancel()
            return f"{type(error).__name__}: {error}"
        return None

    return serve


def in_daemon(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `work` in a thread of its own that no exit of the process waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = work(), None
        except BaseException as caught:
            result, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
