"""A node that only serves: its one process has no learner, and executes orders of rank 0.

    rank 0 ── store_line.py: Start, orders ──> thread `orders` ─> Orders ─> event loop: servers, agent
      └────── HTTP: groups ────────────────────────────────────────────────> NodeService

The thread waits for rank 0's next order, as long as rank 0 lives, then for the event loop to execute it; the
event loop waits for the thread. Groups of training, evaluations and filters arrive as on every other node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocstar.train.learner.store_line import StoreLine
from rocstar.train.learner.team import RankReply
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.backend import backend_of
from rocstar.train.serving.placement import engine_of_serving_node


def as_served_alone(recipe: Recipe, gpus: int) -> Recipe:
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


def follow_orders(line: StoreLine, rank: int, do_order: Callable[[Any], Any]) -> None:
    """Do what rank 0 orders and reply, until it says that the run is over. LeaderLost: it is gone."""
    while (order := line.hear()) is not None:
        try:
            reply = RankReply(rank=rank, answer=do_order(order))
        except Exception as error:  # reported to rank 0, which decides
            reply = RankReply(rank=rank, problem=f"{type(error).__name__}: {error}")
        line.reply(reply)
    line.reply(None)  # heard: rank 0 waits for that before it ends, perhaps with the store
