"""Tool boxes over a scripted sandbox, and calls for them."""

from typing import Any

from rocstar.engine.tools.box import Dispatcher, ToolBox
from rocstar.engine.tools.python import PYTHON_TOOL, PythonTool
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox.types import Limits
from tests.fakes.sandbox import FakeSandbox

LIMITS = Limits(wall_s=1.5)


def box(script: Any, *, max_parallel_calls: int = 4, sandbox: Any = None) -> Dispatcher:
    return Dispatcher(
        tools=[PythonTool(limits=LIMITS, flavour="stdlib", style="brief")],
        sandbox=sandbox or FakeSandbox(script),
        max_parallel_calls=max_parallel_calls,
    )


def call(code: Any, name: str = PYTHON_TOOL, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments={"code": code, **arguments})


async def execute(tools: ToolBox, *calls: ToolCall) -> tuple[ToolResult, ...]:
    async with tools.open(seed=100) as opened:
        return await opened.execute(calls, turn=1, deadline=None)
