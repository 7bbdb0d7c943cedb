"""A model on disk, opened to answer: what serving and chatting take of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Turn
from rocstar.train.evaluation.saved_model import open_agent, with_model
from rocstar.train.learner.model_io import load_max_positions
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.serving.backend import backend_of
from rocstar.train.tasks.verify import num_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """An agent whose engine and sandbox run.

    Attributes:
        agent: asks as training does.
        recipe: with the model that was meant.
        max_context: tokens of a prompt and its answer together; None where that is not known here.
        isolation: what confines its tools; empty where the sandbox does not say.
        num_answers: how many answers some turns have.
    """

    agent: Agent
    recipe: Recipe
    max_context: int | None
    isolation: str
    num_answers: Callable[[Sequence[Turn]], int]


def with_date_of(out: Path | None, recipe: Recipe) -> Recipe:
    """The recipe with the date that its prompts show: that of the records in `out`, where there are some."""
    return dated(recipe, former=out)


@contextlib.asynccontextmanager
async def open_model(
    recipe: Recipe, model: str | None, *, max_response_tokens: int, max_turns: int
) -> AsyncIterator[OpenedModel]:
    """Start engine and sandbox; the limits are those of a trajectory. ConfigError for what cannot run."""
    recipe = with_model(recipe, model)
    limit = load_max_positions(recipe.model.path) if backend_of(recipe).reads_weights else None
    async with open_agent(recipe, None, max_response_tokens, max_turns) as agent:
        sandbox = getattr(agent.tools, "sandbox", None)
        yield OpenedModel(
            agent=agent,
            recipe=recipe,
            max_context=limit,
            isolation=str(getattr(sandbox, "isolation", "")),
            num_answers=num_answers,
        )
