"""[[environments]] of a recipe: where tasks bring their own observation, tools and reward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.data_config import SEEDS, DataConfig
from rocstar.train.recipe.model_config import QUESTION
from rocstar.train.recipe.paths import check_kind
from rocstar.train.recipe.section import Expert, Seconds, Section, Tokens, Turns, Unit

KINDS = ("openenv", "reasoning_gym", "textarena", "verifiers")


class EnvironmentConfig(Section):
    """An environment, and its tasks (docs/guide/own-environment.md).

    Stages without data of their own take the tasks of all environments, mixed by weight.
    """

    kind: Expert[Annotated[str, AfterValidator(partial(check_kind, "environment", KINDS))]] = Field(
        description="'module:Class' (of TRL's environment_factory protocol; beside the recipe or on sys.path), "
        "openenv, verifiers, textarena, or reasoning_gym (the recipe's tools and reward)"
    )
    name: Expert[str] = Field("", description="as data.environment and metrics call it; '' = the class, or the kind")
    args: Expert[dict[str, Any]] = Field({}, description="arguments of the class, or of the kind")
    data: Expert[DataConfig | None] = Field(
        None, description="its tasks: rows, whose columns the environment gets, or seeds; left out = 256 seeds"
    )
    weight: Expert[Annotated[float, Unit("parts")]] = Field(
        1.0, gt=0, description="share of its tasks among those of all environments, as parts of the sum of the weights"
    )
    reward: Expert[Literal["environment", "recipe", "both"]] = Field(
        "environment", description="the environment's reward, that of [reward], or their sum"
    )
    prompt: Expert[str] = Field(
        QUESTION, description="the user's message: text around {question}; the environment's first observation follows"
    )
    tools: Expert[bool] = Field(False, description="also show the recipe's tools")
    max_turns: Expert[Turns] = Field(0, ge=0, description="at most the stage's; 0 = the stage's")
    max_response_tokens: Expert[Tokens] = Field(0, ge=0, description="at most the stage's; 0 = the stage's")
    max_episodes: Expert[Annotated[int, Unit("episodes")]] = Field(
        0, ge=0, description="open at a time in a process, for servers with a capacity; 0 = no limit"
    )
    timeout_s: Expert[Seconds] = Field(60.0, gt=0, description="of each call of the environment")

    @property
    def label(self) -> str:
        """Return its name in data.environment and metrics."""
        return self.name or self.kind.rpartition(":")[2]

    @model_validator(mode="after")
    def _tasks_are_its_own(self) -> EnvironmentConfig:
        source = self.tasks.source
        if self.data and self.data.environment not in ("", self.label):
            raise ValueError(f"data.environment = {self.data.environment!r}: leave it out, it is {self.label!r}")
        if (self.kind == "reasoning_gym") != (source == "reasoning_gym"):
            raise ValueError(
                "kind = 'reasoning_gym' and data = { source = 'reasoning_gym', families = ..., size = ... } belong "
                f"together; got data.source = {source!r}"
            )
        return self

    @property
    def tasks(self) -> DataConfig:
        """Return the source of its tasks. Those of reasoning-gym are tasks like any other."""
        named = "" if self.kind == "reasoning_gym" else self.label
        data = self.data or DataConfig(source=SEEDS, size=256)
        return data.model_copy(update={"environment": named})


def check_environments(environments: Sequence[EnvironmentConfig], sources: Sequence[DataConfig | None]) -> None:
    """Check names of environments, and those that sources of tasks refer to. ValueError names the first mistake."""
    names = [environment.label for environment in environments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two environments are called {twice[0]!r}; give one another name: name = '...'")
    for source in sources:
        if source is not None and source.environment and source.environment not in names:
            fix = suggest(source.environment, names) if names else "add [[environments]]"
            raise ValueError(f"data.environment = {source.environment!r} is none of the recipe; {fix}")
