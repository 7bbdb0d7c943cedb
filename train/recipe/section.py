"""The base of a recipe's tables, and the documentation of its fields beside type, default and bounds.

    lr: Expert[Annotated[float, Unit("per step")]] = Field(5e-6, gt=0, description="learning rate ...")

Every field has a description, and every number a unit; `rocstar recipe` prints them. A field that few
recipes set is `Expert[...]`: it works like any other, and is left out of the short table.
"""

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator

T = TypeVar("T")


LEAST, MOST = 1e-37, 1e37
"""Numbers with a fraction are 0 or within these, so that float32 holds them, and a sum of some."""


class Section(BaseModel):
    """A table of the recipe: an unknown key is an error, numbers are finite in float32, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits_float32(cls, value: T) -> T:
        if isinstance(value, float) and value and not LEAST <= abs(value) <= MOST:
            raise ValueError(f"{value:g} does not fit float32; give 0, or a number from {LEAST:g} to {MOST:g}")
        return value


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number."""

    name: str


FOR_EXPERTS: Final = "for experts"
"""The mark of a field that few recipes set."""
Expert = Annotated[T, FOR_EXPERTS]

Attempts = Annotated[int, Unit("attempts")]
Seconds = Annotated[float, Unit("s")]
Share = Annotated[float, Unit("share")]
Steps = Annotated[int, Unit("steps")]
Tasks = Annotated[int, Unit("tasks")]
Tokens = Annotated[int, Unit("tokens")]
Turns = Annotated[int, Unit("turns")]
Seed = Annotated[int, Unit("seed")]
Temperature = Annotated[float, Unit("divisor of the logits")]


def _two_shares(value: list[float]) -> list[float]:
    if len(value) != 2 or not all(0 <= beta < 1 for beta in value):
        raise ValueError(f"betas = {value}: give two numbers from 0 to below 1")
    return value


Betas = Annotated[list[float], Unit("share kept per update"), AfterValidator(_two_shares)]
LearningRate = Annotated[float, Unit("per update")]
