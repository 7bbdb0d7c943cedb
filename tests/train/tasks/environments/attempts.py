"""Attempts of scripted policies in the environments of a recipe."""

import json
from typing import Any

from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.types import Scored, Task, Trajectory, TrajectoryKey
from rocstar.train.recipe.config import Recipe
from rocstar.train.tasks.environments.kinds import environment_judge, places_of
from tests.fakes.agents import FakeJudge, make_agent, python_tools
from tests.fakes.scripted_policy import check_trajectory


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def attempt(
    turns: list[str], recipe: Recipe, *, row: Any = None, sibling: int = 0, task_id: str = "t", **changes: Any
) -> Trajectory:
    """Roll out the turns in the recipe's first environment."""
    row = {"secret": 4, "level": "easy"} if row is None else row
    meta = {"environment": recipe.environments[0].label, "row": row}
    task = Task(id=task_id, source="guess", question="A number?", answer="done", meta=meta)
    tools = python_tools()
    judge = environment_judge(recipe.environments, FakeJudge(), FakeJudge())
    agent = make_agent(turns, tools=tools, judge=judge, environments=places_of(recipe, tools), **changes)
    key = TrajectoryKey(seed=0, step=0, task_id=task_id, sibling=sibling)
    trajectory = await run_trajectory(agent, task, key)
    if isinstance(trajectory.outcome, Scored):
        check_trajectory(trajectory)
    return trajectory
