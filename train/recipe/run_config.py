"""[run] and [checkpoint] of a recipe: name and seed, monitoring, and kept files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rocstar.train.recipe.section import Expert, Section, Seed, Steps, Unit


class CallbackConfig(Section):
    """One of run.callbacks: a class of yours that listens to the run (docs/guide/callbacks.md)."""

    kind: str = Field(
        description="'module:Class', beside the recipe or where Python finds modules, or 'FILE.py:Class'"
    )
    args: dict[str, Any] = Field({}, description="keyword arguments that the class is made with")


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field("run", description="the folder is runs/NAME unless --output-dir is given")
    seed: Seed = Field(0, description="orders the tasks and keys all noise: sampling, RoC, demonstrations")
    threads: Expert[Annotated[int, Unit("threads")]] = Field(
        0, ge=0, description="torch threads of this process; 0 = its share of the machine's physical cores"
    )
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="where metrics go besides metrics.jsonl"
    )
    callbacks: list[CallbackConfig] = Field(
        [], description="custom classes that receive steps, groups and evaluations; 'module:Class' or a table"
    )

    keep_records: Expert[Steps] = Field(
        0,
        ge=0,
        description="keep the trajectory records of the newest so many steps, and of steps behind the last "
        "checkpoint; 0 = all",
    )

    @field_validator("callbacks", mode="before")
    @classmethod
    def _a_name_is_a_table(cls, given: Any) -> Any:
        """`"module:Class"` is short for `{ kind = "module:Class" }`."""
        if not isinstance(given, list):
            return given
        return [{"kind": one} if isinstance(one, str) else one for one in given]


class CheckpointConfig(Section):
    """When a checkpoint is written, and which ones stay."""

    every: Steps = Field(
        0, ge=0, description="RL steps from one checkpoint to the next; 0 = only at the end of a stage"
    )
    sft_every: Expert[Steps] = Field(
        500, ge=0, description="updates of the cold start from one checkpoint to the next; 0 = none in it"
    )
    keep_last: Expert[Annotated[int, Unit("checkpoints")]] = Field(2, ge=1, description="the newest so many stay")
    keep_every: Expert[Steps] = Field(0, ge=0, description="also keep for good those of every so many steps; 0 = none")
