"""What the service answers, as msgspec models: the handlers build these, and /openapi.json shows them."""

from dataclasses import fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rocstar.sandbox.types import ExecResult

REF = "#/components/schemas/{name}"

Pong = Literal["pong"]


class Healthy(Struct, forbid_unknown_fields=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Whether a program runs now; `reason` says why not."""

    ready: bool
    reason: str = ""


class Refusal(Struct, forbid_unknown_fields=True):
    """Why nothing ran."""

    detail: str


class MistakeDetail(Struct):
    """What is wrong, and where."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any
    ctx: Any = None


class Mistakes(Struct, forbid_unknown_fields=True):
    """What is wrong with a body."""

    detail: list[MistakeDetail]


# --- native ----------------------------------------------------------------------------------------------

Result = msgspec.defstruct(
    "Result",
    [(item.name, item.type) for item in fields(ExecResult)],
    forbid_unknown_fields=True,
    namespace={"__doc__": "How a program ended, what it wrote and what it used."},
)


class FailureFields(Struct, forbid_unknown_fields=True):
    """Why there is no result. `field`: what is wrong with the request; `reason`: why a session is gone."""

    kind: str
    message: str
    retryable: bool
    field: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Failure(Struct, forbid_unknown_fields=True):
    """No result."""

    error: FailureFields


_EITHER = [{"$ref": REF.format(name=name)} for name in ("Result", "Failure")]
ResultOrFailure = Annotated[Any, Meta(extra_json_schema={"oneOf": _EITHER})]
"""One of two models that only their fields tell apart, which msgspec does not take for a union."""


class Outcomes(Struct, forbid_unknown_fields=True):
    """A Result or a Failure for each request, in their order."""

    results: list[ResultOrFailure]


class OutcomeLine(Struct):
    """A Result or a Failure, with the place of its request."""

    index: int


class SessionId(Struct, forbid_unknown_fields=True):
    """The name of a session."""

    id: str


class OpenSession(Struct, forbid_unknown_fields=True):
    """`busy`: a request uses it now. `expires_s`: the seconds that are left of its lease."""

    id: str
    flavour: str
    busy: bool
    expires_s: float


class SessionList(Struct, forbid_unknown_fields=True):
    """The sessions of whoever asks, least recently used first."""

    sessions: list[OpenSession]


class SessionFile(Struct, forbid_unknown_fields=True):
    """A file of a session."""

    name: str
    bytes: int


class SessionFiles(Struct, forbid_unknown_fields=True):
    """Files that can be fetched, by name."""

    files: list[SessionFile]


# --- code-judge --------------------------------------------------------------------------------------------

JudgeReason = Literal["", "worker_timeout", "queue_timeout", "internal_error", "invalid_input"]


class JudgeAnswer(Struct, forbid_unknown_fields=True):
    """Whether a submission is right."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: JudgeReason


class RunAnswer(Struct, forbid_unknown_fields=True):
    """The same, with the heads of what the program wrote."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    stdout: str | None
    stderr: str | None
    reason: JudgeReason


class JudgeAnswers(Struct, forbid_unknown_fields=True):
    """An answer for each submission, in their order."""

    sub_id: str
    results: list[JudgeAnswer]


class RunAnswers(Struct, forbid_unknown_fields=True):
    """An answer for each submission, in their order."""

    sub_id: str
    results: list[RunAnswer]


class QueueStatus(Struct, forbid_unknown_fields=True):
    """How many submissions wait, and how many run at a time."""

    queue: int
    num_workers: int


# --- SandboxFusion -----------------------------------------------------------------------------------------

FusionStatus = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "TimeLimitExceeded", "Error"]


class Command(Struct, forbid_unknown_fields=True):
    """A command that was run."""

    status: CommandStatus
    execution_time: float | None
    return_code: int | None
    stdout: str
    stderr: str


class CellFault(Struct, forbid_unknown_fields=True):
    """An exception that a cell raised."""

    ename: str
    evalue: str
    traceback: list[str]


class CellAnswer(Struct, forbid_unknown_fields=True):
    """What became of a cell."""

    stdout: str
    stderr: str
    display: list[dict[str, str]]
    error: list[CellFault]


class CodeAnswer(Struct, kw_only=True, forbid_unknown_fields=True):
    """What became of a program."""

    status: FusionStatus
    message: str = ""
    compile_result: Command | None
    run_result: Command | None
    executor_pod_name: None = None
    files: dict[str, str] = {}


class NotebookAnswer(Struct, kw_only=True, forbid_unknown_fields=True):
    """What became of a notebook."""

    status: FusionStatus
    message: str = ""
    driver: Command | None
    cells: list[CellAnswer]
    executor_pod_name: None = None
    files: dict[str, str] = {}


# --- verl-tool ---------------------------------------------------------------------------------------------


class InvalidAction(Struct, forbid_unknown_fields=True):
    """What the policy is shown of an action that ran nothing, and why."""

    invalid_reason: str
    obs: str = ""


class Observations(Struct, kw_only=True, forbid_unknown_fields=True):
    """What each action came to, in their order."""

    observations: list[str | InvalidAction]
    dones: list[bool]
    valids: list[bool]
    processing_time_ms: float


class ToolServerHealth(Struct, kw_only=True, forbid_unknown_fields=True):
    """The process answers."""

    status: Literal["healthy"] = "healthy"
    active_tasks: int
    tools: list[str]
    uptime_seconds: float
