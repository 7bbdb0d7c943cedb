"""Tools the policy may call: their schemas, their execution in the sandbox, and the words of the result.

    parse_tool_calls -> ToolBox.execute -> Sandbox.run -> ExecResult -> result_text -> cut to tokens

Who waits: the trajectory, for all calls of a turn; they run concurrently. A SandboxError passes through:
it makes the trajectory Failed and never becomes text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rocstar.engine.chat import Tokenizer
from rocstar.engine.types import ToolCall, ToolResult
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Sandbox, Status

TextStyle = Literal["brief", "plain", "rstar2"]
CUT_MARKER = "...(truncated)..."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBox:
    """The Python tool over a sandbox. Stateless: calls of one trajectory share nothing."""

    sandbox: Sandbox
    limits: Limits
    flavour: str
    style: TextStyle
    max_parallel_calls: int

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [PYTHON_SCHEMA]

    async def execute(
        self, calls: Sequence[ToolCall], *, seed: int, deadline: float | None
    ) -> tuple[ToolResult, ...]:
        """Results in the order of the calls. `seed` fixes the random modules of the programs."""
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
        request = self._request(call, index, seed)
        if isinstance(request, ToolResult):
            return request
        result = await self.sandbox.run(request, deadline=deadline)
        return ToolResult(
            status=result.status.value,
            is_error=result.status is not Status.OK,
            text=result_text(result, self.style),
        )

    def _request(self, call: ToolCall, index: int, seed: int) -> ExecRequest | ToolResult:
        """The request to run, or the refusal the policy reads."""
        if call.malformed is not None or call.arguments is None:
            return _refuse("malformed_call", f"Failed to decode tool call: {call.malformed}")
        if index >= self.max_parallel_calls:
            return _refuse(
                "too_many_calls", f"Only {self.max_parallel_calls} tool calls are executed per turn"
            )
        if call.name not in PYTHON_TOOL_NAMES:
            return _refuse("unknown_tool", f"Unknown tool {call.name!r}; the tool is {PYTHON_TOOL!r}")
        code, stdin = call.arguments.get("code", ""), call.arguments.get("input", "")
        for field, value in (("code", code), ("input", stdin)):
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
        return ExecRequest(code=code, stdin=stdin, limits=self.limits, flavour=self.flavour, seed=seed)


def _refuse(status: str, text: str) -> ToolResult:
    return ToolResult(status=status, is_error=True, text=text)


_WHY = {
    Status.TIMEOUT: "TimeoutError: the program exceeded its time limit",
    Status.MEMORY_LIMIT: "MemoryError: the program exceeded its memory limit",
    Status.OUTPUT_LIMIT: "OutputLimitError: the program printed too much",
    Status.DENIED: "PermissionError: the program used an operation that is not allowed",
}


def result_text(result: ExecResult, style: TextStyle) -> str:
    """What the policy reads. No wall time in it, except in the original's own strings (`rstar2`)."""
    if style == "rstar2":
        return _rstar2_text(result)
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
    stderr = result.stderr.replace("<cell>:", "<string>:")
    lines = ["Tool call success"]
    if result.status is not Status.OK:
        reason = "worker_timeout" if result.status is Status.TIMEOUT else ""
        lines = ["Tool call failure", f"reason: {reason}"]
        stderr = _rstar2_error(result.stderr)
    if result.status is Status.TIMEOUT:
        stdout += "Suicide from timeout.\n"
    lines += [f"stdout: {stdout}"] if stdout else []
    lines += [f"stderr: {stderr}"] if stderr else []
    return "\n".join([*lines, f"execution time: {result.wall_s:.2f}s"])


_FRAME = re.compile(r'^  File "<cell>", line (\d+)(, in )?.*\n(?:    (.*)\n)?', re.MULTILINE)
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
