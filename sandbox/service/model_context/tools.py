"""The tools: run a program, run the cells of a session, put files there and take them.

The SDK checks every argument against the signature, whose words a model reads. What a client may have is
bounded: programs at a time, sessions, bytes of files; who is over gets an error that says so.
"""

import base64
import binascii
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.model_context.answer import of_failure, of_result, text_of
from rocstar.sandbox.service.model_context.bodies import NO_TEXTS, LongTexts
from rocstar.sandbox.service.model_context.guard import TEXTS
from rocstar.sandbox.service.model_context.outputs import KeptOutputs
from rocstar.sandbox.service.models import MAX_JSON_FILES_BYTES
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, ExecResult, Limits, SandboxError, SessionLost

NAME = "rocstar sandbox"
MAX_FILES = 16
MAX_WALL_S = 600.0

INSTRUCTIONS = """Runs Python in isolation: no network, no files but its own. run_python runs one program;
run_cell runs the cells of a notebook, which keep their state. The value of a last expression is shown,
figures of matplotlib come as images, and `display` shows a value. Top-level await works."""

MAX_ANSWER_BYTES = 4 << 20
"""Of the files and displays of an answer, which the SDK writes as base64 in the event loop."""

MAX_CODE_CHARS = 1 << 20
"""Of a program: what it imports is looked for before it runs."""

Code = Annotated[str, Field(description="Python source; the value of a last expression is shown")]
WallS = Annotated[float, Field(gt=0, le=MAX_WALL_S, description="time limit, in seconds")]
Texts = Annotated[
    dict[str, str], Field(max_length=MAX_FILES, description="files to write before: name to text")
]
Fetch = Annotated[
    list[str], Field(max_length=MAX_FILES, description="names of files to give back afterwards")
]
SessionName = Annotated[str, Field(max_length=64, description="as the first cell gave it; empty: a new one")]

_HINTS = {
    "run_python": ToolAnnotations(title="Run a program", readOnlyHint=True, openWorldHint=False),
    "run_cell": ToolAnnotations(title="Run a cell", destructiveHint=False, openWorldHint=False),
    "write_file": ToolAnnotations(title="Write a file", destructiveHint=True, openWorldHint=False),
    "read_file": ToolAnnotations(title="Read a file", readOnlyHint=True, openWorldHint=False),
    "close_session": ToolAnnotations(title="End a session", destructiveHint=True, openWorldHint=False),
}

OwnerOf = Callable[[Mapping[str, str] | None], str]
"""Whose a request is, by its headers; None for a client at the other end of a pipe."""


class Toolbox:
    """The tools over one sandbox. A session is its owner's alone."""

    def __init__(
        self, admission: Admission, sessions: SessionTable, owner_of: OwnerOf, flavour: str = "auto"
    ) -> None:
        self._outputs = KeptOutputs()
        self._admission = admission
        self._sessions = sessions
        self._owner_of = owner_of
        self._flavour = flavour

    def tools(self) -> list[Tool]:
        own = (self.run_python, self.run_cell, self.write_file, self.read_file, self.close_session)
        return [strict(Tool.from_function(one, annotations=_HINTS[one.__name__])) for one in own]

    async def output(self, name: str, ctx: Context) -> str:
        """The whole of an output that was too long for its answer."""
        text = self._outputs.read(self._owner(ctx), name)
        if text is None:
            raise ResourceNotFoundError(f"there is no output {name[:60]!a} any more; run the program again")
        return text

    def _kept(self, owner: str) -> Callable[[str], str]:
        return partial(self._outputs.keep, owner)

    async def run_python(
        self,
        ctx: Context,
        code: Code,
        stdin: Annotated[str, Field(description="what the program reads")] = "",
        files: Texts = {},  # noqa: B006  # read only, and shown in the schema
        fetch: Fetch = [],  # noqa: B006
        wall_s: WallS = DEFAULT_LIMITS.wall_s,
    ) -> CallToolResult:
        """Run one Python program in isolation. Nothing is kept of it; use run_cell to go on."""

        async def work() -> CallToolResult:
            request = ExecRequest(
                code=_program(ctx, code),
                stdin=str(_whole(ctx, stdin)),
                files=_encoded(ctx, files),
                fetch=tuple(fetch),
                displays=True,
                flavour=self._flavour,
                limits=_limits(wall_s),
                owner=self._owner(ctx),
            )
            result = _bounded(await self._admission.run(request))
            return of_result(result, keep=self._kept(request.owner))

        return await _told(work())

    async def run_cell(
        self,
        ctx: Context,
        code: Code,
        session: SessionName = "",
        files: Texts = {},  # noqa: B006
        fetch: Fetch = [],  # noqa: B006
        wall_s: WallS = DEFAULT_LIMITS.wall_s,
    ) -> CallToolResult:
        """Run a cell of a session, which keeps its variables. The first one's answer has the id."""

        async def work() -> CallToolResult:
            owner, source, contents = self._owner(ctx), _program(ctx, code), _encoded(ctx, files)
            with self._admission.admitted(owner):
                name = session or await self._open(owner)
                result = await self._cell(name, owner, source, wall_s, contents, fetch)
            ended = self._sessions.why_gone(name)
            return of_result(_bounded(result), keep=self._kept(owner), ended=ended, session=name)

        return await _told(work())

    async def write_file(
        self,
        ctx: Context,
        session: SessionName,
        name: Annotated[str, Field(description="a path below the session's directory")],
        content_base64: Annotated[str, Field(description="the content, as base64")],
    ) -> CallToolResult:
        """Write a file, of any bytes, into a session's directory."""

        async def work() -> CallToolResult:
            owner = self._owner(ctx)
            content = _decoded(_whole(ctx, content_base64))
            with self._admission.admitted(owner):
                known = session or await self._open(owner)
                result = await self._cell(known, owner, "", MAX_WALL_S, {name: content}, [])
            return of_result(result, session=known)

        return await _told(work())

    async def read_file(
        self, ctx: Context, session: SessionName, name: Annotated[str, Field(description="its path there")]
    ) -> CallToolResult:
        """Read a file of a session's directory."""

        async def work() -> CallToolResult:
            owner = self._owner(ctx)
            with self._admission.admitted(owner):
                result = await self._cell(session, owner, "", MAX_WALL_S, {}, [name])
            if name not in result.files:
                raise ValueError(f"the session has no file {name[:100]!r} that can be read")
            return of_result(_bounded(result), session=session)

        return await _told(work())

    async def close_session(self, ctx: Context, session: SessionName) -> CallToolResult:
        """End a session; its variables and files are gone."""

        async def work() -> CallToolResult:
            await self._sessions.close(session, self._owner(ctx))
            return CallToolResult(content=[text_of("closed")])

        return await _told(work())

    async def _open(self, owner: str) -> str:
        return await self._sessions.open(self._flavour, _limits(MAX_WALL_S), None, owner)

    async def _cell(
        self,
        session: str,
        owner: str,
        code: str,
        wall_s: float,
        files: Mapping[str, bytes],
        fetch: list[str],
    ) -> ExecResult:
        return await self._sessions.run(
            session,
            code,
            wall_s=wall_s,
            deadline=self._admission.deadline(None),
            owner=owner,
            files=files,
            fetch=fetch,
            displays=True,
        )

    def _owner(self, ctx: Context) -> str:
        return self._owner_of(ctx.headers)


def strict(tool: Tool) -> Tool:
    """It refuses an argument that it does not know, which the SDK would leave out without a word."""
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


async def _told(work: Coroutine[None, None, CallToolResult]) -> CallToolResult:
    """What keeps a tool from a result is an answer that a model can read, not an error of the protocol."""
    try:
        return await work
    except SessionLost as error:
        return of_failure(f"{error}; run a cell without `session` to open another")
    except (SandboxError, Refused, ValueError) as error:
        return of_failure(str(error))


def _limits(wall_s: float) -> Limits:
    return Limits(wall_s=wall_s, cpu_s=int(wall_s) + 1, file_bytes=MAX_JSON_FILES_BYTES)


def _whole(ctx: Context, text: str) -> str | bytes:
    """The text of an argument, which the body of the request may only mark (bodies.py)."""
    scope = getattr(ctx.request_context.request, "scope", None)
    texts: LongTexts = NO_TEXTS if scope is None else scope["state"][TEXTS]
    return texts.get(text, text)


def _program(ctx: Context, code: str) -> str:
    source = str(_whole(ctx, code))
    if len(source) > MAX_CODE_CHARS:
        raise ValueError(f"code has {len(source)} characters; at most {MAX_CODE_CHARS} are run")
    return source


def _encoded(ctx: Context, files: Mapping[str, str]) -> dict[str, bytes]:
    found = {name: _whole(ctx, text) for name, text in files.items()}
    return {
        name: text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        for name, text in found.items()
    }


def _decoded(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"content_base64 is no base64: {error}") from None


def _bounded(result: ExecResult) -> ExecResult:
    total = sum(map(len, result.files.values())) + sum(len(one.data) for one in result.displays)
    if total > MAX_ANSWER_BYTES:
        raise ValueError(f"the files have {total} bytes; at most {MAX_ANSWER_BYTES} go into one answer")
    return result
