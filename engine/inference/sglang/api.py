"""The HTTP API of one SGLang server: routes, deadlines, statuses. It knows nothing of trajectories.

Each call waits for its answer, at most until its deadline; a streamed one for its next token. Requests in
flight keep their connections during a pause, so control calls have separate connections: `max_requests`
bounds only the former.

A failed call is an InferenceError: `replica_lost` (no connection), `replica_hung` (a control call without an
answer), `server_error` (5xx), `too_long`, `bad_request`, `bad_reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.events import read_events
from rocstar.engine.inference.sglang.requests import StreamedReply
from rocstar.engine.running_time import running_timeout

_Opened = contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]
CONTROL_CONNECTIONS = 16
PROBE_TIMEOUT_S = 2.0
TOO_LONG = (
    "longer than the model's context length",
    "exceeds the model's maximum context length",
    "exceeds the maximum allowed length",
)
"""Text of a 400 if the ids do not fit the context or the KV pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """GET /v1/loads, summed over data-parallel ranks. A paused or hung scheduler leaves `taken_at` as it is.

    `taken_at`: seconds, the oldest rank's snapshot. `used_tokens` leaves out KV that may be evicted.
    """

    total_tokens: int
    used_tokens: int
    running: int
    waiting: int
    taken_at: float


class Api:
    """One session to one server. `timeout_s`, in which our own loop ran, bounds every call but `generate`.

    Every status other than 200 raises, and so does a 200 that says `success: false`.
    """

    def __init__(self, url: str, *, max_requests: int = 1024, timeout_s: float = 60.0) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._room = asyncio.Semaphore(max_requests)
        self._max_connections = max_requests + CONTROL_CONNECTIONS
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections),
            timeout=aiohttp.ClientTimeout(total=None),  # each call brings its own deadline
            read_bufsize=1 << 20,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST /generate. Waits without end: the caller holds the deadline."""
        async with self._room:
            reply = _json(await self._exchange("POST", "/generate", body), "/generate")
        return _generated(reply)

    async def generate_streamed(
        self,
        body: dict[str, Any],
        deliver: Callable[[Sequence[int]], None],
        *,
        gap_s: float,
        excused: Callable[[], bool],
    ) -> dict[str, Any]:
        """POST /generate as a stream, with a callback for ids; the answer equals that of `generate`.

        Waits without limit for the first event, and for each further one at most `gap_s` of event loop time,
        unless a silence is expected (`excused`). Cancellation closes the connection, and the server ends the
        request.
        """
        streamed = StreamedReply()
        async with self._room:
            try:
                async with self._opened("POST", "/generate", body | {"stream": True}) as response:
                    if response.status != 200:
                        raise _refusal("/generate", response.status, await response.text(errors="replace"))
                    async for payload in read_events(response, gap_s=gap_s, excused=excused):
                        event = _json(payload, "/generate")
                        if isinstance(event, dict) and "error" in event:  # refused, with status 200
                            raise _refusal("/generate", 400, payload.decode(errors="replace"))
                        deliver(streamed.add(event))
            except (aiohttp.ClientError, ConnectionError) as error:
                raise self._lost("/generate", error) from error
        return _generated(streamed.reply())

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """A control call that answers with a JSON object. InferenceError unless it is a success."""
        return _success(await self._control("POST", path, body, timeout_s), path)

    async def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        return _success(await self._control("GET", path, None, timeout_s), path)

    async def loads(self) -> Loads:
        reply = await self.get("/v1/loads?include=core")
        try:
            ranks = reply["loads"]
            return Loads(
                total_tokens=sum(rank["max_total_num_tokens"] for rank in ranks),
                used_tokens=sum(rank["num_used_tokens"] for rank in ranks),
                running=sum(rank["num_running_reqs"] for rank in ranks),
                waiting=sum(rank["num_waiting_reqs"] for rank in ranks),
                taken_at=min(rank["timestamp"] for rank in ranks),
            )
        except (KeyError, TypeError, ValueError) as error:
            detail = f"/v1/loads answered {str(reply)[:200]}"
            raise InferenceError("bad_reply", detail, retryable=True) from error

    async def abort(self, rid: str) -> None:
        """Abort every request whose rid starts with `rid`. The server answers 200 for unknown ones too."""
        await self._control("POST", "/abort_request", {"rid": rid}, None)

    async def abort_all(self) -> None:
        await self._control("POST", "/abort_request", {"rid": "", "abort_all": True}, None)

    async def answers(self) -> bool:
        """Return True if the server takes requests. /health would hang for 20 s under a pause."""
        try:
            await self.get("/model_info", timeout_s=PROBE_TIMEOUT_S)
        except InferenceError:
            return False
        return True

    async def _control(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None) -> bytes:
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with running_timeout(limit):
                return await self._exchange(method, path, body)
        except TimeoutError:
            detail = f"{self.url}{path} has not answered within {limit} s"
            raise InferenceError("replica_hung", detail, retryable=True) from None

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        try:
            async with self._opened(method, path, body) as response:
                content = await response.read()
                status = response.status
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._lost(path, error) from error
        if status != 200:
            raise _refusal(path, status, content.decode(errors="replace"))
        return content

    def _opened(self, method: str, path: str, body: dict[str, Any] | None) -> _Opened:
        assert self._session is not None, "the API has not been entered"
        return self._session.request(method, self.url + path, json=body)

    def _lost(self, path: str, error: Exception) -> InferenceError:
        detail = f"{self.url}{path}: {type(error).__name__}: {error}"
        return InferenceError("replica_lost", detail, retryable=True)


def _success(content: bytes, path: str) -> dict[str, Any]:
    reply = _json(content, path)
    if not isinstance(reply, dict):
        raise InferenceError("bad_reply", f"{path} answered {str(reply)[:200]}", retryable=True)
    if reply.get("success") is False:
        raise InferenceError("server_error", f"{path}: {reply.get('message')}", retryable=True)
    return reply


def _generated(reply: Any) -> dict[str, Any]:
    if not isinstance(reply, dict) or not isinstance(reply.get("meta_info"), dict):
        raise InferenceError("bad_reply", f"/generate answered {str(reply)[:200]}", retryable=True)
    return reply


def _json(content: bytes, path: str) -> Any:
    """Half the time of the standard library's on a turn of some thousand tokens, and no NaN is a number."""
    try:
        return msgspec.json.decode(content)
    except ValueError as error:  # of msgspec, or of bytes that are no text
        raise InferenceError("bad_reply", f"{path} answered {content[:200]!r}", retryable=True) from error


def _refusal(path: str, status: int, text: str) -> InferenceError:
    """The server's errors have five shapes; only their text is alike."""
    detail = f"{path} answered {status}: {text[:500]}"
    if status >= 500 or status == 429:
        return InferenceError("server_error", detail, retryable=True)
    if any(phrase in text for phrase in TOO_LONG):
        return InferenceError("too_long", detail, retryable=False)
    return InferenceError("bad_request", detail, retryable=False)
