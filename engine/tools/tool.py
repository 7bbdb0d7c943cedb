"""What a tool is: a function that the policy may call by its name, and what it answers.

    class Clock(Tool):
        name = "clock"
        description = "The time of a place"
        parameters = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}

        async def call(self, arguments, context):
            if arguments["place"] not in ZONES:
                raise ToolError("no such place")          # the policy reads it, and it counts as an error
            return ToolOutput(time_at(arguments["place"]))

Two kinds of going wrong are kept apart. A ToolError is the tool's own answer to a bad call. Any other
exception is a failure of ours: the trajectory becomes Failed and gets no reward, and no text tells of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rocstar.engine.tools.arguments import check_arguments
from rocstar.sandbox.types import Sandbox, SessionSandbox, Status


class ToolError(Exception):
    """The answer to a call that cannot be served. Its text is what the policy reads."""


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
    """What a call gives: the text that the policy reads, and how the call ended.

    Everything but `ok` is an error of the call (contract 6). `restarted` and `replayed` are of a live
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
    """What a call may use beside its arguments.

    Attributes:
        seed: of this call, for what draws at random; in `Tool.open` it is the trajectory's.
        deadline: when the call is ended, as `loop.time()`; None where nothing ends it.
        sandbox: runs programs; None where the tools were opened without one.
        session: what `Tool.open` returned for this trajectory.
    """

    seed: int
    deadline: float | None
    sandbox: Sandbox | SessionSandbox | None
    session: Any = None


class Tool(ABC):
    """A function that the policy may call. One object serves all trajectories of a process.

    What belongs to one trajectory is a session: `open` makes it before the first call, calls find it in
    their context, and `close` ends it when the trajectory's last turn is over, however that came about.

    Attributes:
        name: what the policy calls it by: letters, digits, `_` and `-`.
        description: what the policy is told of it.
        parameters: a JSON schema of the arguments, an object.
        parallel: whether calls of one turn run together; where not, one after the other.
        timeout_s: seconds that a call may take; None is the limit of the recipe, `tool.wall_s`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    parallel: bool = True
    timeout_s: float | None = None
    keeps_deadline: bool = False
    """Whether its calls end by `context.deadline` on their own, as those of a sandbox do."""

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
