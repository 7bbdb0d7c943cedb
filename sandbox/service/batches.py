"""/v1/batch: many programs in one request, answered together or as they end.

An outcome is an `ExecResult` as JSON, or `{"error": {"kind", "message", "retryable"}}` where there is none.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from rocstar.sandbox.service.answers import Outcomes
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.decode import BatchCall, decode_batch
from rocstar.sandbox.service.http import (
    LARGE_BYTES,
    NDJSON,
    failure,
    filled,
    finished,
    open_stream,
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
from rocstar.sandbox.service.outputs import HeldOutput, send_held, shortened
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import HttpRoute
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.turns import Turns
from rocstar.sandbox.service.written import LONG_CHARS, chars_of, written
from rocstar.sandbox.types import ExecResult, SandboxError


class Batches:
    """The handler. It takes a request and returns its response; refusals are raised."""

    def __init__(
        self,
        admission: Admission,
        keys: IdempotencyStore,
        rules: Rules,
        incoming: Incoming,
        *,
        write_timeout_s: float,
    ) -> None:
        self._write_timeout_s = write_timeout_s
        self._held = admission.held
        self._admission = admission
        self._keys = keys
        self._rules = rules
        self._incoming = incoming

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("POST", "/v1/batch", self.batch)]

    async def batch(self, request: HttpRequest) -> web.StreamResponse:
        body = await self._incoming.read(request)
        owner = request.owner
        decode = partial(decode_batch, rules=self._rules, owner=owner)
        call = await self._incoming.decoded(owner, body, decode)
        stream = call.stream or NDJSON in request.headers.get("Accept", "")
        key = request.headers.get("Idempotency-Key")
        fingerprint = b"" if key is None else await fingerprint_of(request.path, body, stream)
        del body
        if key is None:
            if stream:
                return await self._stream(request, call)
            with HeldOutput(self._held, owner) as held:
                answer = await self._whole(call, held, owner)
                return await send_held(request, answer, held, self._write_timeout_s)
        key = key_of(owner, key)
        if stream:
            return await self._stream_by_key(request, call, key, fingerprint)

        async def work(_: Execution) -> HttpAnswer:
            with HeldOutput(self._held, owner) as held:
                return await self._whole(call, held, owner)

        answer = await self._keys.once(key, fingerprint, work, partial(self._incoming.keep, request))
        with HeldOutput(self._held, owner) as held:
            return await send_held(request, answer, held, self._write_timeout_s, kept=True)

    async def _whole(self, call: BatchCall, held: HeldOutput, owner: str) -> HttpAnswer:
        outcomes = [b""] * len(call.requests)
        turns = Turns()
        for index, refusal in zip(call.refused, call.refusals, strict=True):
            outcomes[index] = refusal
            await turns.pause()
        sent = call.sent()
        if sent:
            async for position, outcome in self._admission.run_batch(sent, call.deadline_s):
                outcomes[call.runnable[position]] = await _outcome_json(outcome, held)
                await turns.pause()
        return HttpAnswer(status=200, body=await filled(to_json(Outcomes([])), outcomes))

    async def _stream(self, request: HttpRequest, call: BatchCall) -> web.StreamResponse:
        self._admission.admit(len(call.runnable), request.owner)
        response = await open_stream(request)
        turns = Turns()
        async for line in self._lines(call, request.owner):
            await self._written(response, line)
            await turns.pause()
        return await finished(response, self._write_timeout_s)

    async def _written(self, response: web.StreamResponse, content: bytes) -> None:
        """While its client takes nothing of it, no more programs start."""
        await write(response, content, self._write_timeout_s)

    async def _stream_by_key(
        self, request: HttpRequest, call: BatchCall, key: str, fingerprint: bytes
    ) -> web.StreamResponse:
        async def work(execution: Execution) -> HttpAnswer:
            # Its lines are kept for whoever asks again, however many clients read them.
            turns = Turns()
            async for line in self._lines(call, request.owner, short=lambda: self._keys.full(request.owner)):
                execution.emit(line)
                await turns.pause()
            return HttpAnswer(status=200, body=b"", content_type=NDJSON)

        response: web.StreamResponse | None = None
        turns = Turns()
        keep = partial(self._incoming.keep, request)
        async for line in self._keys.follow(key, fingerprint, work, keep):
            if response is None:  # from here on the status can no longer be a refusal's
                response = await open_stream(request)
            await self._written(response, line)
            await turns.pause()
        assert response is not None, "a batch has at least one line"
        return await finished(response, self._write_timeout_s)

    async def _lines(self, call: BatchCall, owner: str, short: Callable[[], bool] = lambda: False) -> Any:
        """One line per call, as they end; those that cannot run first. While `short`, with heads alone.
        Raises Refused before the first line, and none after it: its client has a status by then."""
        sent = call.sent()
        self._admission.enter(len(sent), owner)
        try:
            for index, refusal in zip(call.refused, call.refusals, strict=True):
                yield await _line(index, refusal)
        except BaseException:  # nobody reads on
            self._admission.leave(len(sent), owner)
            raise
        if not sent:
            return
        async for position, outcome in self._admission.run_batch(sent, call.deadline_s, entered=True):
            if isinstance(outcome, ExecResult) and short():
                outcome = shortened(outcome)
            yield await _line(call.runnable[position], await _outcome_json(outcome))


async def _outcome_json(outcome: ExecResult | SandboxError, held: HeldOutput | None = None) -> bytes:
    """As JSON, counted as `held`; while that is full, with heads of long texts."""
    if not isinstance(outcome, ExecResult):
        return to_json(failure(outcome))
    if held is not None:
        outcome = held.cut(outcome)
    chars = chars_of(outcome)
    body = to_json(outcome) if chars < LONG_CHARS else await written(outcome, chars)
    if held is not None:
        held.take(len(body))  # JSON has six for what a program wrote as one
    return body


async def _line(index: int, outcome: bytes) -> bytes:
    """An object with the place of what it tells of in front."""
    pieces = (b'{"index":%d,' % index, memoryview(outcome)[1:], b"\n")
    if len(outcome) < LARGE_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)
