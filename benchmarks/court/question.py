"""A question as its TOML file asks it: arms as recipe fields, seeds, budget, outcome, stopping rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.explain import explain
from rocstar.train.recipe.load import load_recipe, read_toml
from rocstar.train.recipe.section import Section

MOST_SEEDS = 16
"""The test enumerates 2^seeds signs."""


class Spending(Section):
    """What each arm may spend on its steps: generated tokens, or CPU seconds. One of the two."""

    tokens: int = Field(0, ge=0)
    cpu_s: float = Field(0, ge=0)

    @model_validator(mode="after")
    def _is_one(self) -> Spending:
        if bool(self.tokens) == bool(self.cpu_s):
            raise ValueError(f"budget = {self.limits}: give either tokens or cpu_s, above 0")
        return self

    @property
    def limits(self) -> dict[str, float]:
        return {"tokens": self.tokens} if self.tokens else {"cpu_s": self.cpu_s}


class Outcome(Section):
    """The number that decides: a measure of curves.py at the budget's end, or its mean until then."""

    measure: str
    at: Literal["end", "mean"] = "end"
    better: Literal["higher", "lower"] = "higher"


class Stopping(Section):
    """Looks at the differences to the control after so many seeds, in rising order; the last is the end.
    `alpha`: the probability of any false finding, over all arms and looks."""

    looks: list[int] = Field(min_length=1)
    alpha: float = Field(0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _rises(self) -> Stopping:
        if self.looks != sorted(set(self.looks)) or not 1 <= self.looks[0] <= self.looks[-1] <= MOST_SEEDS:
            raise ValueError(f"looks = {self.looks}: give rising numbers of seeds from 1 to {MOST_SEEDS}")
        return self


class Question(Section):
    """One question of the court. The first arm is the control."""

    question: str
    recipe: str
    """Beside the question's file."""
    budget: Spending
    primary: Outcome
    secondary: list[str] = Field([])
    """Further measures, at the budget's end; the table shows them, and no test decides on them."""
    stopping: Stopping
    fields: dict[str, Any] = Field({})
    """Recipe fields of every arm."""
    arms: dict[str, dict[str, Any]] = Field(min_length=2)
    """By name, the recipe fields of one arm. [sft] and [model] are those of its cold start."""

    @property
    def control(self) -> str:
        return next(iter(self.arms))

    @property
    def seeds(self) -> int:
        return self.stopping.looks[-1]

    @property
    def level(self) -> float:
        """The share of alpha that belongs to each comparison (Bonferroni)."""
        return self.stopping.alpha / (len(self.arms) - 1)

    def options(self, arm: str) -> tuple[list[str], list[str]]:
        """Return the options of an arm's cold start, and those of its reinforcement."""
        merged = {**dict(flattened(self.fields)), **dict(flattened(self.arms[arm]))}
        given = [f"--{name}={as_toml(value)}" for name, value in merged.items()]
        cold = [option for option in given if option.startswith(("--sft.", "--model."))]
        return cold, [option for option in given if option not in cold]


def read_question(file: Path) -> tuple[Question, str]:
    """Return the question and the digest of its file and its recipe's. ConfigError for a bad question, or an arm that
    is no recipe."""
    table = read_toml(file, what=f"question {str(file)!r}")
    try:
        question = Question.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{file}: {'; '.join(explain(one, Question) for one in error.errors())}") from None
    for arm in question.arms:
        load_recipe(file.parent / question.recipe, [option for part in question.options(arm) for option in part])
    files = (file, file.parent / question.recipe)
    return question, hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names of a table's values."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def as_toml(value: Any) -> str:
    """Return a value as TOML writes it in one line; JSON is that, but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)
