"""Tools the policy may call: their schemas, their execution in the sandbox, and the words of the result.

    ToolBox.open -> Tools of one trajectory
    parse_tool_calls -> Tools.execute -> Sandbox.run | Interpreter.run -> ExecResult -> result_text -> cut

Who waits: the trajectory, for all calls of a turn. Programs run concurrently, cells of its interpreter one
after the other (engine/interpreter.py). A SandboxError passes through: it makes the trajectory Failed and
never becomes text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from rocstar.engine.chat import Tokenizer
from rocstar.engine.interpreter import Interpreter
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Sandbox, SessionSandbox, Status

TextStyle = Literal["brief", "plain", "rstar2"]
CUT_MARKER = "...(truncated)..."
RESTARTED = "(the interpreter was restarted)"
"""The line above a cell's result when what earlier cells had defined is gone."""
MAX_TOKEN_CHARS = 64
"""Characters per token beyond which a long result is cut before it is encoded."""
PYTHON_TOOL = "python_code_with_standard_io"
PYTHON_TOOL_NAMES = frozenset({PYTHON_TOOL, "execute_python_code_with_standard_io"})
"""The name in the released code, and the one in the paper and the released checkpoint: both work."""

PYTHON_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": PYTHON_TOOL,
        "description": (
            "Execute Python code with standard input and capture standard output. This function takes a "
            "Python code string and an input string, provides the input string through standard input "
            "(stdin) to the code, and captures and returns any output produced through standard output "
            "(stdout). If the executed code raises an exception, the error message will be captured and "
            "returned instead."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "description": "A string containing Python code to be executed. The code can read from "
                    "standard input using the input() function.",
                },
                "input": {
                    "type": "string",
                    "description": "A string that will be provided as standard input to the code when it "
                    "calls input().",
                },
            },
            "required": ["code", "input"],
        },
    },
}
"""The original's schema, word for word (the policy reads it)."""


JUPYTER_TOOL = "jupyter_code"
JUPYTER_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": JUPYTER_TOOL,
        "description": "Execute python code in a Jupyter notebook cell and return result",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The python code to execute in a single cell"}
            },
            "required": ["code"],
        },
    },
}
"""The original's schema too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call: what it is told of it, the names it goes by, its arguments."""

    schema: Mapping[str, Any]
    names: frozenset[str]
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    def read(self, call: ToolCall, index: int, max_parallel_calls: int) -> Mapping[str, str] | ToolResult:
        """The arguments of the `index`-th call of a turn, or the refusal the policy reads."""
        if call.malformed is not None or call.arguments is None:
            return _refuse("malformed_call", f"Failed to decode tool call: {call.malformed}")
        if index >= max_parallel_calls:
            return _refuse("too_many_calls", f"Only {max_parallel_calls} tool calls are executed per turn")
        if call.name not in self.names:
            return _refuse("unknown_tool", f"Unknown tool {call.name!r}; the tool is {self.name!r}")
        arguments = {field: call.arguments.get(field, "") for field in self.arguments}
        for field, value in arguments.items():
            if not isinstance(value, str):
                return _refuse("bad_arguments", f"Argument {field!r} must be a string")
            try:
                value.encode()
            except UnicodeEncodeError:
                return _refuse(
                    "bad_arguments", f"Argument {field!r} holds a lone surrogate, which is not text"
                )
            if "\0" in value and field == "code":
                return _refuse("bad_arguments", "Argument 'code' holds a NUL character")
        return arguments


PYTHON = Tool(schema=PYTHON_SCHEMA, names=PYTHON_TOOL_NAMES, arguments=("code", "input"))
JUPYTER = Tool(schema=JUPYTER_SCHEMA, names=frozenset({JUPYTER_TOOL}), arguments=("code",))
TOOLS: Mapping[str, Tool] = {"python": PYTHON, "jupyter": JUPYTER}


class Tools(Protocol):
    """The tools of one trajectory."""

    async def execute(
        self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        """Results in the order of the calls, which are those of the `turn`-th turn, counted from 1."""
        ...


class ToolBox(Protocol):
    """Where every trajectory gets its tools."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]: ...

    def open(self, *, seed: int) -> AbstractAsyncContextManager[Tools]:
        """`seed` fixes the random modules of everything the trajectory runs. What it holds ends on exit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What both tools run by, and how they tell of it."""

    limits: Limits
    flavour: str
    style: TextStyle
    max_parallel_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonToolBox(_Settings):
    """The Python tool over a sandbox. Stateless: calls of one trajectory share nothing."""

    sandbox: Sandbox

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [PYTHON_SCHEMA]

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        yield _Programs(box=self, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programs:
    box: PythonToolBox
    seed: int

    async def execute(
        self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        seed = self.seed + 64 * turn
        if len(calls) == 1:  # nearly always: no task of its own
            return (await self._execute_one(calls[0], 0, seed, deadline),)
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._execute_one(call, k, seed + k, deadline))
                    for k, call in enumerate(calls)
                ]
        except ExceptionGroup as failures:
            # One failure of ours is enough to lose the trajectory: report it as itself, not as a group.
            raise failures.exceptions[0] from None
        return tuple(task.result() for task in running)

    async def _execute_one(self, call: ToolCall, index: int, seed: int, deadline: float | None) -> ToolResult:
        box = self.box
        arguments = PYTHON.read(call, index, box.max_parallel_calls)
        if isinstance(arguments, ToolResult):
            return arguments
        request = ExecRequest(
            code=arguments["code"],
            stdin=arguments["input"],
            limits=box.limits,
            flavour=box.flavour,
            seed=seed,
        )
        return _told(await box.sandbox.run(request, deadline=deadline), box.style)


@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterToolBox(_Settings):
    """The notebook tool: one live interpreter per trajectory, opened at its first call, closed at its end."""

    sandbox: SessionSandbox

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [JUPYTER_SCHEMA]

    @asynccontextmanager
    async def open(self, *, seed: int) -> AsyncIterator[Tools]:
        interpreter = Interpreter(self.sandbox, flavour=self.flavour, limits=self.limits, seed=seed)
        try:
            yield _Cells(box=self, interpreter=interpreter)
        finally:
            await interpreter.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    box: JupyterToolBox
    interpreter: Interpreter

    async def execute(
        self, calls: Sequence[ToolCall], *, turn: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        return tuple([await self._execute_one(call, k, deadline) for k, call in enumerate(calls)])

    async def _execute_one(self, call: ToolCall, index: int, deadline: float | None) -> ToolResult:
        arguments = JUPYTER.read(call, index, self.box.max_parallel_calls)
        if isinstance(arguments, ToolResult):
            return arguments
        ran = await self.interpreter.run(arguments["code"], deadline=deadline)
        told = _told(ran.result, self.box.style)
        text = f"{RESTARTED}\n{told.text}" if ran.restarted else told.text
        return replace(told, text=text, restarted=ran.restarted, replayed=ran.replayed)


def _told(result: ExecResult, style: TextStyle) -> ToolResult:
    return ToolResult(
        status=result.status.value,
        is_error=result.status is not Status.OK,
        text=result_text(result, style),
    )


def _refuse(status: str, text: str) -> ToolResult:
    return ToolResult(status=status, is_error=True, text=text)


_WHY = {
    Status.TIMEOUT: "TimeoutError: the program exceeded its time limit",
    Status.MEMORY_LIMIT: "MemoryError: the program exceeded its memory limit",
    Status.OUTPUT_LIMIT: "OutputLimitError: the program printed too much",
    Status.DENIED: "PermissionError: the program used an operation that is not allowed",
}


def result_text(result: ExecResult, style: TextStyle) -> str:
    """What the policy reads. No wall time and no memory address in it, except in the original's own strings
    (`rstar2`): the same program would print others in the next run.
    """
    if style == "rstar2":
        return _rstar2_text(result)
    return _ADDRESS.sub("0x...", _text(result, style))


_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]{6,16}(?=>)")
"""As in `<function f at 0x7f1f77c37d40>`."""


def _text(result: ExecResult, style: TextStyle) -> str:
    if result.status is Status.OK:
        parts = [result.stdout.strip("\n"), result.value or ""]
        return "\n".join(part for part in parts if part) or "(no output)"
    why = _WHY.get(result.status) or _last_line(result.stderr)
    if result.status is Status.SIGNALED:
        why = f"killed by signal {result.signal}"
    why = why or f"exit code {result.exit_code}"
    if style == "brief":
        return why
    detail = result.stderr.strip("\n") if result.status is Status.ERROR and result.stderr.strip() else why
    return "\n".join(part for part in (result.stdout.strip("\n"), detail) if part)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _rstar2_text(result: ExecResult) -> str:
    """The released client's strings (its table of outcomes, execution time included)."""
    stdout = result.stdout + (f"{result.value}\n" if result.value is not None else "")
    stderr = _WARNING.sub(r"<string>:\1", result.stderr)
    lines = ["Tool call success"]
    if result.status is not Status.OK:
        reason = "worker_timeout" if result.status is Status.TIMEOUT else ""
        lines = ["Tool call failure", f"reason: {reason}"]
        is_stopped = result.status in (Status.TIMEOUT, Status.OUTPUT_LIMIT)
        stderr = _rstar2_error(_INTERRUPTED.sub("", result.stderr) if is_stopped else result.stderr)
    if result.status is Status.TIMEOUT:
        stdout += "Suicide from timeout.\n"
    lines += [f"stdout: {stdout}"] if stdout else []
    lines += [f"stderr: {stderr}"] if stderr else []
    return "\n".join([*lines, f"execution time: {result.wall_s:.2f}s"])


_WARNING = re.compile(r"^<cell(?: \d+)?>:(\d+: .*\n)(?:  .*\n)?", re.MULTILINE)
"""The original's programs have no file, so its warnings show no source line."""
_INTERRUPTED = re.compile(
    r"^Traceback \(most recent call last\):\n.*^KeyboardInterrupt\n\Z", re.MULTILINE | re.DOTALL
)
"""How a cell that was stopped ends; the original kills without a word."""
_FRAME = re.compile(r'^  File "<cell(?: \d+)?>", line (\d+)(, in )?.*\n(?:    (.*)\n)?', re.MULTILINE)
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w+)(?:: (.*))?$", re.MULTILINE)


def _rstar2_error(stderr: str) -> str:
    """`Type at line N: message` and the source line, from a standard traceback."""
    frames = list(_FRAME.finditer(stderr))
    exception = _EXCEPTION.search(stderr, frames[-1].end()) if frames else None
    if exception is None:
        return stderr
    line, in_frame, source = frames[-1].groups()
    kind, message = exception[1], (exception[2] or "") + stderr[exception.end() :].rstrip()
    if in_frame is None:  # the place of a SyntaxError: its str() names it
        message += f" (<unknown>, line {line})"
    shown = f"\n  {source.strip()}" if source else ""
    return f"{kind} at line {line}: {message}{shown}\n"


def cut_middle(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """At most about `max_tokens` tokens of `text`: its head, one marker, its tail."""
    if 4 * len(text) <= max_tokens:  # a token is at least one byte, a character at most four
        return text
    end = max_tokens * MAX_TOKEN_CHARS
    if is_long := len(text) > 2 * end:  # encode no megabytes to show a hundred tokens
        head_ids, tail_ids = (
            tokenizer.encode(part, add_special_tokens=False) for part in (text[:end], text[-end:])
        )
    else:
        head_ids = tail_ids = tokenizer.encode(text, add_special_tokens=False)
    if not is_long and len(head_ids) <= max_tokens:
        return text
    room = max(0, max_tokens - len(tokenizer.encode(CUT_MARKER, add_special_tokens=False)))
    head, tail = head_ids[: room - room // 2], tail_ids[len(tail_ids) - room // 2 :]
    return CUT_MARKER.join(tokenizer.decode(ids, skip_special_tokens=False) for ids in (head, tail))
