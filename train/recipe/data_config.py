"""A source of tasks in a recipe: a table where tasks are needed, or one of [tasks.NAME] and referred to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from rocstar.train.recipe.section import Expert, Section, Seed, Share, Tasks, Unit

SEEDS = "seeds"
"""The source of tasks of an environment that makes them from a number."""


class DataConfig(Section):
    """Where tasks come from: reasoning-gym families, a JSONL or Parquet file, or a hub data set.

    `data = "NAME"` takes the fields of [tasks.NAME]; in a table, `tasks = "NAME"` takes those that it lacks.
    """

    source: str = Field(description="'reasoning_gym', a path, 'hub:OWNER/NAME:CONFIGURATION', or 'seeds'")
    families: dict[str, dict[str, Any]] = Field({}, description="reasoning-gym family -> its options")
    size: Annotated[int, Unit("rows")] = Field(0, ge=0, description="tasks per family, or rows to take; 0 = all rows")
    limit: Expert[Tasks] = Field(0, ge=0, description="keep so many, families in turn; 0 = all")
    seed: Expert[Seed] = Field(0, description="of reasoning-gym and seeds: another seed, other tasks")
    environment: Expert[str] = Field("", description="of these tasks; rows then need neither question nor answer")
    split: Expert[str] = Field("train", description="of directories and hub data sets")
    question: str = Field(
        "question", description="field of the row that holds the question: text, or a list of chat messages"
    )
    answer: str = Field("answer", description="field of the row that holds the answer")
    max_unreadable: Expert[Share] = Field(
        0.1, ge=0, le=1, description="refuse a source with more answers that reward.kind = 'math' cannot read"
    )

    @model_validator(mode="after")
    def _families_belong_to_reasoning_gym(self) -> DataConfig:
        if self.source == "reasoning_gym" and (not self.families or not self.size):
            raise ValueError("source = 'reasoning_gym' needs families (at least one) and size (tasks per family)")
        if self.source != "reasoning_gym" and self.families:
            raise ValueError("families belong to source = 'reasoning_gym' only")
        if self.source == SEEDS and not self.size:
            raise ValueError("source = 'seeds' needs size, the number of tasks")
        return self
