"""Which adapter an environment of a recipe gets, and its place in an agent."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rocstar.engine.rollout.environment import Environment, EnvironmentPlace
from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.types import Attempt, Outcome
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.environment_config import EnvironmentConfig
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.model_config import QUESTION
from rocstar.train.recipe.own_code import make
from rocstar.train.tasks.environments.methods import MethodsEnvironment
from rocstar.train.tasks.own_reward import AgentReward

PLAIN: Final = "reasoning_gym"
"""The kind whose tasks have no environment: the recipe's tools, and its reward."""
ADAPTERS: Final[Mapping[str, str]] = {
    "openenv": "rocstar.train.tasks.environments.openenv:OpenEnv",
    "textarena": "rocstar.train.tasks.environments.textarena:Game",
    "verifiers": "rocstar.train.tasks.environments.verifiers:Verifiers",
}
_MADE: dict[str, Environment] = {}
"""Environments by kind and arguments: checks, prompts and agent share one, which may have loaded much."""


def environments_of(recipe: Recipe) -> dict[str, Environment]:
    """Return the environments of a recipe by name. ConfigErrors for all that cannot be used."""
    made, problems = dict[str, Environment](), list[str]()
    for k, config in enumerate(recipe.environments):
        if config.kind == PLAIN:
            continue
        try:
            environment = made[config.label] = _environment(config, f"environments.{k}.kind")
        except ConfigError as error:
            problems.append(str(error))
            continue
        if config.reward != "recipe" and not environment.gives_reward:
            problems.append(
                f"environments.{k}.reward = {config.reward!r}: {config.kind!r} gives no reward; define get_reward, or "
                "set reward = 'recipe'"
            )
    if problems:
        raise ConfigErrors(problems)
    return made


def _environment(config: EnvironmentConfig, field: str) -> Environment:
    """Return the environment of one table. ConfigError names the field."""
    key = json.dumps([config.kind, config.args], default=str, sort_keys=True)
    if key not in _MADE:
        spec = ADAPTERS.get(config.kind, config.kind)
        try:
            made: object = make(spec, config.args, object, field=field)
            _MADE[key] = (
                made if isinstance(made, Environment) else MethodsEnvironment(made, partial(type(made), **config.args))
            )
        except ConfigError as error:
            setting = f"{field} = {config.kind!r}"
            raise ConfigError(f"{setting}: {str(error).removeprefix(f'{field} = {spec!r}: ')}") from None
    return _MADE[key]


def places_of(recipe: Recipe, box: Dispatcher) -> dict[str, EnvironmentPlace]:
    """Return the places of a recipe's environments in an agent with the tools `box`. Errors as `environments_of`."""
    made = environments_of(recipe)
    places = {}
    for config in recipe.environments:
        if config.label in made:
            before, _, behind = config.prompt.partition(QUESTION)
            shown = box.tools if config.tools else []
            places[config.label] = EnvironmentPlace(
                name=config.label,
                environment=made[config.label],
                box=replace(box, tools=shown, timeout_s=config.timeout_s),
                around=(before, behind),
                timeout_s=config.timeout_s,
                slots=asyncio.Semaphore(config.max_episodes) if config.max_episodes else None,
                max_turns=config.max_turns,
                max_response_tokens=config.max_response_tokens,
            )
    return places


def environment_judge(environments: Sequence[EnvironmentConfig], plain: Judge, own: Judge) -> Judge:
    """Return the judge of a recipe: `own` for tasks of no environment, `plain` for the recipe's part of the others."""
    rules = {"environment": AgentReward(None), "recipe": plain, "both": AgentReward(plain)}
    judges = {config.label: rules[config.reward] for config in environments}
    return EnvironmentJudge(judges, own) if judges else own


@dataclass(frozen=True, slots=True)
class EnvironmentJudge:
    """Scores a task by the judge of its environment, and one without by `own`."""

    judges: Mapping[str, Judge]
    own: Judge

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        judge = self.judges.get(attempt.task.environment or "", self.own)
        return await judge.score(attempt, deadline=deadline)
