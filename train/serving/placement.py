"""Assign a node's GPUs to learner and servers.

    split     the servers' GPUs are named in the recipe; learner rank k has the k-th of the others
    restart   learner rank k has GPU k; the servers have theirs while it does not work
    a node that only serves: as many servers as its GPUs hold

Numbers count within what is visible to the process (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES), from 0.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.backend import backend_of

NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
BEFORE = "ROCSTAR_VISIBLE_DEVICES"
"""The GPUs visible before the learner hid the servers' GPUs from itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMap:
    """GPU numbers of one node: the learner's by local rank, the servers' by server (none on a CPU)."""

    learner: list[int]
    servers: list[list[int]]

    @staticmethod
    def of(engine: EngineConfig, ranks_per_node: int) -> GpuMap:
        servers = [] if isinstance(engine.replicas, int) else engine.replicas
        taken = {gpu for server in servers for gpu in server} if engine.placement == "split" else set()
        free = (gpu for gpu in itertools.count() if gpu not in taken)
        return GpuMap(learner=list(itertools.islice(free, ranks_per_node)), servers=servers)

    @property
    def needed(self) -> int:
        """GPUs that a node must have for the servers."""
        return 1 + max((gpu for server in self.servers for gpu in server), default=-1)


def num_learner_gpus(engine: EngineConfig, gpus: int) -> int:
    """How many of a node's GPUs learn, each with a rank of its own.

    Raises:
        ConfigError: the recipe names a GPU that such a node does not have, or leaves the learner none.
    """
    if isinstance(engine.replicas, int):
        return gpus
    needed = GpuMap.of(engine, 0).needed
    if needed > gpus:
        raise ConfigError(
            f"engine.replicas = {engine.replicas} names GPU {needed - 1}, and a node of {gpus} has 0 to "
            f"{gpus - 1}; name others for the servers"
        )
    left = gpus if engine.placement == "restart" else gpus - sum(map(len, engine.replicas))
    if not left:
        raise ConfigError(
            f"engine.replicas = {engine.replicas} leaves the learner none of a node's {gpus} GPUs; name "
            "fewer for the servers, or set engine.placement = 'restart' and engine.publish = 'disk'"
        )
    return left


def engine_of_serving_node(engine: EngineConfig, gpus: int) -> EngineConfig:
    """The engine on a node of `gpus` GPUs that only serves: servers of as many GPUs as the recipe's, on all
    of them; without GPUs as many servers. ConfigError: there is no room for one."""
    if isinstance(engine.replicas, int):
        return engine
    each = len(engine.replicas[0])
    if gpus < each:
        raise ConfigError(
            f"engine.replicas = {engine.replicas}: a server has {each} GPUs, and a node that only serves has "
            f"{gpus}; give it more, or servers fewer"
        )
    firsts = range(0, gpus - each + 1, each)
    return engine.model_copy(update={"replicas": [list(range(first, first + each)) for first in firsts]})


def recipe_of_serving_node(recipe: Recipe, gpus: int) -> Recipe:
    """The recipe for a node of `gpus` GPUs that only serves. ConfigError: its engine cannot be there."""
    engine = recipe.engine
    if not backend_of(recipe).has_serving_nodes:
        raise ConfigError(
            f"engine.kind = {engine.kind!r} cannot be on a node that only serves; set it to 'sglang', or "
            "start this node without torchrun's --role=server"
        )
    if engine.placement == "restart":
        raise ConfigError(
            "engine.placement = 'restart' stops servers while the learner works, and a node that only serves "
            "has no learner; set it to 'split', or start this node without torchrun's --role=server"
        )
    return recipe.model_copy(update={"engine": engine_of_serving_node(engine, gpus)})


def num_gpus_named(engine: EngineConfig) -> int | None:
    """As many GPUs a node must have for the servers that the recipe names, and one for a learner that has
    none of theirs; None where it names none."""
    if isinstance(engine.replicas, int):
        return None
    gpus = GpuMap.of(engine, 1)
    return max(gpus.needed, 1 + gpus.learner[0])


def check_gpus(
    engine: EngineConfig, found: int, ranks_per_node: int, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise ConfigError unless a node with `found` visible GPUs has the GPUs that the recipe names.

    A learner that has hidden the servers' GPUs sees only its own; the servers' start checks theirs.
    """
    if isinstance(engine.replicas, int):
        if found and engine.args.get("device") != "cpu":
            raise ConfigError(
                f"engine.replicas = {engine.replicas}: this node has {found} GPUs, and a server must know "
                "which are its own; name them, [[4, 5], [6, 7]] for two servers of two"
            )
        return
    gpus = GpuMap.of(engine, ranks_per_node)
    if BEFORE in environment and found < ranks_per_node:
        raise ConfigError(
            f"engine.replicas = {engine.replicas} leaves the learner GPUs {gpus.learner} of each node, and "
            f"{found} of them are there; name others for the servers, or start fewer ranks"
        )
    if BEFORE not in environment and gpus.needed > found:
        raise ConfigError(
            f"engine.replicas = {engine.replicas} names GPUs that this node does not have: it has {found}; "
            "name others, or without GPUs give the number of servers"
        )


def server_env(gpus: list[int] | None, environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Environment variables that limit a server to its GPUs."""
    if gpus is None:
        return {}
    before = environment.get(BEFORE, _visible(environment))
    known = before.split(",") if before else []
    chosen = ",".join(known[gpu] if known else str(gpu) for gpu in gpus)
    return {**dict.fromkeys(NAMES, chosen), BEFORE: None}


def hide_servers(engine: EngineConfig, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this learner rank see no server's GPU. Before torch looks at the GPUs: it looks once."""
    if isinstance(engine.replicas, int) or engine.placement == "restart":
        return
    ranks = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    environment.setdefault(BEFORE, _visible(environment))
    env = server_env(GpuMap.of(engine, ranks).learner, environment)
    environment.update({name: value for name, value in env.items() if value is not None})


def _visible(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in NAMES if environment.get(name)), "")
