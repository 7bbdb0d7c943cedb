"""The memory that placement leaves for a server's KV cache, and the trajectories that fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rocstar.train.learner.model_size import ModelSize
from rocstar.train.recipe.config import Recipe
from rocstar.train.rehearsal.categories import GIB
from rocstar.train.rehearsal.verdict import OVERHEAD_GIB

STATIC_FRACTION = 0.85
"""The default of SGLang's mem-fraction-static, if the recipe does not set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRoom:
    """One server. The learner is taken to give back all but its state before the server starts."""

    gpus: int
    held_by_learner: int
    """Bytes on each of its GPUs while it serves: state of the learner's rank, 0 with placement split."""
    weights: int
    """Bytes on each of its GPUs."""
    kv: int
    """Bytes on each of its GPUs; 0 or less: it does not start."""
    kv_tokens: int
    """The memory of the whole server."""
    mean: int
    """Trajectories of the mean length, prompt included."""
    longest: int
    """... of the longest."""


def server_room(
    recipe: Recipe, size: ModelSize, *, memory_gib: float, state: int, mean_tokens: float, longest: int
) -> ServerRoom | None:
    """Room on a server's GPUs, as SGLang sizes its pool; None where the recipe names no GPUs for servers.

    Args:
        recipe: names the servers' GPUs, the placement and mem-fraction-static.
        size: of the model.
        memory_gib: of each GPU.
        state: bytes that a learner's rank holds between steps.
        mean_tokens: of a trajectory with its prompt.
        longest: the same of the longest.
    """
    engine = recipe.engine
    if isinstance(engine.replicas, int):
        return None
    gpus = len(engine.replicas[0])
    held = state if engine.placement == "restart" else 0
    free = (memory_gib - OVERHEAD_GIB) * GIB - held
    weights = size.dtype_bytes * size.parameters // gpus
    given = engine.args.get("mem-fraction-static", engine.args.get("mem_fraction_static", STATIC_FRACTION))
    kv = int(free * float(given)) - weights
    tokens = max(0, kv) * gpus // (size.kv_values_per_token * size.dtype_bytes)
    return ServerRoom(
        gpus=gpus,
        held_by_learner=held,
        weights=weights,
        kv=kv,
        kv_tokens=tokens,
        mean=int(tokens / mean_tokens),
        longest=tokens // longest,
    )
