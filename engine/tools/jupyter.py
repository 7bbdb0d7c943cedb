"""The notebook tool: calls are cells of one live interpreter per trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rocstar.engine.tools.interpreter import Interpreter
from rocstar.engine.tools.python import texts_of
from rocstar.engine.tools.results import TextStyle, result_text
from rocstar.engine.tools.tool import Tool, ToolContext, ToolOutput
from rocstar.sandbox.types import Limits, SessionSandbox

JUPYTER_TOOL = "jupyter_code"
RESTARTED = "(the interpreter was restarted)"
"""The line above a cell's result when what earlier cells had defined is gone."""

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The python code to execute in a single cell"}},
    "required": ["code"],
}


@dataclass(frozen=True, kw_only=True)
class JupyterTool(Tool):
    """Cells over the sessions of a sandbox: run one after the other, in an interpreter that the first opens.

    Description and parameters are the original's, word for word.

    Attributes:
        limits: limits of one cell; the memory is the interpreter's.
        flavour: the packages imported before the interpreter starts.
        style: the text form of a cell's result.
    """

    limits: Limits
    flavour: str
    style: TextStyle

    name = JUPYTER_TOOL
    description = "Execute python code in a Jupyter notebook cell and return result"
    parameters = PARAMETERS
    parallel = False
    keeps_deadline = True

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        return texts_of(arguments, "code")

    async def open(self, context: ToolContext) -> Interpreter:
        sandbox = cast("SessionSandbox", context.sandbox)
        return Interpreter(sandbox, flavour=self.flavour, limits=self.limits, seed=context.seed)

    async def call(self, arguments: Mapping[str, str], context: ToolContext) -> ToolOutput:
        interpreter: Interpreter = context.session
        ran = await interpreter.run(arguments["code"], deadline=context.deadline)
        text = result_text(ran.result, self.style)
        text = f"{RESTARTED}\n{text}" if ran.restarted else text
        return ToolOutput(text, ran.result.status, restarted=ran.restarted, replayed=ran.replayed)

    async def close(self, session: Interpreter) -> None:
        await session.close()


JUPYTER_SCHEMA: Mapping[str, Any] = JupyterTool(limits=Limits(), flavour="stdlib", style="plain").schema
