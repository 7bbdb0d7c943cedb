"""Rollouts on several nodes: the work of every node's first rank beside learning, or in its place.

    rank 0 ── Start(path, token) ──> every rank: its part of the learner
      ├── OpenNode ────────────────> first rank of another node: sandbox, engine, agent -> NodeService
      │<── NodeAddress, by rank ─────┘      learner thread: LearnerTeam.follow
      ├── also to nodes that only serve (node_commands.py), which are not ranks of the learner
      └── Nodes: groups over HTTP, at home in this process

Rank 0 waits once for every node to serve; later as in engine/nodes/nodes.py. A leader's event loop waits for
requests, commands and its learner thread, which waits for rank 0's commands. A leader's backend loads new
weights (train/publish). The end of the learner thread or of the service ends the process, with
a nonzero code unless rank 0 stopped it: torchrun then ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvloop

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes.client import HttpNode, node_session
from rocstar.engine.nodes.grants import FILL, PART
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.nodes.service import NodeService, serving
from rocstar.engine.rollout.rollout import Agent
from rocstar.train.learner import checkpoint
from rocstar.train.learner.sharded_loading import load_learner
from rocstar.train.learner.store_channel import LeaderLost, travels
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, mark_mistake
from rocstar.train.serving.backend import backend_of
from rocstar.train.serving.node_commands import CommandQueue, NodeAddress, follow_commands, serve_node
from rocstar.train.tasks.chat_format import with_date

T = TypeVar("T")


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start message of rank 0.

    Attributes:
        token: of the nodes' services; None if no other node rolls out.
        date: `model.date` of rank 0, whose clock may show another day.
    """

    path: str
    token: str | None = None
    date: str = ""


# ---- rank 0 ----


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
    at_once = backend_of(recipe).groups_at_once(recipe)
    async with node_session(token) as session:
        others = [HttpNode(str(k), address.url, session) for k, address in enumerate(addresses, 1)]
        async with Nodes(
            others,
            home_load=home_load,
            max_groups=at_once,
            part=None if recipe.engine.deterministic else PART,
            fill=FILL if at_once is None else 1.0,
            note=note,
        ) as nodes:
            note(f"{nodes.num_up} nodes roll out: this one and {', '.join(a.url for a in addresses)}")
            yield nodes


# ---- the other ranks ----


def follow(recipe: Recipe, world: World) -> None:
    """The whole life of a rank that is not 0."""
    start: Start | None = world.broadcast(None)
    if start is None:  # rank 0 could not begin; its message says why
        return
    recipe = with_date(recipe, start.date)
    model = load_learner(start.path, world, recipe)
    with ThreadPoolExecutor(1) as thread:
        if start.token is not None and world.local_rank == 0:
            make_team = partial(LearnerTeam, model, world, thread, recipe.model)
            _wait_for_stop(_serve(recipe, make_team, start, start.token))
            return
        LearnerTeam(model, world, thread, recipe.model).follow()


def serve_alone(recipe: Recipe, world: World) -> None:
    """The whole life of a node that only serves."""
    start: Start | None = world.broadcast(None)
    if start is None or start.token is None:  # rank 0 could not begin, or rolls nothing out
        return
    _wait_for_stop(_serve_alone(with_date(recipe, start.date), world, start.token))


async def _serve_alone(recipe: Recipe, world: World, token: str) -> None:
    line, commands = world.line, CommandQueue()
    assert line is not None, "a node that only serves has a line to rank 0"
    service = partial(_open_service, token)
    open_node = partial(backend_of(recipe).open_serving_node, recipe, world.rank, service=service)
    following = in_daemon(partial(follow_commands, line, world.rank, commands), name="commands")
    await serve_node(open_node, following, commands)


def _wait_for_stop(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until rank 0 says stop. Anything else leaves at once: a learner thread that is stuck in a
    collective would keep an orderly exit waiting; children die with us."""
    code = 1
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving)
        return
    except KeyboardInterrupt:
        code = 130
    except ConfigError as error:
        print(f"rocstar: {error}", file=sys.stderr)
        code = 2
    except LeaderLost as error:
        print(f"rocstar: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    mark_mistake(code)
    sys.stderr.flush()
    os._exit(code)


async def _serve(recipe: Recipe, make_team: Callable[..., LearnerTeam], start: Start, token: str) -> None:
    """Roll out and learn, until rank 0 ends the run."""
    commands = CommandQueue()
    team = make_team(execute_on_node=commands)

    def follow() -> None:
        checkpoint.set_threads(team.world.threads(recipe.run.threads))
        team.follow()

    open_node = partial(backend_of(recipe).open_node, recipe, team, start.path, service=partial(_open_service, token))
    await serve_node(open_node, in_daemon(follow, name="learner"), commands)


@contextlib.asynccontextmanager
async def _open_service(token: str, agent: Agent, version: Callable[[], int]) -> AsyncIterator[str]:
    """Yields its address."""
    host = own_address()
    async with serving(NodeService(agent, token, version=version), host) as port:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"


def own_address() -> str:
    """Return this machine's address for other nodes: that of the interface that leads to rank 0.

    On rank 0's own machine MASTER_ADDR may be its name and resolve to loopback. Nothing is sent.
    """
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        found: str = probe.getsockname()[0]
    ipaddress.ip_address(found)
    return found


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
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
