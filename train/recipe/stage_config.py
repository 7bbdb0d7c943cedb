"""[[stages]] of a recipe: on which tasks, and within which lengths."""

from __future__ import annotations

from pydantic import Field

from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.section import Attempts, Expert, Section, Steps, Tokens, Turns


class StageConfig(Section):
    """One RL stage: its own limits, data and steps."""

    name: Expert[str] = Field("stage1", description="as metrics and records call it")
    steps: Steps = Field(ge=0, description="RL steps of the stage")
    max_response_tokens: Tokens = Field(ge=1, description="all turns and tool results of a trajectory")
    max_turns: Turns = Field(ge=1, description="turns of a trajectory at most; each may call the tool")
    data: DataConfig | None = Field(None, description="its tasks; left out = those of the stage before")
    filter_rollouts: Expert[Attempts] = Field(
        0, ge=0, description="k > 0: before the stage, drop tasks solved k times out of k"
    )
    reset_optimizer: Expert[bool] = Field(False, description="begin the stage with fresh moments and warm-up")
