"""The tools of a recipe, as one box without a sandbox; agent.py adds one."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence

from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.python import PythonTool
from rocstar.engine.tools.tool import Tool, ToolFailure, check_parameters
from rocstar.sandbox.extras import missing_extra_message
from rocstar.sandbox.types import Limits
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.own_code import make
from rocstar.train.recipe.tool_config import MCP, ToolChoice

PROGRAMS: Mapping[str, type[PythonTool] | type[JupyterTool]] = {"python": PythonTool, "jupyter": JupyterTool}
"""The tools that run the policy's programs."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool_box(recipe: Recipe) -> Dispatcher:
    """Return the recipe's tools, by name. Its `schemas` are shown in the prompt.

    Raises:
        ConfigErrors: for every tool that cannot be made, and for every two of one name.
    """
    problems: list[str] = []
    tools: list[Tool] = []
    owners: dict[str, str] = {}
    for k, choice in enumerate(recipe.tools):
        field = f"tools.{k}.kind"
        try:
            if choice.kind == MCP:
                made = _mcp(choice, field)
            else:
                made = [program_tool(recipe, choice.kind) if choice.kind in PROGRAMS else _own(choice, field)]
        except ConfigError as error:
            problems.append(str(error))
            continue
        tools += made
        if recipe.rl.fork != "none" and (bound := [tool.name for tool in made if not tool.can_branch]):
            problems.append(
                f"{field} = {choice.kind!r}: rl.fork = {recipe.rl.fork!r} copies sessions, and {', '.join(bound)} "
                "cannot copy its own; give it a method `async def branch(self, session)`, or set rl.fork = 'none'"
            )
        for name in sorted(name for tool in made for name in tool.names):
            if name in owners:
                problems.append(
                    f"{field} = {choice.kind!r}: its name {name!r} is that of {owners[name]}, and a call "
                    "must mean one tool; give it another name"
                )
            owners.setdefault(name, f"{field} = {choice.kind!r}")
    if problems:
        raise ConfigErrors(problems)
    common = recipe.tool
    return Dispatcher(tools=tools, max_parallel_calls=common.max_parallel_calls, timeout_s=common.wall_s)


def program_tool(recipe: Recipe, kind: str) -> PythonTool | JupyterTool:
    """Return the built-in tool of that kind, with the recipe's settings."""
    tool = recipe.tool
    limits = Limits(wall_s=tool.wall_s, cpu_s=max(1, int(tool.wall_s) + 1), memory_bytes=tool.memory_mb << 20)
    return PROGRAMS[kind](limits=limits, flavour=tool.flavour, style=tool.text)


def demonstrated_tool(recipe: Recipe) -> PythonTool | JupyterTool:
    """Return the first tool of the recipe that runs programs; a recipe with demonstrations has one."""
    return next(program_tool(recipe, choice.kind) for choice in recipe.tools if choice.kind in PROGRAMS)


_OWN: dict[tuple[str, str], Tool] = {}
"""Custom tools by kind and arguments: checks, prompt and agent share one, which may have loaded much."""
_MCP: dict[str, Sequence[Tool]] = {}
"""Tools of servers by arguments: they are listed once."""


def _mcp(choice: ToolChoice, field: str) -> Sequence[Tool]:
    """Return the tools of a server. ConfigError if it does not list tools that the prompt can show."""
    setting = f"{field} = 'mcp' ({choice.args.get('url') or choice.args.get('command')})"  # env may hold a secret
    key = json.dumps(choice.args, default=str, sort_keys=True)
    if key in _MCP:
        return _MCP[key]
    if problem := missing_extra_message(f"{field} = 'mcp'", "mcp"):
        raise ConfigError(problem)
    from rocstar.engine.tools.mcp import make_tools  # only here: the extra

    try:
        tools = _MCP[key] = make_tools(**choice.args)
    except (TypeError, ValueError, ToolFailure) as error:
        raise ConfigError(f"{setting}: {error}") from None
    if problems := [f"{tool.name}: {problem}" for tool in tools for problem in _problems(tool)]:
        raise ConfigError(f"{setting}: {'; '.join(problems)}")
    return tools


def _own(choice: ToolChoice, field: str) -> Tool:
    """Return a custom tool. ConfigError if it is not a tool, or cannot be made with its arguments."""
    kind, args = choice.kind, choice.args
    key = (kind, json.dumps(args, default=str, sort_keys=True))
    if key in _OWN:
        return _OWN[key]
    tool: Tool = make(kind, args, Tool, field=field)
    problems = list(_problems(tool))
    if problems:
        raise ConfigError(f"{field} = {kind!r}: {'; '.join(problems)}")
    _OWN[key] = tool
    return tool


def _problems(tool: Tool) -> Sequence[str]:
    """Check that the prompt can show the tool and the engine can call it."""
    lacking = [name for name in ("name", "description") if not isinstance(getattr(tool, name, None), str)]
    problems = [f"it has no {name}; set {name} to a text" for name in lacking]
    if isinstance(getattr(tool, "name", None), str) and not _NAME.fullmatch(tool.name):
        problems.append(f"name = {tool.name!r}: use 1 to 64 letters, digits, '_' and '-'")
    if problem := check_parameters(getattr(tool, "parameters", None)):
        problems.append(f"parameters: {problem}")
    if not inspect.iscoroutinefunction(tool.call):
        problems.append("call is not async; write `async def call(self, arguments, context)`")
    if tool.timeout_s is not None and not tool.timeout_s > 0:
        problems.append(f"timeout_s = {tool.timeout_s!r}: give seconds above 0, or None for tool.wall_s")
    return problems
