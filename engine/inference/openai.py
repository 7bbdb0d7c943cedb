"""A frozen policy behind an OpenAI-compatible /v1/completions, for rollouts and evaluations.

    generate ─> POST /completions ─> check the answer ─> Generation
                  └─ streamed after `on_tokens`: each token as it arrives, of text each word

`generate` waits for one HTTP answer, or for its next chunk. Token ids go in and come out if the endpoint
supports it (openai_formats.py); if it returns only text, the text is encoded again, which may give other ids
than the sampled ones. So only the former, at T = 1, have log-probs and can be used for training.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from rocstar.engine.chat.chat import Tokenizer
from rocstar.engine.inference.base import (
    BusyClock,
    Generation,
    Heard,
    Inference,
    InferenceError,
    KvLoad,
    Sampling,
    StopReason,
    check_request,
)
from rocstar.engine.inference.events import read_events
from rocstar.engine.inference.openai_formats import (
    NEUTRAL,
    STANDARD,
    STREAMED,
    STREAMED_WITH_USAGE,
    EndpointFormat,
    Scored,
    StreamedChoice,
    build_request,
    detect_format,
    ids_of,
    parse_response,
)
from rocstar.engine.inference.weights import WeightSource

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    length: int
    call: asyncio.Task[None] | None = None
    aborted: bool = False


class OpenAIEndpoint(Inference):
    """Implements `RolloutEngine`.

    Invariant: a log-prob is log_softmax(logits)[id] of the id that was sampled at T = 1, and NaN if unknown,
    so that training on it fails visibly.

    Args:
        url: address of the endpoint, up to and with /v1.
        model: its name in /v1/models.
        vocab_size: ids are below it.
        kv_tokens: the capacity that `load` reports; the API has none.
        max_requests: concurrent requests; more wait.
        timeout_s: for the first answer, which shows the endpoint's features, and for the first streamed one.
        gap_timeout_s: longest silence of a streamed answer, in event loop time.
        codec: the tokenizer, needed where the endpoint gives no ids.
        headers: sent with every request, an Authorization, say.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        vocab_size: int,
        kv_tokens: int = 1 << 20,
        max_requests: int = 256,
        timeout_s: float = 60.0,
        gap_timeout_s: float = 120.0,
        codec: Tokenizer | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.url, self.version = url.rstrip("/"), 0
        self.form, self.gives_logprobs = EndpointFormat.TEXT, False
        self._neutral = NEUTRAL
        self._model, self._vocab_size, self._kv_tokens = model, vocab_size, kv_tokens
        self._timeout_s, self._gap_timeout_s = timeout_s, gap_timeout_s
        self._codec, self._headers = codec, headers or {}
        self._streams: bool | None = None
        """True if streamed answers have the content of complete ones; None before the first stream."""
        self._stream_fields = STREAMED_WITH_USAGE
        self._probing = asyncio.Lock()
        self._listeners: dict[str, Heard] = {}
        self._room = asyncio.Semaphore(max_requests)
        self._max_requests = max_requests
        self._session: aiohttp.ClientSession | None = None
        self._live: dict[str, _Live] = {}
        self._granting: dict[str, Callable[[], None]] = {}
        self._busy = BusyClock()

    @property
    def busy_s(self) -> float:
        return self._busy.busy_s

    @property
    def starved_s(self) -> float:
        return self._busy.starved_s

    async def __aenter__(self) -> OpenAIEndpoint:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_requests),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        try:
            await self._detect_features()
        except BaseException:  # cancelled, too: who did not enter does not leave
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def _detect_features(self) -> None:
        """Request one token and detect the endpoint's features. Raise InferenceError(unfit) if they are not
        sufficient, another one if the endpoint refuses a text too."""
        async with asyncio.timeout(self._timeout_s):
            for form in (EndpointFormat.SENT_IDS, EndpointFormat.SPELLED_IDS):
                choice = await self._first_choice(form)
                if choice is not None and self._has_format(choice, form):
                    self.form = form
                    return
            if self._codec is None:
                detail = f"{self.url} returns text alone; give the model's tokenizer as codec"
                raise InferenceError("unfit", detail, retryable=False)
            if await self._first_choice(EndpointFormat.TEXT) is None:
                self._neutral = STANDARD
                await self._post(self._body(EndpointFormat.TEXT, [1], 1, frozenset(), 1.0, 0))
                LOG.warning("%s takes no top_k, min_p or repetition_penalty: its own settings of them apply", self.url)

    def _has_format(self, choice: dict[str, Any], form: EndpointFormat) -> bool:
        """Return True for ids in `form`, and set `gives_logprobs`. InferenceError(unfit) if malformed."""
        try:
            if detect_format(choice) is not form:
                return False
            logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
            is_scored = isinstance(logprobs, list) and None not in logprobs
            self.gives_logprobs = form is EndpointFormat.SPELLED_IDS or is_scored
            ids_of(form, self._codec, with_logprobs=self.gives_logprobs).take(choice)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            detail = f"{self.url} answers with malformed ids or log-probs: {error}; {str(choice)[:300]}"
            raise InferenceError("unfit", detail, retryable=False) from error
        return True

    async def _first_choice(self, form: EndpointFormat) -> dict[str, Any] | None:
        """Return the answer to a prompt of one token; None if it is refused."""
        if form is not EndpointFormat.SENT_IDS and self._codec is None:
            return None
        try:
            reply = await self._post(self._body(form, [1], 1, frozenset(), 1.0, 0))
        except InferenceError as error:
            if error.retryable:
                raise
            return None
        try:
            choice: dict[str, Any] = reply["choices"][0]
        except (KeyError, IndexError, TypeError) as error:
            raise InferenceError("bad_reply", f"no choice in {str(reply)[:200]}", retryable=True) from error
        return choice

    async def generate(
        self,
        ids: list[int],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        seed: int,
        request_id: str,
        deadline: float | None,
    ) -> Generation:
        """Generate by the protocol. An aborted answer has its streamed tokens; without streaming the API
        returns none."""
        check_request(ids, max_new_tokens, seed, request_id=request_id, live=self._live, vocab_size=self._vocab_size)
        live = self._live[request_id] = _Live(len(ids))
        # The API's log-probs are of log_softmax(logits), whatever the temperature.
        is_scored = self.gives_logprobs and sampling.temperature == 1.0
        written: Scored = []
        try:
            async with asyncio.timeout_at(deadline), self._room_for():
                if (granted := self._granting.pop(request_id, None)) is not None:
                    granted()
                heard = await self._listener(request_id)
                while not live.aborted:
                    before, left = len(written), max_new_tokens - len(written)
                    # A text may end in a stop token: the reader of the answer decides about the last token.
                    most = max_new_tokens - (self.form is not EndpointFormat.SENT_IDS)
                    choice_ids = ids_of(self.form, self._codec, with_logprobs=is_scored)
                    choice = StreamedChoice(choice_ids, heard=heard, start=before, most=most)
                    prompt = [*ids, *(token for token, _ in written)]
                    body = self._body(self.form, prompt, left, stop_ids, sampling.temperature, seed + before)
                    live.call = asyncio.create_task(self._ask(body, choice, is_streamed=heard is not None))
                    await asyncio.wait([live.call])
                    if live.call.cancelled():
                        with contextlib.suppress(ValueError):  # closed between an id and its log-prob
                            written += choice.scored()
                        break
                    live.call.result()
                    finish = self._take(choice, written, left, stop_ids)
                    # The model's own end of text is no stop unless it was asked for: go on behind it.
                    if finish is StopReason.length or written[-1][0] in stop_ids:
                        return _generation(written, finish)
                    if len(written) == max_new_tokens:
                        return _generation(written, StopReason.length)
        finally:
            if live.call is not None:
                live.call.cancel()
            del self._live[request_id]
        return _generation(written[:max_new_tokens], StopReason.aborted)

    def _take(self, choice: StreamedChoice, written: Scored, left: int, stop_ids: frozenset[int]) -> StopReason:
        """Append a completed answer, and return its finish reason."""
        try:
            scored, finish = parse_response(self.form, choice, left, stop_ids)
        except ValueError as error:
            raise InferenceError("bad_reply", f"{self.url}: {error}", retryable=True) from error
        if not scored:
            raise InferenceError("bad_reply", f"{self.url}: an answer without a token", retryable=True)
        written += scored
        return finish

    async def _listener(self, request_id: str) -> Heard | None:
        """Return the callback for its tokens; None without a listener, or if the endpoint cannot stream."""
        heard = self._listeners.get(request_id)
        if heard is not None and self._streams is None:
            async with self._probing:  # the first check is shared by all requests
                if self._streams is None:
                    self._streams = await self._can_stream()
        return heard if self._streams else None

    async def _can_stream(self) -> bool:
        """Request one token as a stream, and check that it has the content of a complete answer."""
        try:
            async with asyncio.timeout(self._timeout_s):
                lacks = not await self._first_streamed() and self.form is not EndpointFormat.TEXT
        except (InferenceError, TimeoutError, ValueError) as error:
            LOG.warning("%s streams no answers (%s): tokens are reported when a turn ends", self.url, error)
            return False
        if lacks:
            LOG.warning("%s streams no token ids: tokens are reported when a turn ends", self.url)
        return not lacks

    async def _first_streamed(self) -> Scored:
        """Return the stream of a prompt of one token; later streams use the same request form."""
        body = self._body(self.form, [1], 1, frozenset(), 1.0, 0)
        choice = StreamedChoice(ids_of(self.form, self._codec, with_logprobs=self.gives_logprobs))
        try:
            await self._ask(body, choice, is_streamed=True)
        except InferenceError as error:
            if error.retryable:
                raise
            self._stream_fields = STREAMED
            await self._ask(body, choice, is_streamed=True)
            LOG.warning("%s does not count streamed tokens: a truncated answer is not detected", self.url)
        return choice.scored()

    @contextlib.asynccontextmanager
    async def _room_for(self) -> AsyncIterator[None]:
        """One of the `max_requests` requests that may run at a time."""
        with self._busy.track_turn():
            with self._busy.track_wait():
                await self._room.acquire()
            try:
                yield
            finally:
                self._room.release()

    def _body(
        self, form: EndpointFormat, ids: list[int], n: int, stop_ids: frozenset[int], temperature: float, seed: int
    ) -> dict[str, Any]:
        return {
            "model": self._model,
            "max_tokens": n,
            "temperature": temperature,
            "seed": seed & ((1 << 31) - 1),
            **build_request(form, ids, stop_ids, self._codec, self._neutral),
        }

    def load(self) -> KvLoad:
        used = sum(live.length for live in self._live.values())
        running = sum(live.call is not None for live in self._live.values())
        return KvLoad(total=self._kv_tokens, used=used, running=running, waiting=len(self._live) - running)

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        raise InferenceError("frozen", f"{self.url} serves weights that are not ours", retryable=False)

    async def abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.aborted = True
            if live.call is not None:
                live.call.cancel()

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._granting[request_id] = granted

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        """From the next request on its answers are streamed, where the endpoint can."""
        self._listeners[request_id] = heard

    def release(self, request_id: str) -> None:
        self._granting.pop(request_id, None)
        self._listeners.pop(request_id, None)
        live = self._live.get(request_id)
        if live is not None and live.call is not None:
            live.aborted = True
            live.call.cancel()

    async def _ask(self, body: dict[str, Any], choice: StreamedChoice, *, is_streamed: bool) -> None:
        """Put the answer into `choice`, as it comes or at once. Whoever cancels it closes the connection."""
        if not is_streamed:
            choice.add(await self._post(body))
            return
        async with self._opened({**body, **self._stream_fields}) as response:
            async for payload in read_events(response, gap_s=self._gap_timeout_s):
                event = self._json(payload)
                if isinstance(event, dict) and event.get("error"):
                    detail = f"{self.url}: {str(event['error'])[:300]}"
                    raise InferenceError("server_error", detail, retryable=True)
                choice.add(event)

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._opened(body) as response:
            content = await response.read()
        reply: dict[str, Any] = self._json(content)
        return reply

    @contextlib.asynccontextmanager
    async def _opened(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with status 200. InferenceError for another, and for a connection that is lost."""
        assert self._session is not None, "the endpoint has not been entered"
        try:
            async with await self._answered(self._session, body) as response:
                if (status := response.status) != 200:
                    kind = "server_error" if status >= 500 or status == 429 else "bad_request"
                    detail = f"{self.url} answered {status}: {(await response.read())[:300]!r}"
                    raise InferenceError(kind, detail, retryable=kind == "server_error")
                yield response
        except (aiohttp.ClientError, ConnectionError) as error:
            raise InferenceError("replica_lost", f"{self.url}: {error}", retryable=True) from error

    async def _answered(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """The beginning of an answer. A server may close a connection that it kept just as it is used again
        (llama.cpp does): nothing came of that request, and it is sent once more."""
        try:
            return await session.post(self.url + "/completions", json=body)
        except aiohttp.ClientConnectorError:  # no listener at that address
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await session.post(self.url + "/completions", json=body)

    def _json(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            raise InferenceError("bad_reply", f"{self.url}: {content[:200]!r}", retryable=True) from error


def _generation(scored: Sequence[tuple[int, float]], finish: StopReason) -> Generation:
    return Generation(
        ids=tuple(token for token, _ in scored),
        logprobs=tuple(logprob for _, logprob in scored),
        version_spans=((0, len(scored), 0),) if scored else (),
        finish=finish,
        cached_tokens=0,
    )
