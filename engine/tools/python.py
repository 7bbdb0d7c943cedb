"""The Python tool: every call is a program of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.tools.results import TextStyle, result_text
from rocstar.engine.tools.tool import BadArguments, Tool, ToolContext, ToolOutput, check_text
from rocstar.sandbox.types import ExecRequest, Limits

PYTHON_TOOL = "python_code_with_standard_io"
PYTHON_TOOL_NAMES = frozenset({PYTHON_TOOL, "execute_python_code_with_standard_io"})
"""The name in the released code, and the one in the paper and the released checkpoint: both work."""

_TOOL = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class PythonTool(Tool):
    """Programs over a sandbox. Calls of one trajectory share nothing; those of a turn run concurrently.

    Description and parameters are the original's, word for word: the policy reads them.

    Attributes:
        limits: limits of one program.
        flavour: the packages imported before it starts.
        style: the text form of its result.
    """

    limits: Limits
    flavour: str
    style: TextStyle

    name = PYTHON_TOOL
    description = _TOOL["description"]
    parameters = _TOOL["parameters"]
    keeps_deadline = True

    @property
    def names(self) -> frozenset[str]:
        return PYTHON_TOOL_NAMES

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        return texts_of(arguments, "code", "input")

    async def call(self, arguments: Mapping[str, str], context: ToolContext) -> ToolOutput:
        assert context.sandbox is not None, "programs need a sandbox"
        request = ExecRequest(
            code=arguments["code"],
            stdin=arguments["input"],
            limits=self.limits,
            flavour=self.flavour,
            seed=context.seed,
        )
        result = await context.sandbox.run(request, deadline=context.deadline)
        return ToolOutput(result_text(result, self.style), result.status)


def texts_of(arguments: Mapping[str, Any], *fields: str) -> dict[str, str]:
    """These arguments of a call, as the original reads them: a missing one is empty, others are ignored.

    Raises:
        BadArguments: one is no text, or `code` is none that a program can have.
    """
    texts = {field: arguments.get(field, "") for field in fields}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise BadArguments(f"Argument {field!r} must be a string")
        if problem := check_text(field, value):
            raise BadArguments(problem)
        if "\0" in value and field == "code":
            raise BadArguments("Argument 'code' holds a NUL character")
    return texts


PYTHON_SCHEMA: Mapping[str, Any] = PythonTool(limits=Limits(), flavour="stdlib", style="plain").schema
