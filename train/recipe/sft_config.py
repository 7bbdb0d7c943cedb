"""[sft] of a recipe: the cold start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.section import Betas, Expert, LearningRate, Section, Share, Steps, Tokens, Unit

Conversations = Annotated[int, Unit("conversations")]


class SftConfig(Section):
    """Cold start: next-token loss on assistant tokens. steps = 0 skips it."""

    steps: Steps = Field(0, ge=0, description="updates of the cold start; 0 = none")
    data: str = Field("demonstrations", description="'demonstrations', or a chat JSONL file")
    template: Expert[str] = Field(
        "",
        description="chat template of the conversations, bundled or a file, whose turns end with the same "
        "token as those of model.template; '' = model.template",
    )
    tools: Expert[Literal["recipe", "row"]] = Field(
        "recipe", description="tools that a conversation without `tools` shows: the recipe's, or none (row)"
    )
    max_contradicting: Expert[Share] = Field(
        0.01,
        ge=0,
        le=1,
        description="conversations of a file whose prompt demands `<answer>` or `\\boxed` and whose "
        "assistant never writes it, at most",
    )
    num_demonstrations: Expert[Conversations] = Field(
        12_000, ge=1, description="conversations that the demonstrator makes for data = 'demonstrations'"
    )
    demonstration_tasks: DataConfig | None = Field(None, description="tasks that the demonstrator solves")
    batch_size: Expert[Conversations] = Field(32, ge=1, description="conversations of an update")
    optimizer: Expert[Literal["adamw", "muon"]] = Field(
        "adamw", description="muon: for the matrices of the layers, AdamW for the rest"
    )
    lr: LearningRate = Field(5e-6, gt=0, description="learning rate after the warm-up")
    betas: Expert[Betas] = Field([0.9, 0.95], description="of AdamW: of the first and of the second moment")
    warmup_steps: Expert[Steps] = Field(30, ge=0, description="first steps, in which the rate rises linearly")
    decay_fraction: Expert[Share] = Field(0.4, ge=0, le=1, description="last part of the steps, linear to 2%")
    digit_weight: Expert[Annotated[float, Unit("factor")]] = Field(
        0.0, ge=0, description="extra weight of the mean loss over digit tokens"
    )
    max_tokens: Expert[Tokens] = Field(2048, ge=8, description="longer conversations are skipped and counted")

    @field_validator("template")
    @classmethod
    def _is_not_the_models(cls, value: str) -> str:
        if value == "model":
            raise ValueError("template = 'model': name a bundled template or a .jinja file, or leave it out")
        return value
