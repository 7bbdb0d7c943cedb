"""The resolved recipe as TOML, as it is written beside a run."""

from __future__ import annotations

import tomli_w

from rocstar.train.recipe.config import Recipe


def to_toml(recipe: Recipe) -> str:
    """The recipe with its defaults, as TOML that loads back to the same object."""
    return tomli_w.dumps(recipe.model_dump(exclude_none=True))
