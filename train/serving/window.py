"""How many groups an evaluation or a difficulty filter has in flight, on the engines of a recipe."""

from __future__ import annotations

from collections.abc import Callable

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes.grants import PART, Window
from rocstar.engine.nodes.nodes import Nodes
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.backend import backend_of


def window_for(
    recipe: Recipe, load: Callable[[], KvLoad], nodes: Nodes | None, *, size: int, limit_tokens: int
) -> Window:
    """Return the window of attempts in flight: the share of one node times the number of nodes.

    With `engine.deterministic` a share is the number that the engine runs at a time, in sequential waves: the
    rows that share a forward then do not depend on the order of completion.

    Args:
        recipe: the recipe of the run.
        load: the load of this node's engine.
        nodes: the rollout nodes, if there are several.
        size: attempts at a task.
        limit_tokens: token limit of a response.
    """
    num_nodes: Callable[[], int] = (lambda: 1) if nodes is None else (lambda: nodes.num_up)
    if recipe.engine.deterministic:
        wave = max(size, recipe.engine.max_running * recipe.engine.num_replicas)
        return Window(size=size, trajectories=lambda: num_nodes() * wave)
    at_once = backend_of(recipe).groups_at_once(recipe)
    if at_once is not None:
        each = at_once * min(PART, recipe.rl.rollouts_per_task)
        return Window(size=size, trajectories=lambda: num_nodes() * each)
    kv_tokens: Callable[[], int] = (lambda: load().total) if nodes is None else (lambda: nodes.total_tokens)
    return Window(size=size, kv_tokens=kv_tokens, limit_tokens=limit_tokens)
