"""The recipe of the parts that learn, and its RL step packed as a run packs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocstar.train.learner.batch import MicroBatch
from rocstar.train.learner.model_io import row_cost
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.rehearsal.rehearse import batches_of

from .models import SHAPES


def recipe_of(
    size: str, *, dtype: str, tokens_per_microbatch: int, longest: int, tasks: int, checkpointing: bool = False
) -> Recipe:
    """One RL step of 8 rollouts for each of `tasks` tasks, with responses of at most `longest` tokens."""
    data = {"source": "reasoning_gym", "families": {"gcd": {}}, "size": 8}
    return parse_recipe(
        {
            "model": {
                "scratch": SHAPES[size],
                "dtype": dtype,
                "activation_checkpointing": "on" if checkpointing else "off",
            },
            "sft": {"steps": 0},
            "rl": {
                "tasks_per_step": tasks,
                "rollouts_per_task": 8,
                "group_size": 8,
                "tokens_per_microbatch": tokens_per_microbatch,
            },
            "stages": [{"steps": 1, "max_response_tokens": longest, "max_turns": 4, "data": data}],
        },
        where="proof",
    )


def rl_updates(recipe: Recipe, model: Any) -> Sequence[Sequence[MicroBatch]]:
    """The microbatches of each update of the step."""
    _, batches = batches_of(recipe, 1, row_cost(model), model.config.vocab_size)
    return batches["rl"].updates
