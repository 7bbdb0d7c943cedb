"""[[tools]] and [tool] of a recipe: the policy's tools, and their common settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rocstar.train.recipe.paths import check_kind
from rocstar.train.recipe.section import Expert, Seconds, Section, Tokens, Unit

BUILT_IN = ("python", "jupyter")
"""The tools that run the policy's programs, and take their settings from [tool]."""
MCP = "mcp"
"""The kind of the tools of a server of the Model Context Protocol."""


class ToolChoice(Section):
    """One tool; in short: tools = ["python", "module:Class"]."""

    kind: Annotated[str, AfterValidator(partial(check_kind, "tool", (*BUILT_IN, MCP)))] = Field(
        description="python (a program per call), jupyter (cells of one live interpreter per trajectory), mcp "
        "(the tools of a server), or 'module:Class', a custom tool: a module on sys.path or beside the recipe"
    )
    args: Expert[dict[str, Any]] = Field(
        {}, description="arguments of the class; of mcp: command (a list) or url, env, timeout_s"
    )

    @model_validator(mode="before")
    @classmethod
    def _by_its_kind_alone(cls, raw: Any) -> Any:
        return {"kind": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _programs_take_no_args(self) -> ToolChoice:
        if self.kind in BUILT_IN and self.args:
            raise ValueError(
                f"args = {self.args!r}: kind = {self.kind!r} takes its settings from [tool]; leave args out"
            )
        return self


class ToolConfig(Section):
    """Common settings of tools: sandbox, limits, and the text form of results."""

    sandbox: Expert[Literal["local", "redis"]] = Field(
        "local",
        description="where programs run: on this machine, or by the workers (`rocstar sandbox worker`) at "
        "the Redis of ROCSTAR_REDIS_URL",
    )
    text: Expert[Literal["brief", "plain", "rstar2"]] = Field(
        "plain", description="text form of the results of programs"
    )
    flavour: str = Field(
        "stdlib",
        description="packages imported beforehand: stdlib, numeric (numpy and sympy), scientific (scipy "
        "too), or auto: chosen by what each program imports",
    )
    wall_s: Seconds = Field(4.0, gt=0, description="wall time of a call; longer ones end as `timeout`")
    memory_mb: Expert[Annotated[int, Unit("MiB")]] = Field(
        512, ge=64, description="memory of a program above its flavour's; beyond it: `memory_limit`"
    )
    max_output_tokens: Expert[Tokens] = Field(256, ge=8, description="longer results are cut in the middle")
    max_parallel_calls: Expert[Annotated[int, Unit("calls")]] = Field(
        4, ge=1, description="calls executed per turn; more are an error"
    )


def check_tools(tool: ToolConfig, tools: Sequence[ToolChoice], *, demonstrated: bool) -> None:
    """Whether the tools go together, with their settings and with a cold start that demonstrates programs.

    Raises:
        ValueError: they do not.
    """
    kinds = [choice.kind for choice in tools]
    for kind in BUILT_IN:
        if kinds.count(kind) > 1:
            raise ValueError(f"tools lists {kind!r} twice; list it once")
    if "jupyter" in kinds and tool.flavour == "auto":
        raise ValueError(
            "tool.flavour = 'auto' chooses for each program, and an interpreter that lives (the tool "
            "'jupyter') keeps what it began with; name a flavour"
        )
    if "jupyter" in kinds and tool.sandbox == "redis":
        raise ValueError(
            "tool.sandbox = 'redis' runs single programs, and the tool 'jupyter' needs interpreters that "
            "live; set tool.sandbox = 'local', or list 'python' instead"
        )
    if demonstrated and not set(kinds) & set(BUILT_IN):
        raise ValueError(
            f"sft.data = 'demonstrations' shows programs, and tools lists none that runs them; add one of "
            f"{', '.join(BUILT_IN)}, or give sft.data a file of conversations"
        )
