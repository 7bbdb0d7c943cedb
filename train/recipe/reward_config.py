"""[reward] of a recipe: the reward of an attempt, and its correctness."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rocstar.train.recipe.paths import is_reference
from rocstar.train.recipe.section import Expert, Seconds, Section


class RewardConfig(Section):
    """The reward of an attempt, and its correctness (docs/guide/own-reward.md)."""

    kind: str = Field(
        "math",
        description="'math' (the boxed value of the last answer block, compared exactly: 1 or 0), or "
        "'module:function', looked for beside the recipe, then on sys.path",
    )
    mode: Expert[Literal["strict", "fused"]] = Field(
        "strict",
        description="of 'math': strict, or the verdicts of the original's graders on the whole transcript "
        "(fused), to evaluate its checkpoints",
    )
    args: Expert[dict[str, Any]] = Field({}, description="keyword arguments of that function")
    timeout_s: Expert[Seconds] = Field(
        30.0, gt=0, allow_inf_nan=False, description="a longer call of that function fails its trajectory"
    )

    @model_validator(mode="after")
    def _kind_is_known(self) -> RewardConfig:
        if self.kind != "math" and not is_reference(self.kind):
            raise ValueError(f"kind = {self.kind!r} is neither 'math' nor of the form 'module:function'")
        if self.kind != "math" and self.mode != "strict":
            raise ValueError(f"mode = {self.mode!r} belongs to kind = 'math'; a function of your own has none")
        if self.kind == "math" and self.args:
            raise ValueError("args belong to a function of your own; kind = 'math' takes none")
        return self
