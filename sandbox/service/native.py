"""The native dialect: /v1/run and /v1/sessions. What /v1/batch answers is in batches.py."""

import ast
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from aiohttp import web

from rocstar.sandbox.files import DISPLAY_FOLDER, fault_of
from rocstar.sandbox.service.answers import SessionFile, SessionFiles, SessionId, SessionList
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.decode import (
    decode_cell,
    decode_run,
    decode_session,
)
from rocstar.sandbox.service.errors import Full, Refused
from rocstar.sandbox.service.followed import check_taken, event_line, followed, stream_kind
from rocstar.sandbox.service.http import (
    JSON,
    failure_answer,
    finished,
    open_stream,
    respond,
    to_json,
    write,
)
from rocstar.sandbox.service.idempotency import (
    Execution,
    HttpAnswer,
    IdempotencyStore,
    fingerprint_of,
    key_of,
)
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.models import CellBody
from rocstar.sandbox.service.outputs import SHORT_CHARS, HeldOutput, fitting, send_held
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.service.written import bytes_of, chars_of, written
from rocstar.sandbox.types import ExecResult, OnOutput, SandboxError, Status

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


class Native:
    """The handlers. Each takes a request and returns its response; refusals are raised."""

    def __init__(
        self,
        admission: Admission,
        sessions: SessionTable,
        keys: IdempotencyStore,
        rules: Rules,
        incoming: Incoming,
        *,
        write_timeout_s: float,
    ) -> None:
        self._write_timeout_s = write_timeout_s
        self._held = admission.held
        self._admission = admission
        self._sessions = sessions
        self._keys = keys
        self._rules = rules
        self._incoming = incoming

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute("POST", "/v1/run", self.run),
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
        body = await self._incoming.read(request)

        async def work(held: HeldOutput) -> HttpAnswer:
            owner = request.owner
            decode = partial(decode_run, rules=self._rules, owner=owner)
            call = await self._incoming.decoded(owner, body, decode)
            return await self._answer(held, self._admission.run(call.request, call.deadline_s))

        return await self._sent(request, body, work)

    async def _written(self, response: web.StreamResponse, content: bytes) -> None:
        """While its client takes nothing of it, no more programs start."""
        await write(response, content, self._write_timeout_s)

    async def _sent(
        self, request: HttpRequest, body: bytes, work: Callable[[HeldOutput], Awaitable[HttpAnswer]]
    ) -> web.StreamResponse:
        """What is held of a result counts from when it is there until its client has taken it."""
        key, owner = request.headers.get("Idempotency-Key"), request.owner
        with HeldOutput(self._held, owner) as held:
            if key is None:
                return await send_held(request, await work(held), held, self._write_timeout_s)

            async def execute(_: Execution) -> HttpAnswer:
                with HeldOutput(self._held, owner) as its_own:
                    return await work(its_own)

            answer = await self._by_key(request, key, body, execute)
            return await send_held(request, answer, held, self._write_timeout_s, kept=True)

    async def open_session(self, request: HttpRequest) -> web.Response:
        body = await self._incoming.read(request)
        owner = request.owner

        async def work(_: Execution | None = None) -> HttpAnswer:
            decode = partial(decode_session, rules=self._rules)
            call = await self._incoming.decoded(owner, body, decode)
            with self._admission.admitted(owner):
                return await self._id_answer(self._sessions.open(call.flavour, call.limits, call.seed, owner))

        return respond(await self._once(request, body, work))

    async def run_cell(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)
        session_id, owner = request.names["id"], request.owner
        decode = partial(decode_cell, rules=self._rules)

        async def work(held: HeldOutput) -> HttpAnswer:
            call = await self._incoming.decoded(owner, body, decode)
            with self._admission.admitted(owner):
                return await self._answer(held, self._cell(session_id, call, owner))

        kind = stream_kind(request.headers.get("Accept", ""))
        if kind:
            if "Idempotency-Key" in request.headers:
                raise Refused(
                    "a cell that is followed is run anew each time; leave the key out", field="Accept"
                )
            call = await self._incoming.decoded(owner, body, decode)
            with self._admission.admitted(owner):
                return await self._followed(
                    request, kind, lambda tell: self._cell(session_id, call, owner, tell)
                )
        return await self._sent(request, body, work)

    def _cell(
        self, session_id: str, call: CellBody, owner: str, tell: OnOutput | None = None
    ) -> Coroutine[None, None, ExecResult]:
        return self._sessions.run(
            session_id,
            call.code,
            wall_s=call.wall_s,
            deadline=self._admission.deadline(call.deadline_s),
            owner=owner,
            files=call.files,
            fetch=call.fetch_files,
            displays=call.displays,
            on_output=tell,
        )

    async def _followed(
        self,
        request: HttpRequest,
        kind: str,
        start: Callable[[OnOutput], Coroutine[None, None, ExecResult]],
    ) -> web.StreamResponse:
        """Output as it is written, then the result. A failure before either is an answer as any other."""
        response: web.StreamResponse | None = None
        with HeldOutput(self._held, request.owner) as held:
            async with aclosing(followed(start, held)) as events:
                async for event in events:
                    if isinstance(event, SandboxError) and response is None:
                        return respond(failure_answer(event))
                    response = response or await open_stream(request, kind)
                    await self._written(response, await event_line(kind, event))
        assert response is not None, "the last event is the result"
        return await finished(response, self._write_timeout_s)

    async def list_sessions(self, request: HttpRequest) -> web.Response:
        return web.Response(body=to_json(SessionList(self._sessions.of(request.owner))), content_type=JSON)

    async def list_files(self, request: HttpRequest) -> web.Response:
        """By a cell, for the names are known in the program's own namespace alone."""
        result = await self._touch(request, code=LIST_FILES)
        try:
            found = msgspec.convert(ast.literal_eval(result.value or ""), dict[str, int])
        except (SyntaxError, ValueError):  # cut, or not made by what was sent
            why = result.stderr.strip().rpartition("\n")[2] or f"their list is cut: {result.status}"
            raise Refused(f"the files cannot be listed: {why}", status=409, kind="no_list") from None
        files = [SessionFile(name, size) for name, size in sorted(found.items()) if not fault_of(name)]
        return web.Response(body=to_json(SessionFiles(files)), content_type=JSON)

    async def put_file(self, request: HttpRequest) -> web.Response:
        """The body, as it is, becomes a file of the session's directory."""
        content = await self._incoming.read(request)
        self._check_name(request)
        result = await self._touch(request, files={request.names["name"]: content})
        if result.status is Status.OK:
            return web.Response(status=204)
        raise Refused(result.stderr.strip() or f"the file cannot be written: {result.status}", field="name")

    async def get_file(self, request: HttpRequest) -> web.StreamResponse:
        name = request.names["name"]
        self._check_name(request)
        content = (await self._touch(request, fetch=(name,))).files.get(name)
        if content is None:
            message = f"the session has no file {ascii(name)[1:61]} that can be fetched"
            raise Refused(message, field="name", status=404, kind="no_file")
        headers = {"Content-Type": BYTES, "Content-Length": str(len(content))}
        with HeldOutput(self._held, request.owner) as held:
            if held.full:
                raise Full("clients have yet to take answers of so much that this file has no room")
            held.take(len(content))
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await self._written(response, content)
        return await finished(response, self._write_timeout_s)

    @staticmethod
    def _check_name(request: HttpRequest) -> None:
        if why := fault_of(request.names["name"]):
            raise Refused(f"the file's name is none: {why}", field="name")

    async def _touch(
        self,
        request: HttpRequest,
        *,
        code: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
    ) -> ExecResult:
        """A cell of ours, which writes and takes files. Raises Refused and SandboxError."""
        owner = request.owner
        with self._admission.admitted(owner):
            return await self._sessions.run(
                request.names["id"],
                code,
                deadline=self._admission.deadline(None),
                owner=owner,
                files=files,
                fetch=fetch,
            )

    async def branch_session(self, request: HttpRequest) -> web.Response:
        body = await self._incoming.read(request)
        session_id, owner = request.names["id"], request.owner

        async def work(_: Execution | None = None) -> HttpAnswer:
            deadline = self._admission.deadline(None)
            with self._admission.admitted(owner):
                return await self._id_answer(
                    self._sessions.branch(session_id, deadline=deadline, owner=owner)
                )

        return respond(await self._once(request, body, work))

    async def close_session(self, request: HttpRequest) -> web.Response:
        try:
            await self._sessions.close(request.names["id"], request.owner)
        except SandboxError as error:
            return respond(failure_answer(error))
        return web.Response(status=204)

    def _once(
        self, request: HttpRequest, body: bytes, work: Callable[[Execution | None], Awaitable[HttpAnswer]]
    ) -> Awaitable[HttpAnswer]:
        """The answer, from `work` unless the request has a key that has one. Raises Refused."""
        key = request.headers.get("Idempotency-Key")
        return work(None) if key is None else self._by_key(request, key, body, work)

    async def _by_key(
        self, request: HttpRequest, key: str, body: bytes, work: Callable[[Execution], Awaitable[HttpAnswer]]
    ) -> HttpAnswer:
        known = key_of(request.owner, key)
        fingerprint = await fingerprint_of(request.path, body, False)
        return await self._keys.once(known, fingerprint, work, partial(self._incoming.keep, request))

    async def _answer(self, held: HeldOutput, running: Awaitable[ExecResult]) -> HttpAnswer:
        """Of one call. Where clients have yet to take much, its heads alone."""
        try:
            result = await running
            if result.files or result.displays:
                check_taken(result)
            if not self._held.fits(held.owner, 0):
                result = fitting(result, held)
            size = chars_of(result)
            if result.files or result.displays:
                size += bytes_of(result)
            if size > SHORT_CHARS:
                held.take(size)
            return HttpAnswer(status=200, body=await written(result, size))
        except SandboxError as error:
            return failure_answer(error)

    async def _id_answer(self, opening: Awaitable[str]) -> HttpAnswer:
        try:
            session_id = await opening
        except SandboxError as error:
            return failure_answer(error)
        return HttpAnswer(
            status=201, body=to_json(SessionId(session_id)), stands=lambda: session_id in self._sessions
        )
