"""A frozen policy behind an OpenAI-compatible /v1/completions: rolled out or evaluated, never published to.

Who waits: `generate` for one HTTP answer. Token ids go in and come out where the endpoint can (vLLM:
`return_token_ids`); where it gives text alone (llama.cpp) the text is encoded again, which need not give the
ids that were sampled. So only the former, at T = 1, may be learned from: `purpose` says which is wanted, and
an endpoint that cannot serve it is refused at the start, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

import aiohttp

from rocstar.engine.inference.base import Generation, InferenceError, KvLoad, Sampling, StopReason

Purpose = Literal["rollout", "evaluate"]


class Codec(Protocol):
    """What a text-only endpoint needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


@dataclass(slots=True)
class _Live:
    length: int
    call: asyncio.Task[dict[str, Any]] | None = None
    aborted: bool = False


class OpenAIEndpoint:
    """Invariant: with purpose = "rollout" every answer has the sampled ids, and log_softmax(logits)[id] of
    each; with "evaluate" log-probs are NaN, so that nothing learned from them could go unnoticed.

    url: up to and with /v1. model: as /v1/models names it. kv_tokens: what `load` reports as capacity, as the
    API does not tell. codec: needed where the endpoint gives no ids. headers: an Authorization, say.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        purpose: Purpose,
        vocab_size: int,
        kv_tokens: int = 1 << 20,
        max_requests: int = 256,
        timeout_s: float = 60.0,
        codec: Codec | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.url, self.purpose = url.rstrip("/"), purpose
        self.gives_ids = False
        self._model, self._vocab_size, self._kv_tokens = model, vocab_size, kv_tokens
        self._timeout_s, self._codec, self._headers = timeout_s, codec, headers or {}
        self._room = asyncio.Semaphore(max_requests)
        self._max_requests = max_requests
        self._session: aiohttp.ClientSession | None = None
        self._live: dict[str, _Live] = {}

    async def __aenter__(self) -> OpenAIEndpoint:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_requests),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        try:
            await self._learn()
        except BaseException:
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
        if self.purpose == "rollout" and not (self.gives_ids and _logprobs(choice) is not None):
            raise _unfit(
                f"{self.url} returns no token ids or log-probs, which learning needs",
                'use it for evaluation alone (purpose "evaluate"), or serve the model with vLLM or SGLang',
            )
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
        """As the protocol. An aborted answer is empty: the API returns nothing of what was begun."""
        if not ids or max_new_tokens < 1 or request_id in self._live:
            raise InferenceError("bad_request", f"{len(ids)} ids, {max_new_tokens} new", retryable=False)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InferenceError("bad_token", f"an id lies outside [0, {self._vocab_size})", retryable=False)
        if self.purpose == "rollout" and sampling.temperature != 1.0:
            raise _unfit(
                f"log-probs of this API are of log_softmax(logits), not of logits / {sampling.temperature}",
                "roll out at temperature 1.0, or use SGLang",
            )
        live = self._live[request_id] = _Live(len(ids))
        body = self._body(ids, max_new_tokens, stop_ids, sampling.temperature, seed, as_ids=self.gives_ids)
        try:
            async with asyncio.timeout_at(deadline), self._room:
                if live.aborted:
                    return _generation((), (), StopReason.aborted)
                live.call = asyncio.create_task(self._post(body))
                await asyncio.wait([live.call])
                if live.call.cancelled():
                    return _generation((), (), StopReason.aborted)
                choice = _choice(live.call.result())
        finally:
            if live.call is not None:
                live.call.cancel()
            del self._live[request_id]
        return self._read(choice, max_new_tokens, stop_ids)

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

    def _read(self, choice: dict[str, Any], asked: int, stop_ids: frozenset[int]) -> Generation:
        try:
            finish = StopReason.length if choice["finish_reason"] == "length" else StopReason.stop
            if not self.gives_ids:
                assert self._codec is not None
                ids = self._codec.encode(choice["text"])[:asked]
                # The API leaves the stop text out: the turn ends with the first of the tokens it may mean.
                if finish is StopReason.stop:
                    ids = [*ids[: asked - 1], min(stop_ids)]
                return _generation(ids, [math.nan] * len(ids), finish)
            ids = choice["token_ids"]
            if not ids or (ids[-1] in stop_ids) != (finish is StopReason.stop) or len(ids) > asked:
                raise ValueError(f"finish {choice['finish_reason']!r} with {len(ids)} of {asked} ids")
            scored = _logprobs(choice)
            if self.purpose == "evaluate":
                return _generation(ids, [math.nan] * len(ids), finish)
            if scored is None or len(scored) != len(ids):
                raise ValueError(f"{len(ids)} ids without a log-prob each")
            return _generation(ids, scored, finish)
        except (KeyError, TypeError, ValueError) as error:
            raise InferenceError("bad_reply", f"{error}; {str(choice)[:300]}", retryable=True) from error

    def load(self) -> KvLoad:
        used = sum(live.length for live in self._live.values())
        running = sum(live.call is not None for live in self._live.values())
        return KvLoad(total=self._kv_tokens, used=used, running=running, waiting=len(self._live) - running)

    async def publish(self, version: int, source: Any = None) -> None:
        raise InferenceError("frozen", f"{self.url} serves weights that are not ours", retryable=False)

    async def abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.aborted = True
            if live.call is not None:
                live.call.cancel()

    def join(self, request_ids: Sequence[str]) -> None:
        """Nothing to wait for."""

    def release(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None and live.call is not None:
            live.aborted = True
            live.call.cancel()

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self._session is not None, "the endpoint has not been entered"
        try:
            async with self._session.post(self.url + "/completions", json=body) as response:
                content, status = await response.read(), response.status
        except (aiohttp.ClientError, ConnectionError) as error:
            raise InferenceError("replica_lost", f"{self.url}: {error}", retryable=True) from error
        if status != 200:
            retryable = status >= 500 or status == 429
            detail = f"{self.url} answered {status}: {content[:300]!r}"
            raise InferenceError("server_error" if retryable else "bad_request", detail, retryable=retryable)
        try:
            reply: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise InferenceError("bad_reply", f"{self.url}: {content[:200]!r}", retryable=True) from error
        return reply


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
