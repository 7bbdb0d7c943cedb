"""The native dialect: /v1/run, /v1/batch and /v1/sessions.

An outcome is an `ExecResult` as JSON, or `{"error": {"kind", "message", "retryable"}}` where there is none.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from aiohttp import web

from rocstar.sandbox.files import fault_of
from rocstar.sandbox.service.answers import Outcomes, SessionId
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.decode import (
    BatchCall,
    decode_batch,
    decode_cell,
    decode_run,
    decode_session,
)
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.followed import check_taken, event_line, followed, stream_kind
from rocstar.sandbox.service.http import (
    LARGE_BYTES,
    NDJSON,
    failure,
    failure_answer,
    filled,
    respond,
    send,
    to_json,
    write,
)
from rocstar.sandbox.service.idempotency import Execution, HttpAnswer, IdempotencyStore, key_of
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.models import CellBody
from rocstar.sandbox.service.outputs import Held, shortened
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.service.turns import Turns
from rocstar.sandbox.service.written import LONG_CHARS, chars_of, written
from rocstar.sandbox.types import ExecRequest, ExecResult, OnOutput, SandboxError, Status

BYTES = "application/octet-stream"


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
            HttpRoute("POST", "/v1/batch", self.batch),
            HttpRoute("POST", "/v1/sessions", self.open_session),
            HttpRoute("POST", "/v1/sessions/{id}/run", self.run_cell),
            HttpRoute("POST", "/v1/sessions/{id}/branch", self.branch_session),
            HttpRoute("PUT", "/v1/sessions/{id}/files/{name:.+}", self.put_file),
            HttpRoute("GET", "/v1/sessions/{id}/files/{name:.+}", self.get_file, head=False),
            HttpRoute("DELETE", "/v1/sessions/{id}", self.close_session),
        ]

    async def run(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)

        async def work(_: Execution | None = None) -> HttpAnswer:
            owner = request.owner
            decode = partial(decode_run, rules=self._rules, owner=owner)
            call = await self._incoming.decoded(owner, body, decode)
            return await self._answer(owner, self._admission.run(call.request, call.deadline_s))

        return await self._sent(request, await self._once(request, body, work))

    async def batch(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)
        owner = request.owner
        decode = partial(decode_batch, rules=self._rules, owner=owner)
        call = await self._incoming.decoded(owner, body, decode)
        stream = call.stream or NDJSON in request.headers.get("Accept", "")
        key = request.headers.get("Idempotency-Key")
        fingerprint = b"" if key is None else await _fingerprint(request.path, body, stream)
        del body
        if key is None:
            if stream:
                return await self._stream(request, call)
            return await self._sent(request, await self._whole(call, request.owner))
        key = key_of(request.owner, key)
        if stream:
            return await self._stream_by_key(request, call, key, fingerprint)

        async def work(_: Execution) -> HttpAnswer:
            return await self._whole(call, request.owner)

        return await self._sent(request, await self._keys.once(key, fingerprint, work))

    async def _whole(self, call: BatchCall, owner: str) -> HttpAnswer:
        outcomes = [b""] * len(call.requests)
        turns = Turns()
        for index, item in enumerate(call.requests):
            if isinstance(item, Refused):
                outcomes[index] = to_json({"error": item.to_json()})
                await turns.pause()
        sent, indices = _runnable(call)
        held = 0
        try:
            if sent:
                async for position, outcome in self._admission.run_batch(sent, call.deadline_s):
                    if isinstance(outcome, ExecResult):
                        if not self._held.fits(owner, 0):
                            outcome = shortened(outcome)
                        size = chars_of(outcome)
                        held += size
                        self._held.take(owner, size)
                    outcomes[indices[position]] = await _outcome_json(outcome)
                    await turns.pause()
            return HttpAnswer(status=200, body=await filled(Outcomes([]), outcomes))
        finally:
            self._held.give(owner, held)

    async def _stream(self, request: HttpRequest, call: BatchCall) -> web.StreamResponse:
        sent, _ = _runnable(call)
        self._admission.admit(len(sent), request.owner)
        response = await _open_stream(request)
        turns = Turns()
        async for line in self._lines(call):
            await self._written(response, line)
            await turns.pause()
        await response.write_eof()
        return response

    async def _written(self, response: web.StreamResponse, content: bytes) -> None:
        """While its client takes nothing of it, no more programs start."""
        await write(response, content, self._write_timeout_s)

    async def _sent(self, request: HttpRequest, answer: HttpAnswer) -> web.StreamResponse:
        if len(answer.body) < LARGE_BYTES:
            return await send(request, answer, self._write_timeout_s)
        with Held(self._held, request.owner) as held:
            held.take(len(answer.body))
            return await send(request, answer, self._write_timeout_s)

    async def _stream_by_key(
        self, request: HttpRequest, call: BatchCall, key: str, fingerprint: bytes
    ) -> web.StreamResponse:
        async def work(execution: Execution) -> HttpAnswer:
            # Its lines are kept for whoever asks again, however many clients read them.
            turns = Turns()
            async for line in self._lines(call, short=lambda: self._keys.full):
                execution.emit(line)
                await turns.pause()
            return HttpAnswer(status=200, body=b"", content_type=NDJSON)

        response: web.StreamResponse | None = None
        turns = Turns()
        async for line in self._keys.follow(key, fingerprint, work):
            if response is None:  # from here on the status can no longer be a refusal's
                response = await _open_stream(request)
            await self._written(response, line)
            await turns.pause()
        assert response is not None, "a batch has at least one line"
        await response.write_eof()
        return response

    async def _lines(self, call: BatchCall, short: Callable[[], bool] = lambda: False) -> Any:
        """One line per call, as they end; those that cannot run first. While `short`, with heads alone."""
        sent, indices = _runnable(call)
        for index, item in enumerate(call.requests):
            if isinstance(item, Refused):
                yield await _line(index, to_json({"error": item.to_json()}))
        if not sent:
            return
        async for position, outcome in self._admission.run_batch(sent, call.deadline_s):
            if isinstance(outcome, ExecResult) and short():
                outcome = shortened(outcome)
            yield await _line(indices[position], await _outcome_json(outcome))

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

        async def work(_: Execution | None = None) -> HttpAnswer:
            call = await self._incoming.decoded(owner, body, decode)
            with self._admission.admitted(owner):
                return await self._answer(owner, self._cell(session_id, call, owner))

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
        return await self._sent(request, await self._once(request, body, work))

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
        async with aclosing(followed(start)) as events:
            async for event in events:
                if isinstance(event, SandboxError) and response is None:
                    return respond(failure_answer(event))
                response = response or await _open_stream(request, kind)
                await self._written(response, await event_line(kind, event))
        assert response is not None, "the last event is the result"
        await response.write_eof()
        return response

    async def put_file(self, request: HttpRequest) -> web.Response:
        """The body, as it is, becomes a file of the session's directory."""
        content = await self._incoming.read(request)
        result = await self._touch(request, files={request.names["name"]: content})
        if result.status is Status.OK:
            return web.Response(status=204)
        raise Refused(result.stderr.strip() or f"the file cannot be written: {result.status}", field="name")

    async def get_file(self, request: HttpRequest) -> web.StreamResponse:
        name = request.names["name"]
        content = (await self._touch(request, fetch=(name,))).files.get(name)
        if content is None:
            message = f"the session has no file {ascii(name)[1:61]} that can be fetched"
            raise Refused(message, field="name", status=404, kind="no_file")
        response = web.StreamResponse(headers={"Content-Type": BYTES, "Content-Length": str(len(content))})
        await response.prepare(request)
        await self._written(response, content)
        await response.write_eof()
        return response

    async def _touch(
        self, request: HttpRequest, *, files: Mapping[str, bytes] | None = None, fetch: Sequence[str] = ()
    ) -> ExecResult:
        """An empty cell: it writes and takes files. Raises Refused and SandboxError."""
        owner = request.owner
        if why := fault_of(request.names["name"]):
            raise Refused(f"the file's name is none: {why}", field="name")
        with self._admission.admitted(owner):
            return await self._sessions.run(
                request.names["id"],
                "",
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
        return await self._keys.once(known, await _fingerprint(request.path, body, False), work)

    async def _answer(self, owner: str, running: Awaitable[ExecResult]) -> HttpAnswer:
        """Of one call. Where clients have yet to take much, its heads alone."""
        try:
            result = await running
            if result.files or result.displays:
                check_taken(result)
            if not self._held.fits(owner, 0):
                result = shortened(result)
            return HttpAnswer(status=200, body=await written(result, chars_of(result)))
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


async def _open_stream(request: HttpRequest, kind: str = NDJSON) -> web.StreamResponse:
    headers = {"Content-Type": kind, "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


def _runnable(call: BatchCall) -> tuple[list[ExecRequest], list[int] | range]:
    """The calls that can run, and their places in the batch."""
    sent = [item for item in call.requests if isinstance(item, ExecRequest)]
    if len(sent) == len(call.requests):
        return sent, range(len(sent))
    return sent, [index for index, item in enumerate(call.requests) if isinstance(item, ExecRequest)]


async def _outcome_json(outcome: ExecResult | SandboxError) -> bytes:
    if isinstance(outcome, ExecResult):
        return await written(outcome, chars_of(outcome))
    return to_json(failure(outcome))


async def _line(index: int, outcome: bytes) -> bytes:
    """An object with the place of what it tells of in front."""
    pieces = (b'{"index":%d,' % index, memoryview(outcome)[1:], b"\n")
    if len(outcome) < LARGE_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)


async def _fingerprint(path: str, body: bytes, stream: bool) -> bytes:
    if len(body) < LONG_CHARS:
        return _fingerprint_of(path, body, stream)
    return await asyncio.to_thread(_fingerprint_of, path, body, stream)


def _fingerprint_of(path: str, body: bytes, stream: bool) -> bytes:
    digest = hashlib.blake2b(body, digest_size=16, person=b"stream" if stream else b"whole")
    digest.update(b"\0" + path.encode("utf-8", "surrogatepass"))
    return digest.digest()
