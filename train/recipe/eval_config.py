"""[[eval]] of a recipe: the sets that a policy is evaluated on, each built in or of tasks of its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.section import Attempts, Expert, Section, Steps, Tasks, Tokens, Turns, Unit

SETS = (
    "aime24",
    "aime25",
    "hmmt_feb_2025",
    "math500",
    "amc23",
    "gsm8k",
    "gpqa_diamond",
    "ifeval",
    "bfcl_v3",
    "arena_hard",
)
"""Names of train/evaluation/benchmarks/registry.py, which a test compares: importing it takes time."""

HELDOUT = "heldout"
"""The name of an unnamed set of tasks."""


class EvalConfig(Section):
    """Tasks for evaluation, which the stages leave out.

    Either `set` names a built-in one (docs/reference/evaluation.md), or `data` says where the tasks are.
    """

    set: str = Field("", description="a built-in set: " + ", ".join(SETS) + "; '' = the tasks of `data`")
    path: Expert[str] = Field(
        "", description="of a built-in set: a local copy; '' = the hub, at the revision that is pinned"
    )
    name: Expert[str] = Field("", description="as metrics and files call it; '' = `set`, or heldout")
    data: DataConfig | None = Field(None, description="held-out tasks of your own")
    limit: Expert[Tasks] = Field(0, ge=0, description="use only the first so many tasks; 0 = all")
    samples_per_task: Attempts = Field(
        0, ge=0, description="k of avg@k and pass@k; 0 = the built-in set's own, else 4"
    )
    temperature: Expert[Annotated[float | None, Unit("divisor of the logits")]] = Field(
        None, ge=0, description="of the sampling; 0 = greedy; left out = the built-in set's own, else 1"
    )
    max_response_tokens: Expert[Tokens] = Field(
        0, ge=0, description="0 = the built-in set's own, else as the last stage"
    )
    max_turns: Expert[Turns] = Field(0, ge=0, description="0 = the built-in set's own, else as the last stage")
    every: Steps = Field(0, ge=0, description="also every so many RL steps; 0 = only before and after")

    @property
    def label(self) -> str:
        """Return the name of the set in metrics and files."""
        return self.name or self.set or HELDOUT

    @model_validator(mode="after")
    def _one_source(self) -> EvalConfig:
        if self.set and self.set not in SETS:
            raise ValueError(f"set = {self.set!r} is not a built-in set; {suggest(self.set, SETS)}")
        if bool(self.set) == (self.data is not None):
            raise ValueError(
                "a set of an evaluation is either built in, set = 'NAME', or of your own tasks, "
                "data = { source = ... }; give one of the two"
            )
        if self.path and not self.set:
            raise ValueError(f"path = {self.path!r} is of a built-in set; give data.source, or set = 'NAME'")
        if self.name and not self.name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise ValueError(f"name = {self.name!r}: use letters, digits, '_', '-' and '.'")
        return self


def listed(raw: Any) -> Any:
    """`[eval]`, as recipes had it once, as a list of that one set; without any task it evaluated nothing."""
    if not isinstance(raw, dict):
        return raw
    says_tasks = raw.get("data") is not None or raw.get("set")
    return [raw] if says_tasks or not raw.keys() <= EvalConfig.model_fields.keys() else []
