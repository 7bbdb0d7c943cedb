"""[lora] of a recipe: adapters learn in the place of the model's own weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from rocstar.train.recipe.section import Expert, Section, Unit

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices of a Llama-like layer."""


class LoraConfig(Section):
    """Low-rank adapters (LoRA): the model stays as it is, and alpha / rank times their product is added.

    There is no dropout: the log-probs of the learner would be of another policy than the one that rolls out.
    """

    rank: Expert[Annotated[int, Unit("dimensions")]] = Field(
        0, ge=0, description="rank of the adapters that learn beside frozen weights; 0 = all weights learn"
    )
    alpha: Expert[Annotated[int, Unit("factor")]] = Field(
        32, gt=0, description="scale of the adapters' output: alpha / rank"
    )
    targets: Expert[list[str]] = Field(
        list(LINEARS), min_length=1, description="names of the linear modules that get an adapter"
    )

    @field_validator("targets")
    @classmethod
    def _are_of_layers(cls, targets: list[str]) -> list[str]:
        for name in targets:
            if name in ("lm_head", "embed_tokens"):
                raise ValueError(f"{name!r} may not be adapted: head and embedding are served as they are")
            if "." in name or not name:
                raise ValueError(f"{name!r} is not the last part of a module's name, as 'q_proj' is")
        if len(set(targets)) < len(targets):
            raise ValueError("a name stands there twice")
        return targets
