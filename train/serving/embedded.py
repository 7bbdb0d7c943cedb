"""`engine.kind = "embedded"`: engines in this process, one alone or several behind a fleet.

How weights get into them: train/publish/engine_publisher.py.
"""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import torch
from transformers import PreTrainedModel

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.fleet.scoring_fleet import ScoringFleet
from rocstar.engine.inference.base import RolloutEngine
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.inference.embedded.kv import KV_SHARE
from rocstar.engine.inference.weights import LiveWeights
from rocstar.engine.nodes.grants import PART
from rocstar.engine.scheduling.policies import make_policy
from rocstar.train.learner import checkpoint
from rocstar.train.learner.learner import LocalEngine
from rocstar.train.learner.model_io import HEAD_DTYPES, ModelSize, load_model, load_tokenizer, memory_row
from rocstar.train.learner.sharding import placed
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.engine_publisher import EnginePublisher, Weights, serve_in
from rocstar.train.publish.publisher import Measure
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.agent import open_agent, open_sandbox
from rocstar.train.serving.backend import EngineBackend, Learning, Opened, opened_fleet
from rocstar.train.serving.nodes import OpenNode, OpenService, open_others
from rocstar.train.tasks.chat_format import chat_format

PROMPT_SHARE = 0.25
"""Tokens of a prompt for which KV is planned, as a share of the limit of a response."""


class Embedded(EngineBackend):
    """Engines that decode with a model of this process."""

    learns = True
    sets_head_dtype = True
    has_nodes = True

    def plan(self, recipe: Recipe, size: ModelSize | str, *, ranks: int, ranks_per_node: int) -> list[str]:
        """Memory of the engines in the first rank of a node."""
        if isinstance(size, str):
            return []
        num = recipe.engine.num_replicas
        rows, tokens = planned_rows(recipe)
        per_token = size.kv_values_per_token * size.dtype_bytes
        several = f", {num} of them behind the {recipe.engine.policy} scheduler" if num > 1 else ""
        lines = [f"engine: embedded{several}, on the first rank of each node, which holds besides:"]
        if has_own_weights(recipe, ranks):
            copy = size.dtype_bytes * size.parameters
            what = "with the adapters merged" if size.adapters else "that is not sharded"
            lines.append(memory_row("its weights", copy, f"a copy {what}"))
        text = f"at most {num * rows} trajectories x {tokens:,} tokens x {per_token:,} bytes"
        return [*lines, memory_row("KV", num * rows * tokens * per_token, text)]

    @contextlib.asynccontextmanager
    async def open(self, recipe: Recipe, path: str, thread: ThreadPoolExecutor) -> AsyncIterator[RolloutEngine]:
        model = placed(load_model(path, recipe.model.dtype), recipe.model)
        async with open_engines(recipe, model, thread) as (engine, _):
            yield engine

    @contextlib.asynccontextmanager
    async def open_learning(self, recipe: Recipe, learning: Learning) -> AsyncIterator[Opened]:
        """Open the engine at version 0, until the weights of another are published."""
        team, model = learning.team, placed(learning.origin.model, recipe.model)
        async with (
            _engine_thread(recipe, learning.thread) as (own, shared),
            open_engines(recipe, model, own, beside_learner=True) as (engine, engines),
        ):
            others = await open_others(team, OpenNode())
            publisher = EnginePublisher(engine, engines, team)
            team.learner.engine = LocalEngine(learning=shared, before_change=publisher.hold)
            measure = memory_measure(engines)
            if isinstance(engine, Fleet):
                opened = opened_fleet(engine, publisher, others)
                of_fleet = opened.measure
                yield dataclasses.replace(opened, measure=lambda: of_fleet() | measure())
            else:
                yield Opened(engine=engine, publisher=publisher, measure=measure, others=others)

    @contextlib.asynccontextmanager
    async def open_node(
        self, recipe: Recipe, team: LearnerTeam, path: str, command: OpenNode, service: OpenService
    ) -> AsyncIterator[tuple[None, str]]:
        with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
            threads = team.world.threads(recipe.run.threads)
            thread.submit(checkpoint.set_threads, threads).result()
            async with open_sandbox(recipe) as sandbox:
                model = placed(load_model(path, recipe.model.dtype), recipe.model)
                chat = chat_format(recipe, load_tokenizer(path))
                async with open_engines(recipe, model, thread, beside_learner=True) as (engine, engines):

                    async def publish(version: int, weights: Weights) -> None:
                        with contextlib.ExitStack() as held:
                            for one in engines:
                                held.enter_context(one.hold())
                            await engine.publish(version, LiveWeights(weights))

                    serve = serve_in(publish, asyncio.get_running_loop())
                    shared = partial(halve_threads, thread, threads)
                    team.learner.engine = LocalEngine(learning=shared, serve=serve)
                    async with (
                        open_agent(recipe, engine, chat, sandbox) as agent,
                        service(agent, lambda: engine.version) as url,
                    ):
                        yield None, url

    def groups_at_once(self, recipe: Recipe) -> int | None:
        """Return the number of orders that fill a node's slots twice, so that the end of a group leaves no
        slot empty, and the rest can still go to the node that is done first.

        With `engine.deterministic` return 1: the rows that share a forward then do not depend on timing, nor
        on the number of nodes.
        """
        if recipe.engine.deterministic:
            return 1
        slots = recipe.engine.max_running * recipe.engine.num_replicas
        return max(1, math.ceil(2 * slots / min(PART, recipe.rl.rollouts_per_task)))


@contextlib.contextmanager
def halve_threads(engine: ThreadPoolExecutor, total: int) -> Iterator[None]:
    """In the block an embedded engine decodes with half of its `total` torch threads: the learner learns.

    Each of the two has a Python thread with its own torch threads: with all cores for both, twice as many
    threads run as there are cores, and each waits for the others at the end of every operation. The engine
    applies a change before its next burst.
    """
    engine.submit(checkpoint.set_threads, max(1, total // 2))
    try:
        yield
    finally:
        engine.submit(checkpoint.set_threads, total)


@contextlib.asynccontextmanager
async def _engine_thread(
    recipe: Recipe, learner: ThreadPoolExecutor
) -> AsyncIterator[tuple[ThreadPoolExecutor, Callable[[], AbstractContextManager[None]]]]:
    """Where embedded engines decode: in the learner's thread if the two take turns anyway, else beside it.

    Also yields `LocalEngine.learning`.
    """
    if recipe.rl.max_staleness == 0:
        yield learner, contextlib.nullcontext
        return
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as own:
        threads = learner.submit(torch.get_num_threads).result()
        own.submit(checkpoint.set_threads, threads).result()
        yield own, partial(halve_threads, own, threads)


def planned_rows(recipe: Recipe) -> tuple[int, int]:
    """Rows that each engine decodes at once in RL steps, at most, and the tokens of the longest.

    In flight are the groups of max_staleness + 1 steps (engine/rollout/buffer.py); a branch has a copy of its
    parent's KV.
    """
    rl, engine = recipe.rl, recipe.engine
    in_flight = rl.tasks_per_step * rl.most_siblings * (rl.max_staleness + 1)
    limit = max((stage.max_response_tokens for stage in recipe.stages), default=0)
    rows = min(engine.max_running, math.ceil(in_flight / engine.num_replicas))
    return rows, math.ceil((1 + PROMPT_SHARE) * limit)


def has_own_weights(recipe: Recipe, ranks: int) -> bool:
    """Whether engines decode with a copy of the weights, and not with the learner's own."""
    return ranks > 1 or recipe.model.dtype != "float32" or recipe.lora.rank > 0


def engine_of(
    recipe: Recipe, model: PreTrainedModel, thread: ThreadPoolExecutor, *, beside_learner: bool = False
) -> EmbeddedEngine:
    """Return an engine, not yet entered, that decodes with `model` itself. Replicas share the device's
    memory.

    beside_learner: it shares the device with a learner. On a GPU its KV then takes at most the plan's memory:
    `planned_rows` of the longest rows, or more shorter ones.
    """
    config, kv_tokens = recipe.engine, None
    if beside_learner and recipe.stages and next(model.parameters()).is_cuda:
        rows, tokens = planned_rows(recipe)
        kv_tokens = rows * tokens
    return EmbeddedEngine(
        model,
        max_running=config.max_running,
        thread=thread,
        kv_tokens=kv_tokens,
        kv_share=KV_SHARE / config.num_replicas,
        lockstep=config.deterministic,
        head_dtype=HEAD_DTYPES[recipe.model.head_dtype],
        drafts=config.drafts,
    )


@contextlib.asynccontextmanager
async def open_engines(
    recipe: Recipe, model: PreTrainedModel, thread: ThreadPoolExecutor, *, beside_learner: bool = False
) -> AsyncIterator[tuple[EmbeddedEngine | Fleet, list[EmbeddedEngine]]]:
    """Engines that decode with `model` itself, in turns in `thread`. One alone costs nothing more."""
    config = recipe.engine
    engines = [engine_of(recipe, model, thread, beside_learner=beside_learner) for _ in range(config.num_replicas)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        if len(engines) == 1:
            yield engines[0], engines
            return
        limits = FleetLimits(turn_timeout_s=config.trajectory_timeout_s)
        fleet = ScoringFleet(engines, policy=make_policy(config.policy), limits=limits)
        await stack.enter_async_context(fleet)
        yield fleet, engines


def memory_measure(engines: list[EmbeddedEngine]) -> Measure:
    """Return the function of memory shortages since its last call; names: train/record/metrics.py."""
    names = ("rows_evicted", "out_of_memory")
    before = dict.fromkeys(names, 0)

    def measure() -> dict[str, float]:
        nonlocal before
        now = {name: sum(getattr(engine, name) for engine in engines) for name in names}
        then, before = before, now
        return {f"engine/{name}": float(now[name] - then[name]) for name in names}

    return measure
