"""The tools: run a program, run the cells of a session, write and read the files of a session.

The SDK validates the arguments by the signatures, which the model reads. Programs at a time, sessions and
bytes of files are limited; a call beyond a limit returns an error that says so. A result becomes text for the
model, images, files and fields; output that is too long is stored for a while, and linked as a resource.
"""

import base64
import binascii
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Annotated, Any, ParamSpec

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import Field

from rocstar.sandbox import types
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.service.admission import Admission
from rocstar.sandbox.service.model_context.guard import NO_TEXTS, TEXTS, LongTexts
from rocstar.sandbox.service.results import MAX_JSON_FILES_BYTES, count_file_bytes
from rocstar.sandbox.service.sessions import SessionTable

SCHEME = "rocstar-output"
MAX_KEPT_CHARS = 64 << 20
MAX_KEPT_PER_OWNER = 16


@dataclass(eq=False)
class OutputStore:
    """The texts by owner and name. Invariant: at most `MAX_KEPT_CHARS` of all owners, and the latest
    `MAX_KEPT_PER_OWNER` of each."""

    kept: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict)
    _chars: int = 0

    def keep(self, owner: str, text: str) -> str:
        """The URI under which the text can be read for a while."""
        name = secrets.token_hex(8)
        self.kept[owner, name] = text
        self._chars += len(text)
        mine = [key for key in self.kept if key[0] == owner]
        if len(mine) > MAX_KEPT_PER_OWNER:
            self._drop(mine[0])
        while self._chars > MAX_KEPT_CHARS:
            self._drop(next(iter(self.kept)))
        return f"{SCHEME}://{name}"

    def _drop(self, key: tuple[str, str]) -> None:
        self._chars -= len(self.kept.pop(key))


NAME = "rocstar sandbox"
MAX_TEXT_CHARS = 20_000
"""The maximum length of the text of a response, which goes into the context of a model."""

MAX_FIELD_CHARS = 2_000
"""The maximum length of a text among the fields of a response: programs read them, and the content already
has the text."""

PICTURES = ("image/png", "image/jpeg")
"""The types that a model can see; other displays become resources."""


def to_call_result(
    result: types.ExecResult, *, keep: Callable[[str], str] | None = None, ended: str = "", **more: str
) -> CallToolResult:
    """The result for a model: at most `MAX_TEXT_CHARS` of text, never an empty one.

    Args:
        result: of the program. An error, as contract 6 has it, is any status but ok.
        keep: stores a text that is too long and returns its URI.
        ended: why the session is gone, if the cell ended it.
        more: further fields, the session's id say.
    """
    parts = [result.stdout, "" if result.value is None else result.value, result.stderr]
    whole = "\n".join(part.rstrip("\n") for part in parts if part)
    notes = []
    if result.status not in (types.Status.OK, types.Status.ERROR):
        notes.append(f"[{result.status}]")
    elif result.status is types.Status.ERROR and not result.stderr:
        notes.append(f"[exit code {result.exit_code}]")
    if result.stdout_truncated or result.stderr_truncated:
        notes.append("[the program wrote more than is kept; the rest is lost]")
    if ended:
        notes.append(f"[the session is gone: {ended}; run a cell without `session` to open another]")
    text = "\n".join(part for part in (truncate_middle(whole, MAX_TEXT_CHARS), *notes) if part)
    content: list[ContentBlock] = [_display_content(number, one) for number, one in enumerate(result.displays)]
    content += [_file_content(name, data) for name, data in result.files.items()]
    if text.strip() or not content:
        content.insert(0, text_content(text if text.strip() else "[no output]"))
    if len(whole) > MAX_TEXT_CHARS and keep is not None:
        about = f"the whole output, {len(whole)} characters, kept for a while"
        link = ResourceLink(name="output", uri=keep(whole), description=about, mime_type="text/plain", size=len(whole))
        content.append(link)
    fields: dict[str, Any] = {
        **more,
        **({"session_ended": ended} if ended else {}),
        "status": str(result.status),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": truncate_middle(result.stdout, MAX_FIELD_CHARS),
        "stderr": truncate_middle(result.stderr, MAX_FIELD_CHARS),
        "value": None if result.value is None else truncate_middle(result.value, MAX_FIELD_CHARS),
        "truncated": result.stdout_truncated or result.stderr_truncated,
    }
    is_error = result.status is not types.Status.OK
    return CallToolResult(content=content, structured_content=fields, is_error=is_error)


def truncate_middle(text: str, most: int) -> str:
    """Return the text, or its beginning and end with the number of omitted characters between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def to_error_result(why: str) -> CallToolResult:
    """No result: the sandbox failed, or the call asks for what cannot be."""
    return CallToolResult(content=[text_content(truncate_middle(why, MAX_TEXT_CHARS) or "it failed")], is_error=True)


def text_content(text: str) -> TextContent:
    """Return a text block. It must not be empty: model providers reject empty text."""
    return TextContent(type="text", text=text)


def _display_content(number: int, one: types.Display) -> ContentBlock:
    if one.mime in PICTURES:
        return ImageContent(type="image", data=b64encode(one.data).decode(), mime_type=one.mime)
    text = truncate_middle(one.data.decode("utf-8", "replace"), MAX_TEXT_CHARS)
    uri = f"display:{number}"
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, text=text, mime_type=one.mime))


def _file_content(name: str, data: bytes) -> ContentBlock:
    blob = BlobResourceContents(
        uri=f"file:///{name.lstrip('/')}", blob=b64encode(data).decode(), mime_type="application/octet-stream"
    )
    return EmbeddedResource(type="resource", resource=blob)


MAX_FILES = 16
MAX_WALL_S = 600.0

INSTRUCTIONS = """Runs Python in isolation: no network, no files but its own. run_python runs one program;
run_cell runs the cells of a notebook, which keep their state. The value of a last expression is shown,
figures of matplotlib come as images, and `display` shows a value. Top-level await works."""

MAX_ANSWER_BYTES = 4 << 20
"""The maximum size of files and displays in a response, because the SDK encodes them as base64 in the event
loop."""

MAX_CODE_CHARS = 1 << 20
"""The maximum length of a program, because its imports are scanned before it runs."""

Code = Annotated[str, Field(description="Python source; the value of a last expression is shown")]
WallS = Annotated[float, Field(gt=0, le=MAX_WALL_S, description="time limit, in seconds")]

Texts = Annotated[dict[str, str], Field(max_length=MAX_FILES, description="files to write before: name to text")]

Fetch = Annotated[list[str], Field(max_length=MAX_FILES, description="names of files to give back afterwards")]

SessionName = Annotated[str, Field(max_length=64, description="as the first cell gave it; empty: a new one")]

_HINTS = {
    "run_python": ToolAnnotations(title="Run a program", readOnlyHint=True, openWorldHint=False),
    "run_cell": ToolAnnotations(title="Run a cell", destructiveHint=False, openWorldHint=False),
    "write_file": ToolAnnotations(title="Write a file", destructiveHint=True, openWorldHint=False),
    "read_file": ToolAnnotations(title="Read a file", readOnlyHint=True, openWorldHint=False),
    "close_session": ToolAnnotations(title="End a session", destructiveHint=True, openWorldHint=False),
}

OwnerOf = Callable[[Mapping[str, str] | None], str]
"""Returns the owner of a request by its headers; None for a client on standard input."""


P = ParamSpec("P")


def errors_as_results(tool: Callable[P, Awaitable[CallToolResult]]) -> Callable[P, Awaitable[CallToolResult]]:
    """Return errors of a tool as results that the model can read, not as errors of the protocol."""

    @wraps(tool)
    async def run(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            return await tool(*args, **kwargs)
        except types.SessionLost as error:
            return to_error_result(f"{error}; run a cell without `session` to open another")
        except (types.SandboxError, RequestError, ValueError) as error:
            return to_error_result(str(error))

    return run


@dataclass(eq=False)
class McpTools:
    """The tools over one sandbox. A session is its owner's alone."""

    admission: Admission
    sessions: SessionTable
    owner_of: OwnerOf
    flavour: str = "auto"
    _outputs: OutputStore = field(default_factory=OutputStore)

    def tools(self) -> list[Tool]:
        found = []
        for one in (self.run_python, self.run_cell, self.write_file, self.read_file, self.close_session):
            tool = Tool.from_function(one, annotations=_HINTS[one.__name__])
            model = tool.fn_metadata.arg_model
            model.model_config["extra"] = "forbid"  # the SDK would ignore unknown arguments silently
            model.model_rebuild(force=True)
            tool.parameters = model.model_json_schema(by_alias=True)
            found.append(tool)
        return found

    async def output(self, name: str, ctx: Context) -> str:
        """Return an output that was too long for its response."""
        text = self._outputs.kept.get((self._owner(ctx), name))
        if text is None:
            raise ResourceNotFoundError(f"there is no output {name[:60]!a} any more; run the program again")
        return text

    @errors_as_results
    async def run_python(
        self,
        ctx: Context,
        code: Code,
        stdin: Annotated[str, Field(description="what the program reads")] = "",
        files: Texts = {},  # noqa: B006  # read only, and shown in the schema
        fetch: Fetch = [],  # noqa: B006
        wall_s: WallS = types.DEFAULT_LIMITS.wall_s,
    ) -> CallToolResult:
        """Run one Python program in isolation. It keeps no state; use run_cell for a session that does."""
        request = types.ExecRequest(
            code=_checked_code(ctx, code),
            stdin=str(_argument_text(ctx, stdin)),
            files=_encode_files(ctx, files),
            fetch=tuple(fetch),
            displays=True,
            flavour=self.flavour,
            limits=_to_limits(wall_s),
            owner=self._owner(ctx),
        )
        result = _check_answer_size(await self.admission.run(request))
        return to_call_result(result, keep=partial(self._outputs.keep, request.owner))

    @errors_as_results
    async def run_cell(
        self,
        ctx: Context,
        code: Code,
        session: SessionName = "",
        files: Texts = {},  # noqa: B006
        fetch: Fetch = [],  # noqa: B006
        wall_s: WallS = types.DEFAULT_LIMITS.wall_s,
    ) -> CallToolResult:
        """Run a cell of a session, which keeps its variables. The first one's answer has the id."""
        owner, source, contents = self._owner(ctx), _checked_code(ctx, code), _encode_files(ctx, files)
        with self.admission.admitted(owner):
            name = session or await self._open(owner)
            result = await self._cell(name, owner, source, wall_s, contents, fetch)
        ended = self.sessions.end_reason(name)
        return to_call_result(
            _check_answer_size(result), keep=partial(self._outputs.keep, owner), ended=ended, session=name
        )

    @errors_as_results
    async def write_file(
        self,
        ctx: Context,
        session: SessionName,
        name: Annotated[str, Field(description="a path below the session's directory")],
        content_base64: Annotated[str, Field(description="the content, as base64")],
    ) -> CallToolResult:
        """Write a file, of any bytes, into a session's directory."""
        owner = self._owner(ctx)
        content = _argument_text(ctx, content_base64)
        if isinstance(content, str):
            try:
                content = base64.b64decode(content, validate=True)
            except binascii.Error as error:
                raise ValueError(f"content_base64 is not base64: {error}") from None
        with self.admission.admitted(owner):
            known = session or await self._open(owner)
            result = await self._cell(known, owner, "", MAX_WALL_S, {name: content}, [])
        return to_call_result(result, session=known)

    @errors_as_results
    async def read_file(
        self, ctx: Context, session: SessionName, name: Annotated[str, Field(description="its path there")]
    ) -> CallToolResult:
        """Read a file of a session's directory."""
        owner = self._owner(ctx)
        with self.admission.admitted(owner):
            result = await self._cell(session, owner, "", MAX_WALL_S, {}, [name])
        if name not in result.files:
            raise ValueError(f"the session has no file {name[:100]!r} that can be read")
        return to_call_result(_check_answer_size(result), session=session)

    @errors_as_results
    async def close_session(self, ctx: Context, session: SessionName) -> CallToolResult:
        """End a session; its variables and files are gone."""
        await self.sessions.close(session, self._owner(ctx))
        return CallToolResult(content=[text_content("closed")])

    async def _open(self, owner: str) -> str:
        return await self.sessions.open(self.flavour, _to_limits(MAX_WALL_S), None, owner)

    async def _cell(
        self, session: str, owner: str, code: str, wall_s: float, files: Mapping[str, bytes], fetch: list[str]
    ) -> types.ExecResult:
        return await self.sessions.run(
            session,
            code,
            wall_s=wall_s,
            deadline=self.admission.deadline(None),
            owner=owner,
            files=files,
            fetch=fetch,
            displays=True,
        )

    def _owner(self, ctx: Context) -> str:
        return self.owner_of(ctx.headers)


def _to_limits(wall_s: float) -> types.Limits:
    return types.Limits(wall_s=wall_s, cpu_s=int(wall_s) + 1, file_bytes=MAX_JSON_FILES_BYTES)


def _argument_text(ctx: Context, text: str) -> str | bytes:
    """The text of an argument, which the body of the request may only mark (bodies.py)."""
    scope = getattr(ctx.request_context.request, "scope", None)
    texts: LongTexts = NO_TEXTS if scope is None else scope["state"][TEXTS]
    return texts.get(text, text)


def _checked_code(ctx: Context, code: str) -> str:
    source = str(_argument_text(ctx, code))
    if len(source) > MAX_CODE_CHARS:
        raise ValueError(f"code has {len(source)} characters; at most {MAX_CODE_CHARS} are run")
    return source


def _encode_files(ctx: Context, files: Mapping[str, str]) -> dict[str, bytes]:
    encoded = {}
    for name, mark in files.items():
        text = _argument_text(ctx, mark)
        encoded[name] = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return encoded


def _check_answer_size(result: types.ExecResult) -> types.ExecResult:
    total = count_file_bytes(result)
    if total > MAX_ANSWER_BYTES:
        raise ValueError(f"the files have {total} bytes; at most {MAX_ANSWER_BYTES} go into one answer")
    return result
