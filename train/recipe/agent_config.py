"""[agent] of a recipe: the built-in turn loop, or a foreign agent."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.paths import is_reference
from rocstar.train.recipe.section import Expert, Section


class AgentConfig(Section):
    """The agent that works on each task (docs/guide/own-agent.md)."""

    kind: str = Field(
        "builtin",
        description="builtin (turns with [[tools]]), program (`command`, a process for each attempt), or "
        "'module:function', an async function: a module on sys.path or beside the recipe",
    )
    command: list[str] = Field(
        [],
        description="command line of a program, as a text or as its words; files beside the recipe are found. It "
        "reads the task in ROCSTAR_TASK and the model's address in OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
    )
    args: Expert[dict[str, Any]] = Field({}, description="keyword arguments of the function")
    reward: Expert[Literal["recipe", "program", "both"]] = Field(
        "recipe",
        description="recipe: [reward] judges the conversation and the agent's answer; program: the number that the "
        "agent gives; both: their sum",
    )

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, raw: Any) -> Any:
        return shlex.split(raw) if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _fits_its_kind(self) -> AgentConfig:
        if self.kind not in ("builtin", "program") and not is_reference(self.kind):
            known = ("builtin", "program", "module:function")
            raise ValueError(f"agent {self.kind!r} is not known; {suggest(self.kind, known)}")
        if (self.kind == "program") != bool(self.command):
            raise ValueError(f"kind = {self.kind!r} and command = {self.command!r}: a program needs a command")
        if self.args and not is_reference(self.kind):
            raise ValueError(f"args = {self.args!r} belong to a function; kind = {self.kind!r} takes none")
        if self.reward != "recipe" and self.kind == "builtin":
            raise ValueError(f"reward = {self.reward!r}: the built-in loop gives no number; set kind, or leave it out")
        return self
