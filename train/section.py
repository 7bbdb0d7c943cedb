"""What every table of a recipe is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the recipe: an unknown key is an error, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
