"""The native dialect: /v1/run, /v1/batch and /v1/sessions."""

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from io import BytesIO
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from rocstar.sandbox import files as program_files
from rocstar.sandbox.files import DISPLAY_FOLDER, fault_of
from rocstar.sandbox.files import MAX_FILES as MOST_FILES
from rocstar.sandbox.http import responses
from rocstar.sandbox.http.bodies import BodyReader, LoopYielder
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.openapi import REF
from rocstar.sandbox.http.packed_items import SelectedItems, matching_indices, pack_items
from rocstar.sandbox.http.routes import HttpRequest, HttpRoute
from rocstar.sandbox.service import results, validation
from rocstar.sandbox.service.admission import Admission
from rocstar.sandbox.service.idempotency import Execution, IdempotencyStore, compute_fingerprint, owner_key
from rocstar.sandbox.service.sessions import OpenSession, SessionTable
from rocstar.sandbox.types import LIMIT_BOUNDS, ExecRequest, ExecResult, Limits, OnOutput, SandboxError, Status

Deadline = Annotated[float, Meta(gt=0, le=validation.MAX_DEADLINE_S)] | None
Seed = Annotated[int, Meta(ge=0)] | None
"""The upper bound 2**64 is checked separately: msgspec compares signed 64-bit numbers."""

_TAKEN = Meta(
    max_length=MOST_FILES, description=f"name to base64; together at most {results.MAX_JSON_FILES_BYTES} bytes"
)

GivenFiles = Annotated[dict[str, bytes], _TAKEN]
WantedFiles = Annotated[list[str], Meta(max_length=MOST_FILES)]


class RequestBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A program."""

    code: str
    stdin: str | None = ""
    limits: Any = None
    seed: Seed = None
    flavour: str | None = validation.AUTO


class RunBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    """A program with its deadline. `displays`: return figures and the values given to `display`."""

    deadline_s: Deadline = None
    files: GivenFiles = {}
    fetch_files: WantedFiles = []
    displays: bool = False


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Many programs."""

    requests: list[RequestBody]
    stream: bool = False
    deadline_s: Deadline = None


class SessionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """An interpreter that keeps its state."""

    limits: Any = None
    seed: Seed = None
    flavour: str | None = validation.AUTO


class CellBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A cell of a session."""

    code: str
    wall_s: float | None = None
    deadline_s: Deadline = None
    files: GivenFiles = {}
    fetch_files: WantedFiles = []
    displays: bool = False


class NativeBodies:
    """The models of the native bodies, within the limits of one service. Made by `native_bodies`."""

    def __init__(self, service_limits: validation.ServiceLimits) -> None:
        limits = make_limits_model(service_limits)
        program = {"limits": limits | None, "flavour": Literal[(validation.AUTO, *service_limits.flavours)] | None}
        wall_s = Annotated[float, Meta(gt=0, le=service_limits.max_wall_s)] | None
        many = Meta(min_length=1, max_length=service_limits.max_calls_per_batch)
        self.request = validation.narrow_model(RequestBody, **program)
        self.run = validation.BodyModel(validation.narrow_model(RunBody, **program))
        self.batch = validation.BodyModel(
            validation.narrow_model(BatchBody, requests=Annotated[validation.LISTS[self.request], many])
        )
        self.batch_of_any = validation.narrow_model(BatchBody, requests=Annotated[list[Any], many])
        self.session = validation.BodyModel(validation.narrow_model(SessionBody, **program))
        self.cell = validation.BodyModel(validation.narrow_model(CellBody, wall_s=wall_s))


native_bodies = lru_cache(maxsize=16)(NativeBodies)


def make_limits_model(service_limits: validation.ServiceLimits) -> type[Struct]:
    """`Limits`, by the bounds and defaults of the service."""
    kinds = []
    most = {"wall_s": service_limits.max_wall_s, "memory_bytes": service_limits.max_memory_bytes}
    for item in fields(Limits):
        kind: Any = item.type
        low, high = LIMIT_BOUNDS[item.name]
        default = getattr(service_limits.default_limits, item.name)
        bounds = Meta(ge=low, le=min(high, most.get(item.name, high)))
        kinds.append((item.name, Annotated[kind, bounds], default))
    return msgspec.defstruct("Limits", kinds, kw_only=True, forbid_unknown_fields=True)


_EITHER = [{"$ref": REF.format(name=name)} for name in ("Result", "Failure")]
ResultOrFailure = Annotated[Any, Meta(extra_json_schema={"oneOf": _EITHER})]
"""One of two models that differ only by their fields, which msgspec cannot express as a union."""


class Outcomes(Struct, forbid_unknown_fields=True):
    """A Result or a Failure for each request, in their order."""

    results: list[ResultOrFailure]


class OutcomeLine(Struct):
    """A Result or a Failure, with the place of its request."""

    index: int


class SessionId(Struct, forbid_unknown_fields=True):
    """The name of a session."""

    id: str


class SessionList(Struct, forbid_unknown_fields=True):
    """The sessions of the caller, least recently used first."""

    sessions: list[OpenSession]


class SessionFile(Struct, forbid_unknown_fields=True):
    """A file of a session."""

    name: str
    bytes: int


class SessionFiles(Struct, forbid_unknown_fields=True):
    """Files that can be fetched, by name."""

    files: list[SessionFile]


S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCall:
    """A batch. `runnable`, `invalid`: the indices of both kinds of calls. `programs`: the calls that can run.
    `error_lines`: the outcomes of the invalid calls as lines of JSON, encoded where the body is decoded. One
    object, for the reason of `PackedItems`."""

    requests: Sequence[ExecRequest | RequestError]
    runnable: Sequence[int]
    programs: Sequence[ExecRequest]
    invalid: Sequence[int]
    error_lines: bytes
    deadline_s: float | None
    stream: bool

    def failures(self) -> Iterator[tuple[int, bytes]]:
        """Yield the index and the outcome of each invalid call."""
        return zip(self.invalid, map(bytes.rstrip, BytesIO(self.error_lines)), strict=True)


def decode_run(
    body: bytes, service_limits: validation.ServiceLimits, owner: str = ""
) -> tuple[ExecRequest, float | None]:
    """Decode a body of /v1/run. Return the call and its deadline in seconds."""
    run = _parse_body(body, native_bodies(service_limits).run)
    request = _to_exec_request(run, "", service_limits, owner)
    if run.files or run.fetch_files or run.displays:
        check_files(run.files, run.fetch_files)
        request = replace(request, files=run.files, fetch=tuple(run.fetch_files), displays=run.displays)
    return request, run.deadline_s


def check_files(files: Mapping[str, bytes], fetch: Sequence[str]) -> None:
    """Raises RequestError for invalid file names, and for files that are too large for one JSON text."""
    try:
        program_files.check(files)
        program_files.check_fetch(fetch)
    except ValueError as error:
        raise RequestError(str(error), field="files" if str(error).startswith("files") else "fetch_files") from None
    total = sum(map(len, files.values()))
    if total > results.MAX_JSON_FILES_BYTES:
        message = f"files has {total} bytes; at most {results.MAX_JSON_FILES_BYTES} are taken in one request"
        message += ", more by PUT /v1/sessions/ID/files/NAME"
        raise RequestError(message, field="files", kind="too_large")


def decode_batch(body: bytes, service_limits: validation.ServiceLimits, owner: str = "") -> BatchCall:
    models = native_bodies(service_limits)
    batch = models.batch.decode(body) or _convert(validation.parse_json(body), models.batch_of_any)
    given: list[Any] = batch.requests
    items: list[Any] = []
    for index, item in enumerate(given):
        try:
            if not isinstance(item, RequestBody):
                item = _convert(item, models.request, ("requests", index))
            items.append(_to_exec_request(item, f"requests[{index}].", service_limits, owner))
        except RequestError as error:
            # Without its frames: there may be thousands, which the garbage collector would traverse
            # repeatedly while the event loop is blocked.
            error.__context__ = None
            items.append(error.with_traceback(None))
    requests = pack_items(items)
    runnable = matching_indices(items, lambda item: isinstance(item, ExecRequest))
    return BatchCall(
        requests=requests,
        runnable=runnable,
        programs=requests if len(runnable) == len(items) else SelectedItems(requests, runnable),
        invalid=matching_indices(items, lambda item: isinstance(item, RequestError)),
        error_lines=b"".join(item.encode_outcome() + b"\n" for item in items if isinstance(item, RequestError)),
        deadline_s=batch.deadline_s,
        stream=batch.stream,
    )


def decode_session(body: bytes, service_limits: validation.ServiceLimits) -> tuple[str, Limits, int | None]:
    """Decode a body of /v1/sessions. Return the flavour, the limits and the seed."""
    session = _parse_body(body or b"{}", native_bodies(service_limits).session)
    limits = _to_limits(session.limits, service_limits)
    return session.flavour or validation.AUTO, limits, _check_seed(session.seed, "")


def decode_cell(body: bytes, service_limits: validation.ServiceLimits) -> CellBody:
    cell = _parse_body(body, native_bodies(service_limits).cell)
    _check_code(cell.code, "")
    if cell.files or cell.fetch_files:
        check_files(cell.files, cell.fetch_files)
    return cell


def _parse_body(body: bytes, model: validation.BodyModel[S]) -> S:
    found = model.decode(body)
    return _convert(validation.parse_json(body), model.type) if found is None else found


def _convert(value: Any, model: type[S], loc: validation.Loc = ()) -> S:
    """Convert a JSON value. Raises RequestError for the first error."""
    try:
        return msgspec.convert(value, model)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half a pair in a name
        for field_error in validation.find_field_errors(value, model, loc):
            raise _to_request_error(field_error) from None
        raise RequestError(f"the body does not fit: {error}", field="body") from None


def _to_request_error(field_error: validation.FieldError) -> RequestError:
    path = ""
    for part in field_error.loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    path = ascii(path)[1:-1][:120]
    if field_error.kind == "extra_forbidden":
        path = path or "''"
        return RequestError(f"{path} is not a field of this request; {field_error.fix}", field=path)
    if field_error.kind in ("too_short", "too_long"):
        number = field_error.ctx["actual_length"]
        what = "calls" if path == "requests" else "entries"
        kind = "too_large" if field_error.kind == "too_long" else ""
        return RequestError(f"{path} has {number} {what}; {field_error.fix}", field=path, kind=kind)
    if field_error.kind == "value_error":
        return RequestError(f"{path}: {field_error.msg}; {field_error.fix}", field=path)
    shown = "missing" if field_error.kind == "missing" else _format_value(field_error.value)
    kind = "unknown_flavour" if field_error.loc[-1:] == ("flavour",) else ""
    return RequestError(f"{path or 'the body'} is {shown}; {field_error.fix}", field=path or "body", kind=kind)


def _to_exec_request(
    body: RequestBody, prefix: str, service_limits: validation.ServiceLimits, owner: str
) -> ExecRequest:
    """Check what the model cannot express, and select the flavour."""
    code, stdin = body.code, body.stdin or ""
    _check_code(code, prefix)
    if stdin:
        validation.check_text(stdin, prefix + "stdin")
    return ExecRequest(
        code=code,
        stdin=stdin,
        limits=_to_limits(body.limits, service_limits),
        flavour=service_limits.select_flavour(code) if body.flavour in (None, validation.AUTO) else body.flavour,
        seed=_check_seed(body.seed, prefix),
        owner=owner,
    )


def _check_code(code: str, prefix: str) -> None:
    validation.check_text(code, prefix + "code")
    if "\0" in code:
        message = f"{prefix}code has a NUL at {code.index(chr(0))}; Python reads none"
        raise RequestError(message, field=prefix + "code")


def _to_limits(body: msgspec.Struct | None, service_limits: validation.ServiceLimits) -> Limits:
    return service_limits.default_limits if body is None else Limits(**msgspec.structs.asdict(body))


def _check_seed(seed: int | None, prefix: str) -> int | None:
    if seed is not None and seed >= 1 << 64:
        shown = _format_value(seed)
        raise RequestError(f"{prefix}seed is {shown}; give a whole number in [0, 2**64)", field=prefix + "seed")
    return seed


def _format_value(value: Any) -> str:
    """A value as a message can carry it: short, whatever it is. Containers are named, not printed: they can
    be nested beyond what repr takes."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return ascii(value[:60]) + ("..." if len(value) > 60 else "")
    if value is None:
        return "missing"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge number"
    return repr(value)


BYTES = "application/octet-stream"

LIST_FILES = f"""{{
    os.path.relpath(path, home): os.lstat(path).st_size
    for os in [__import__("os")]
    for stat in [__import__("stat")]
    for home in [os.path.expanduser("~")]
    for top, _, names in os.walk(home)
    if not os.path.relpath(top, home).startswith({DISPLAY_FOLDER!r})
    for name in names
    for path in [os.path.join(top, name)]
    if stat.S_ISREG(os.lstat(path).st_mode)
}}"""
"""An expression, whose names are no variables of the session."""


@dataclass(eq=False)
class Native:
    """The handlers. They return responses and raise RequestError."""

    admission: Admission
    sessions: SessionTable
    keys: IdempotencyStore
    service_limits: validation.ServiceLimits
    body_reader: BodyReader
    write_timeout_s: float

    def __post_init__(self) -> None:
        self._held = self.admission.held

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute("POST", "/v1/run", self.run),
            HttpRoute("POST", "/v1/batch", self.batch),
            HttpRoute("POST", "/v1/sessions", self.open_session),
            HttpRoute("GET", "/v1/sessions", self.list_sessions),
            HttpRoute("GET", "/v1/sessions/{id}/files", self.list_files),
            HttpRoute("POST", "/v1/sessions/{id}/run", self.run_cell),
            HttpRoute("POST", "/v1/sessions/{id}/branch", self.branch_session),
            HttpRoute("PUT", "/v1/sessions/{id}/files/{name:.+}", self.put_file),
            HttpRoute("GET", "/v1/sessions/{id}/files/{name:.+}", self.get_file, head=False),
            HttpRoute("DELETE", "/v1/sessions/{id}", self.close_session),
        ]

    async def run(self, request: HttpRequest) -> web.StreamResponse:
        body = await self.body_reader.read(request)

        async def work(held: results.OutputBuffer) -> responses.HttpResponse:
            owner = request.owner
            decode = partial(decode_run, service_limits=self.service_limits, owner=owner)
            call = await self.body_reader.decode(owner, body, decode)
            return await self._answer(held, self.admission.run(*call))

        return await self._send_result(request, await self._find_key(request, body), work)

    async def _find_key(self, request: HttpRequest, body: bytes, *, stream: bool = False) -> tuple[str, bytes] | None:
        """Return the request's key and the fingerprint of its body, or None without a key. Raises
        RequestError for an invalid key."""
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return None
        return owner_key(request.owner, key), await compute_fingerprint(request.path, body, stream)

    async def _send_result(
        self,
        request: HttpRequest,
        key: tuple[str, bytes] | None,
        work: Callable[[results.OutputBuffer], Awaitable[responses.HttpResponse]],
    ) -> web.StreamResponse:
        """Run the work, or find the response of its key, and send it. A result counts as held until the
        client has read it."""
        with results.OutputBuffer(self._held, request.owner) as held:
            if key is None:
                return await results.send_buffered(request, await work(held), held, self.write_timeout_s)

            async def execute(_: Execution) -> responses.HttpResponse:
                with results.OutputBuffer(self._held, request.owner) as its_own:
                    return await work(its_own)

            answer = await self.keys.run_once(*key, execute, partial(self.body_reader.keep, request))
            return await results.send_buffered(request, answer, held, self.write_timeout_s, kept=True)

    async def _send_session_id(
        self, request: HttpRequest, body: bytes, open_one: Callable[[], Awaitable[str]]
    ) -> web.Response:
        """Open a session, or find the response of the request's key, and send its id."""

        async def work(_: Execution | None = None) -> responses.HttpResponse:
            with self.admission.admitted(request.owner):
                try:
                    session_id = await open_one()
                except SandboxError as error:
                    return results.failure_response(error)
            return responses.HttpResponse(
                status=201,
                body=responses.to_json(SessionId(session_id)),
                is_current=lambda: session_id in self.sessions,
            )

        key = await self._find_key(request, body)
        if key is None:
            return responses.to_response(await work())
        return responses.to_response(await self.keys.run_once(*key, work, partial(self.body_reader.keep, request)))

    async def open_session(self, request: HttpRequest) -> web.Response:
        body = await self.body_reader.read(request)
        owner = request.owner
        decode = partial(decode_session, service_limits=self.service_limits)
        call = await self.body_reader.decode(owner, body, decode)
        return await self._send_session_id(request, body, lambda: self.sessions.open(*call, owner))

    async def run_cell(self, request: HttpRequest) -> web.StreamResponse:
        body = await self.body_reader.read(request)
        session_id, owner = request.names["id"], request.owner
        decode = partial(decode_cell, service_limits=self.service_limits)

        async def work(held: results.OutputBuffer) -> responses.HttpResponse:
            call = await self.body_reader.decode(owner, body, decode)
            with self.admission.admitted(owner):
                return await self._answer(held, self._cell(session_id, call, owner))

        accept = request.headers.get("Accept", "")
        kind = results.EVENTS if results.EVENTS in accept else responses.NDJSON if responses.NDJSON in accept else ""
        if kind:
            if "Idempotency-Key" in request.headers:
                raise RequestError("a streamed cell runs again on each request; leave the key out", field="Accept")
            call = await self.body_reader.decode(owner, body, decode)
            with self.admission.admitted(owner):
                return await self._stream_cell(request, kind, lambda tell: self._cell(session_id, call, owner, tell))
        return await self._send_result(request, await self._find_key(request, body), work)

    def _cell(
        self, session_id: str, call: CellBody, owner: str, tell: OnOutput | None = None
    ) -> Coroutine[None, None, ExecResult]:
        return self.sessions.run(
            session_id,
            call.code,
            wall_s=call.wall_s,
            deadline=self.admission.deadline(call.deadline_s),
            owner=owner,
            files=call.files,
            fetch=call.fetch_files,
            displays=call.displays,
            on_output=tell,
        )

    async def _stream_cell(
        self, request: HttpRequest, kind: str, start: Callable[[OnOutput], Coroutine[None, None, ExecResult]]
    ) -> web.StreamResponse:
        """Stream the output, then the result. A failure before the first event is a normal error response."""
        response: web.StreamResponse | None = None
        with results.OutputBuffer(self._held, request.owner) as held:
            async with aclosing(results.stream_cell(start, held)) as events:
                async for event in events:
                    if isinstance(event, SandboxError) and response is None:
                        return responses.to_response(results.failure_response(event))
                    response = response or await responses.open_stream(request, kind)
                    await responses.write(response, await results.encode_event(kind, event), self.write_timeout_s)
        assert response is not None, "the last event is the result"
        return await responses.finish(response, self.write_timeout_s)

    async def list_sessions(self, request: HttpRequest) -> web.Response:
        return responses.json_response(SessionList(self.sessions.list_owned(request.owner)))

    async def list_files(self, request: HttpRequest) -> web.Response:
        """List the files by a cell: their names are visible only in the program's namespace."""
        result = await self._touch(request, code=LIST_FILES)
        try:
            found = msgspec.convert(ast.literal_eval(result.value or ""), dict[str, int])
        except (SyntaxError, ValueError):  # truncated, or replaced by the session's code
            why = result.stderr.strip().rpartition("\n")[2] or f"their list is cut: {result.status}"
            raise RequestError(f"the files cannot be listed: {why}", status=409, kind="no_list") from None
        files = [SessionFile(name, size) for name, size in sorted(found.items()) if not fault_of(name)]
        return responses.json_response(SessionFiles(files))

    async def put_file(self, request: HttpRequest) -> web.Response:
        """Write the body to a file of the session's directory."""
        content = await self.body_reader.read(request)
        self._check_name(request)
        result = await self._touch(request, files={request.names["name"]: content})
        if result.status is Status.OK:
            return web.Response(status=204)
        raise RequestError(result.stderr.strip() or f"the file cannot be written: {result.status}", field="name")

    async def get_file(self, request: HttpRequest) -> web.StreamResponse:
        name = request.names["name"]
        self._check_name(request)
        content = (await self._touch(request, fetch=(name,))).files.get(name)
        if content is None:
            message = f"the session has no file {ascii(name)[1:61]} that can be fetched"
            raise RequestError(message, field="name", status=404, kind="no_file")
        headers = {"Content-Type": BYTES, "Content-Length": str(len(content))}
        with results.OutputBuffer(self._held, request.owner) as held:
            if held.full:
                message = "clients have yet to take answers of so much that this file has no room"
                raise RequestError(message, kind="full")
            held.take(len(content))
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await responses.write(response, content, self.write_timeout_s)
        return await responses.finish(response, self.write_timeout_s)

    @staticmethod
    def _check_name(request: HttpRequest) -> None:
        if why := fault_of(request.names["name"]):
            raise RequestError(f"the file name is not valid: {why}", field="name")

    async def _touch(
        self,
        request: HttpRequest,
        *,
        code: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
    ) -> ExecResult:
        """Run a cell that writes or reads files. Raises RequestError and SandboxError."""
        owner = request.owner
        with self.admission.admitted(owner):
            return await self.sessions.run(
                request.names["id"],
                code,
                deadline=self.admission.deadline(None),
                owner=owner,
                files=files,
                fetch=fetch,
            )

    async def branch_session(self, request: HttpRequest) -> web.Response:
        body = await self.body_reader.read(request)
        branch = partial(self.sessions.branch, request.names["id"], owner=request.owner)
        return await self._send_session_id(request, body, lambda: branch(deadline=self.admission.deadline(None)))

    async def close_session(self, request: HttpRequest) -> web.Response:
        await self.sessions.close(request.names["id"], request.owner)
        return web.Response(status=204)

    async def _answer(self, held: results.OutputBuffer, running: Awaitable[ExecResult]) -> responses.HttpResponse:
        """Return the response of one call, with truncated texts if too much output is held."""
        try:
            result = await running
            if result.files or result.displays:
                results.check_files_fit(result)
            if not self._held.fits(held.owner, 0):
                result = results.fit_to_budget(result, held)
            size = results.count_chars(result)
            if result.files or result.displays:
                size += results.count_file_bytes(result)
            if size > results.TRUNCATED_CHARS:
                held.take(size)
            return responses.HttpResponse(status=200, body=await responses.encode_json(result, size))
        except SandboxError as error:
            return results.failure_response(error)

    async def batch(self, request: HttpRequest) -> web.StreamResponse:
        body = await self.body_reader.read(request)
        owner = request.owner
        decode = partial(decode_batch, service_limits=self.service_limits, owner=owner)
        call = await self.body_reader.decode(owner, body, decode)
        stream = call.stream or responses.NDJSON in request.headers.get("Accept", "")
        key = await self._find_key(request, body, stream=stream)
        del body
        if stream:
            return await self._stream_batch(request, call, key)
        return await self._send_result(request, key, partial(self._run_batch, call))

    async def _run_batch(self, call: BatchCall, held: results.OutputBuffer) -> responses.HttpResponse:
        outcomes = [b""] * len(call.requests)
        yielder = LoopYielder()
        for index, error in call.failures():
            outcomes[index] = error
            await yielder.pause()
        if call.programs:
            async for position, outcome in self.admission.run_batch(call.programs, call.deadline_s):
                outcomes[call.runnable[position]] = await _encode_outcome(outcome, held)
                await yielder.pause()
        return responses.HttpResponse(
            status=200, body=await responses.fill_list(responses.to_json(Outcomes([])), outcomes)
        )

    async def _stream_batch(
        self, request: HttpRequest, call: BatchCall, key: tuple[str, bytes] | None
    ) -> web.StreamResponse:
        """Send a line per call as they end. While the client does not read, no more programs start, unless
        the batch has a key."""
        owner = request.owner

        async def work(execution: Execution) -> responses.HttpResponse:
            # The lines are kept for retries, however many clients read them.
            yielder = LoopYielder()
            async for line in self._lines(call, owner, short=lambda: not self.keys.streamed.fits(owner, 0)):
                execution.emit(line)
                await yielder.pause()
            return responses.HttpResponse(status=200, body=b"", content_type=responses.NDJSON)

        response: web.StreamResponse | None = None
        if key is None:
            self.admission.admit(len(call.runnable), owner)
            response = await responses.open_stream(request)
            lines = self._lines(call, owner)
        else:
            lines = self.keys.follow(*key, work, partial(self.body_reader.keep, request))
        yielder = LoopYielder()
        async for line in lines:
            if response is None:  # the status is sent from here on, so no error can change it
                response = await responses.open_stream(request)
            await responses.write(response, line, self.write_timeout_s)
            await yielder.pause()
        assert response is not None, "a batch has at least one line"
        return await responses.finish(response, self.write_timeout_s)

    async def _lines(
        self, call: BatchCall, owner: str, short: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[bytes]:
        """Yield a line per call as they end, invalid calls first; the texts are truncated while `short`.
        Raises RequestError only before the first line, because the status is sent with it."""
        programs = call.programs
        self.admission.enter(len(programs), owner)
        try:
            for index, error in call.failures():
                yield await _batch_line(index, error)
        except BaseException:  # the client has disconnected
            self.admission.leave(len(programs), owner)
            raise
        if not programs:
            return
        async for position, outcome in self.admission.run_batch(programs, call.deadline_s, entered=True):
            if isinstance(outcome, ExecResult) and short():
                outcome = results.truncate_output(outcome)
            yield await _batch_line(call.runnable[position], await _encode_outcome(outcome))


async def _encode_outcome(outcome: ExecResult | SandboxError, held: results.OutputBuffer | None = None) -> bytes:
    """Encode an outcome and count it as `held`; its texts are truncated while that budget is used up."""
    if not isinstance(outcome, ExecResult):
        return responses.to_json(results.to_failure(outcome))
    if held is not None:
        outcome = held.truncate(outcome)
    chars = results.count_chars(outcome)
    body = responses.to_json(outcome) if chars < responses.LONG_CHARS else await responses.encode_json(outcome, chars)
    if held is not None:
        held.take(len(body))  # JSON may take six bytes for one of the program
    return body


async def _batch_line(index: int, outcome: bytes) -> bytes:
    """Return the outcome as a line, with its index as the first member."""
    pieces = (b'{"index":%d,' % index, memoryview(outcome)[1:], b"\n")
    if len(outcome) < responses.LARGE_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)
