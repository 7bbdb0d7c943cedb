"""A frozen policy behind an OpenAI-compatible /v1/completions: rolled out or evaluated, never published to.

    generate ─> POST /completions ─> check the answer ─> Generation
                  └─ streamed for whoever called `on_tokens`: each token as it comes, of text each word

Who waits: `generate` for one HTTP answer, or for its next piece. Token ids go in and come out where the
endpoint can (vLLM: `return_token_ids`); where it gives text alone (llama.cpp) the text is encoded again,
which need not give the ids that were sampled. So the former alone, at T = 1, have log-probs and can be
learned from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from rocstar.engine.inference.base import Generation, Heard, InferenceError, KvLoad, Sampling, StopReason
from rocstar.engine.inference.busy import BusyClock
from rocstar.engine.inference.events import read_events
from rocstar.engine.inference.openai_stream import Codec, StreamedChoice, WordIds
from rocstar.engine.inference.weights import WeightSource

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    length: int
    call: asyncio.Task[dict[str, Any]] | None = None
    aborted: bool = False


class OpenAIEndpoint:
    """Implements `RolloutEngine`.

    Invariant: a log-prob is log_softmax(logits)[id] of the id that was sampled at T = 1, and NaN wherever
    that is not known, so that nothing learned from it could go unnoticed.

    Args:
        url: of the endpoint, up to and with /v1.
        model: as /v1/models names it.
        vocab_size: ids are below it.
        kv_tokens: what `load` reports as capacity, for the API does not tell.
        max_requests: asked at a time; more wait.
        timeout_s: for the first answer, which shows what the endpoint gives, and for the first streamed one.
        gap_timeout_s: how long a streamed answer may bring nothing, while our own loop runs.
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
        codec: Codec | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.url, self.version = url.rstrip("/"), 0
        self.gives_ids = self.gives_logprobs = False
        self._model, self._vocab_size, self._kv_tokens = model, vocab_size, kv_tokens
        self._timeout_s, self._gap_timeout_s = timeout_s, gap_timeout_s
        self._codec, self._headers = codec, headers or {}
        self._streams: bool | None = None
        """Streamed answers tell what those at once do; None: nobody has listened yet."""
        self._hearing: dict[str, Heard] = {}
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
            await self._learn()
        except BaseException:  # cancelled, too: who did not enter does not leave
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def _learn(self) -> None:
        """Ask for one token, and see what comes with it. InferenceError(unfit) if it is not enough."""
        async with asyncio.timeout(self._timeout_s):
            try:
                choice = _choice(await self._post(self._body([1], 1, frozenset(), 1.0, 0, as_ids=True)))
            except InferenceError as error:
                if error.retryable:
                    raise
                choice = {}  # an endpoint that takes no ids for a prompt
        self.gives_ids = isinstance(choice.get("token_ids"), list)
        self.gives_logprobs = self.gives_ids and _logprobs(choice) is not None
        if not self.gives_ids and self._codec is None:
            raise _unfit(f"{self.url} speaks text alone", "give the model's tokenizer as codec")

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
        """Generate as the protocol says. An aborted answer has what was streamed of it: without that the API
        returns nothing."""
        if not ids or max_new_tokens < 1 or request_id in self._live:
            raise InferenceError("bad_request", f"{len(ids)} ids, {max_new_tokens} new", retryable=False)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InferenceError("bad_token", f"an id lies outside [0, {self._vocab_size})", retryable=False)
        live = self._live[request_id] = _Live(len(ids))
        body = self._body(ids, max_new_tokens, stop_ids, sampling.temperature, seed, as_ids=self.gives_ids)
        try:
            async with asyncio.timeout_at(deadline), self._room_for():
                if (granted := self._granting.pop(request_id, None)) is not None:
                    granted()
                streamed = await self._listened(self._hearing.get(request_id), max_new_tokens)
                if live.aborted:
                    return _generation((), (), StopReason.aborted)
                asking = self._post(body) if streamed is None else self._post_streamed(body, streamed)
                live.call = asyncio.create_task(asking)
                await asyncio.wait([live.call])
                # The API's log-probs are of log_softmax(logits), whatever the temperature.
                scored = sampling.temperature == 1.0
                if live.call.cancelled():
                    return self._so_far(streamed, max_new_tokens, scored=scored)
                choice = _choice(live.call.result())
        finally:
            if live.call is not None:
                live.call.cancel()
            del self._live[request_id]
        return self._read(choice, max_new_tokens, stop_ids, scored=scored, streamed=streamed)

    async def _listened(self, heard: Heard | None, asked: int) -> StreamedChoice | None:
        """Where its tokens are told as they come; None where nobody listens, or nothing could be heard."""
        if heard is None:
            return None
        if self._streams is None:
            self._streams = await self._can_stream()
        if not self._streams:
            return None
        if self.gives_ids:
            return StreamedChoice(heard, most=asked, words=None)
        assert self._codec is not None
        # The last place may be the stop token's, which the API leaves out of a text.
        return StreamedChoice(heard, most=asked - 1, words=WordIds(self._codec))

    async def _can_stream(self) -> bool:
        """Ask for one token as a stream, and see whether it brings what an answer at once does."""
        streamed = StreamedChoice(lambda place, token: None, most=0, words=None)
        body = self._body([1], 1, frozenset(), 1.0, 0, as_ids=self.gives_ids)
        try:
            async with asyncio.timeout(self._timeout_s):
                choice = _choice(await self._post_streamed(body, streamed))
        except (InferenceError, TimeoutError) as error:
            LOG.warning("%s streams no answers (%s): turns are told when they end", self.url, error)
            return False
        lacks_ids = self.gives_ids and not choice["token_ids"]
        if lacks_ids or (self.gives_logprobs and not _logprobs(choice)):
            what = "token ids" if lacks_ids else "log-probs"
            LOG.warning("%s streams no %s: turns are told when they end", self.url, what)
            return False
        return True

    @contextlib.asynccontextmanager
    async def _room_for(self) -> AsyncIterator[None]:
        """A place among those that are asked at a time."""
        with self._busy.asking():
            with self._busy.starving():
                await self._room.acquire()
            try:
                yield
            finally:
                self._room.release()

    def _body(
        self, ids: list[int], n: int, stop_ids: frozenset[int], temperature: float, seed: int, *, as_ids: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": n,
            "temperature": temperature,
            "top_p": 1.0,
            "seed": seed & ((1 << 31) - 1),
        }
        if as_ids:
            return body | {
                "prompt": ids,
                "logprobs": 0,
                "return_token_ids": True,
                "stop_token_ids": sorted(stop_ids),
                "ignore_eos": True,
                "skip_special_tokens": False,
            }
        assert self._codec is not None
        stops = [self._codec.decode([token]) for token in sorted(stop_ids)]
        return body | {"prompt": self._codec.decode(ids), "stop": stops}

    def _read(
        self,
        choice: dict[str, Any],
        asked: int,
        stop_ids: frozenset[int],
        *,
        scored: bool,
        streamed: StreamedChoice | None,
    ) -> Generation:
        try:
            finish = StopReason.length if choice["finish_reason"] == "length" else StopReason.stop
            if not self.gives_ids:
                ids = self._encoded(choice["text"], streamed)[:asked]
                # The API leaves the stop text out: the turn ends with the first of the tokens it may mean.
                if finish is StopReason.stop:
                    ids = [*ids[: asked - 1], min(stop_ids)]
                return _generation(ids, [math.nan] * len(ids), finish)
            ids = choice["token_ids"]
            if not ids or (ids[-1] in stop_ids) != (finish is StopReason.stop) or len(ids) > asked:
                raise ValueError(f"finish {choice['finish_reason']!r} with {len(ids)} of {asked} ids")
            if not (scored and self.gives_logprobs):
                return _generation(ids, [math.nan] * len(ids), finish)
            logprobs = _logprobs(choice)
            if logprobs is None or len(logprobs) != len(ids):
                raise ValueError(f"{len(ids)} ids without a log-prob each")
            return _generation(ids, logprobs, finish)
        except (KeyError, TypeError, ValueError) as error:
            raise InferenceError("bad_reply", f"{error}; {str(choice)[:300]}", retryable=True) from error

    def _so_far(self, streamed: StreamedChoice | None, asked: int, *, scored: bool) -> Generation:
        """What came of an answer that was aborted."""
        if streamed is None:
            return _generation((), (), StopReason.aborted)
        choice = streamed.choice()
        ids = choice["token_ids"] if self.gives_ids else self._encoded(choice["text"], streamed)
        logprobs = _logprobs(choice) if scored and self.gives_logprobs else None
        if logprobs is None or len(logprobs) != len(ids):
            logprobs = [math.nan] * len(ids)
        return _generation(ids[:asked], logprobs[:asked], StopReason.aborted)

    def _encoded(self, text: str, streamed: StreamedChoice | None) -> list[int]:
        if streamed is not None:
            return streamed.encode(text)
        assert self._codec is not None
        return self._codec.encode(text)

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

    def join(self, request_ids: Sequence[str]) -> None:
        """Nothing to wait for."""

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._granting[request_id] = granted

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        """From the next request on its answers are streamed, where the endpoint can."""
        self._hearing[request_id] = heard

    def release(self, request_id: str) -> None:
        self._granting.pop(request_id, None)
        self._hearing.pop(request_id, None)
        live = self._live.get(request_id)
        if live is not None and live.call is not None:
            live.aborted = True
            live.call.cancel()

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._opened(body) as response:
            content = await response.read()
        reply: dict[str, Any] = self._json(content)
        return reply

    async def _post_streamed(self, body: dict[str, Any], streamed: StreamedChoice) -> dict[str, Any]:
        """The same answer, told as it comes. Whoever cancels it closes the connection."""
        async with self._opened(body | {"stream": True}) as response:
            async for payload in read_events(response, gap_s=self._gap_timeout_s):
                event = self._json(payload)
                if isinstance(event, dict) and event.get("error"):
                    detail = f"{self.url}: {str(event['error'])[:300]}"
                    raise InferenceError("server_error", detail, retryable=True)
                streamed.add(event)
        return {"choices": [streamed.choice()]}

    @contextlib.asynccontextmanager
    async def _opened(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with status 200. InferenceError for another, and for a connection that is lost."""
        assert self._session is not None, "the endpoint has not been entered"
        try:
            async with self._session.post(self.url + "/completions", json=body) as response:
                if response.status != 200:
                    raise _refusal(self.url, response.status, await response.read())
                yield response
        except (aiohttp.ClientError, ConnectionError) as error:
            raise InferenceError("replica_lost", f"{self.url}: {error}", retryable=True) from error

    def _json(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            raise InferenceError("bad_reply", f"{self.url}: {content[:200]!r}", retryable=True) from error


def _refusal(url: str, status: int, content: bytes) -> InferenceError:
    retryable = status >= 500 or status == 429
    detail = f"{url} answered {status}: {content[:300]!r}"
    return InferenceError("server_error" if retryable else "bad_request", detail, retryable=retryable)


def _choice(reply: dict[str, Any]) -> dict[str, Any]:
    try:
        choice: dict[str, Any] = reply["choices"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise InferenceError("bad_reply", f"no choice in {str(reply)[:200]}", retryable=True) from error
    return choice


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    found = (choice.get("logprobs") or {}).get("token_logprobs")
    return [float(value) for value in found] if isinstance(found, list) and None not in found else None


def _generation(ids: Sequence[int], logprobs: Sequence[float], finish: StopReason) -> Generation:
    return Generation(
        ids=tuple(ids),
        logprobs=tuple(logprobs),
        version_spans=((0, len(ids), 0),) if ids else (),
        finish=finish,
        cached_tokens=0,
    )


def _unfit(why: str, fix: str) -> InferenceError:
    return InferenceError("unfit", f"{why}; {fix}", retryable=False)
