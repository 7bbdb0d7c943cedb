"""Which source a stage that rolls out gets: in turns with the learner, or ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Task
from rocstar.train.groups.ahead import AheadGroups, Tickets, tickets_from
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.source import LiveGroups, Source, agent_for
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.time_budget import TimeBudget


def live_source(
    recipe: Recipe,
    agent: Agent,
    engine: EngineTimes,
    stage: StageConfig,
    tasks: Sequence[Task],
    state: dict[str, Any] | None,
    *,
    next_step: int,
    budget: TimeBudget,
    nodes: Nodes | None = None,
    journal: Journal | None = None,
) -> AbstractAsyncContextManager[Source]:
    """Opens the source of a stage that rolls out, on `nodes` where there are several; `stage`, `tasks` and
    `state` are those of `OpenSource`. What `journal` has of an earlier process is not rolled out again."""
    # A later stage on the same tasks would otherwise show the first one's again, in the same order.
    number = next((k for k, one in enumerate(recipe.stages) if one is stage), 0)
    cursor = TaskCursor(tasks, seed=recipe.run.seed, stage=number, rl=recipe.rl)
    agent, seed = agent_for(agent, stage), recipe.run.seed
    is_ahead = recipe.rl.max_staleness > 0
    if state is not None and is_ahead != ("again" in state):
        raise ConfigError(
            f"rl.max_staleness = {recipe.rl.max_staleness}: the checkpoint was written "
            f"{'in turns (0)' if is_ahead else 'with rollouts ahead of the learner (1 or more)'}; "
            "resume with the value it began with"
        )
    if is_ahead:
        batch = min(recipe.rl.tasks_per_step, len(tasks))
        planned = stage.steps * batch
        if state is not None:
            tickets = tickets_from(state, cursor, tasks, batch, planned=planned)
        else:
            tickets = Tickets(cursor, batch=batch, planned=planned, next_step=next_step)
        return AheadGroups(
            agent, engine, tickets, recipe.rl, seed=seed, budget=budget, tasks=tasks, nodes=nodes, journal=journal
        )
    if state is not None:
        cursor.restore(state)
    return nullcontext(
        LiveGroups(
            agent=agent,
            engine=engine,
            cursor=cursor,
            rl=recipe.rl,
            seed=seed,
            budget=budget,
            nodes=nodes,
            journal=journal,
            wave=wave_of(recipe, nodes),
        )
    )


def wave_of(recipe: Recipe, nodes: Nodes | None) -> int | None:
    """Groups that are rolled out together where that decides their bits: those that have a slot each. On
    several nodes each has one group at a time then."""
    if not recipe.engine.deterministic or nodes is not None:
        return None
    return max(1, recipe.engine.max_running * recipe.engine.num_replicas // recipe.rl.rollouts_per_task)
