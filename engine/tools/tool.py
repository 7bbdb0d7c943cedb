"""The tool protocol: a function that the policy may call by name, and its output.

    class Clock(Tool):
        name = "clock"
        description = "The time of a place"
        parameters = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}

        async def call(self, arguments, context):
            if arguments["place"] not in ZONES:
                raise ToolError("no such place")          # the policy reads it, and it counts as an error
            return ToolOutput(time_at(arguments["place"]))

A ToolError is the tool's answer to a bad call. Any other exception is an infrastructure failure: the
trajectory becomes Failed, without a reward and without text for the policy.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rocstar.sandbox.types import Sandbox, SessionSandbox, Status


class ToolError(Exception):
    """The answer to a call that cannot be served. The policy reads its text."""


class BadArguments(ToolError):
    """The arguments of a call are not those that the tool takes."""


class ToolFailure(Exception):
    """A tool failed by no fault of the policy: the trajectory becomes Failed and has no reward.

    Args:
        detail: what happened, for the record.
        retryable: whether the same call may succeed later.
    """

    kind: ClassVar[str] = "tool_failed"

    def __init__(self, detail: str, *, retryable: bool = True) -> None:
        super().__init__(detail)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a call: the text for the policy, and the call's status.

    Every status but `ok` is an error of the call (contract 6). `restarted` and `replayed` describe a live
    interpreter: see types.ToolResult.
    """

    text: str
    status: Status = Status.OK
    restarted: bool = False
    replayed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"the text of a ToolOutput is of type {type(self.text).__name__}; give a str")
        Status(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a call.

    Attributes:
        seed: random seed of this call; in `Tool.open` the trajectory's.
        deadline: the end of the call, as `loop.time()`; None without a limit.
        sandbox: runs programs; None if the tools were opened without one.
        session: the result of `Tool.open` for this trajectory.
    """

    seed: int
    deadline: float | None
    sandbox: Sandbox | SessionSandbox | None
    session: Any = None


class Tool(ABC):
    """A function that the policy may call. One object serves all trajectories of a process.

    State of one trajectory is a session: `open` makes it before the first call, calls get it in their
    context, and `close` ends it after the trajectory's last turn, in every case.

    Attributes:
        name: its name for the policy: letters, digits, `_` and `-`.
        description: its description for the policy.
        parameters: a JSON schema of the arguments, an object.
        parallel: True if calls of one turn run concurrently, else one after the other.
        timeout_s: seconds that a call may take; None is the limit of the recipe, `tool.wall_s`.
        shared: the tools of one trajectory with the same text share a session, which the first called of them
            opens and closes, and a turn's calls of them run as if they were one tool's; "" for a session of its own.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    parallel: bool = True
    timeout_s: float | None = None
    shared: str = ""
    keeps_deadline: bool = False
    """Whether its calls end by `context.deadline` on their own, as those of a sandbox do."""
    branch: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    """A coroutine method `branch(session)` that returns a copy of a session, with equal state and independent of it,
    for a branch of the trajectory. None: no trajectory with a session of this tool forks."""

    @property
    def can_branch(self) -> bool:
        """Return True if a trajectory that called it may fork: it copies its sessions, or has none."""
        return self.branch is not None or type(self).open is Tool.open

    @property
    def names(self) -> frozenset[str]:
        """Every name that the tool answers to; the prompt shows `name` alone."""
        return frozenset({self.name})

    @property
    def schema(self) -> dict[str, Any]:
        """The function as chat templates show it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that `call` gets, from those that the policy wrote.

        Raises:
            BadArguments: they do not fit `parameters`.
        """
        if problem := check_arguments(arguments, self.parameters):
            raise BadArguments(problem)
        return arguments

    async def open(self, context: ToolContext) -> Any:
        """Begin a trajectory's session; called before its first call of this tool."""
        return None

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Answer one call.

        Raises:
            ToolError: the call cannot be served; its text is for the policy.
        """

    async def close(self, session: Any) -> None:
        """End the session of a trajectory."""
        return None


MAX_SHOWN_CHARS = 300
"""The length of a problem's text at most: it repeats the value, and the policy wrote that."""


def check_parameters(parameters: Any) -> str | None:
    """Return the error of the schema of a tool's arguments; None if it is valid."""
    from jsonschema import Draft202012Validator, SchemaError  # only here: importing it takes a tenth of a second

    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        return "it is no JSON schema of an object; give {'type': 'object', 'properties': {...}}"
    try:
        json.dumps(parameters, allow_nan=False)
        Draft202012Validator.check_schema(parameters)
    except (TypeError, ValueError) as error:
        return f"it cannot be written as JSON: {error}"
    except SchemaError as error:
        return f"it is no JSON schema: {error.message}"
    return None


def check_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """Return the error of a call's arguments in one sentence; None if they are valid."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    for where, text in _texts(arguments, ""):
        if problem := check_text(where, text):
            return problem
    error = best_match(Draft202012Validator(parameters).iter_errors(arguments))
    if error is None:
        return None
    where, what = ".".join(str(part) for part in error.absolute_path), error.message[:MAX_SHOWN_CHARS]
    return f"Argument {where!r}: {what}" if where else what


def check_text(field: str, text: str) -> str | None:
    """Why a text can be no argument; None where it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"Argument {field!r} holds a lone surrogate, which is not text"
    return None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield every string inside, keys of objects too, with the path of its field."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield where or "", key
            yield from _texts(item, where or key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, where)
