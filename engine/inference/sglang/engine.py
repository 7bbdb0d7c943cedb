"""One SGLang server as an `Inference`.

    generate ─> check ids ─> POST /generate ─> check the answer ─> Generation
                                  └─ streamed after `on_tokens`: each token as it arrives
    watch    ─> GET /v1/loads twice a second ─> load(); if the scheduler stands still while it should not,
                every request in flight fails, so that its trajectories continue elsewhere from their ids

`generate` waits for its tokens, also during a pause; `publish` waits for the publish before it. A request
that its caller gives up (deadline, cancellation) is aborted on the server by a background task.

Answers of a server are verified: ids outside the vocabulary are never sent (one kills the server), a "length"
with fewer tokens than requested is the KV pool's limit and not the policy's, and an answer with a version
that was not published from here is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from rocstar.engine.inference.base import (
    Generation,
    Heard,
    Inference,
    InferenceError,
    KvLoad,
    Sampling,
    StopReason,
    check_request,
)
from rocstar.engine.inference.sglang.api import Api, Loads
from rocstar.engine.inference.sglang.checksums import matching_dtype
from rocstar.engine.inference.sglang.requests import LiveRequest, generate_body
from rocstar.engine.inference.weights import DiskWeights, Shapes, WeightSource
from rocstar.engine.running_time import RunningClock

LOG = logging.getLogger(__name__)
RID_END = "~"
"""/abort_request takes a rid for a prefix: without an end, aborting "s1/t/1" would abort "s1/t/12" too."""
MAX_VERSION = 1 << 53


class SGLangEngine(Inference):
    """Invariants: a token's version is one published from here, at most the newest; every log-prob is of
    log_softmax(logits / T); no id outside [0, vocab_size) is sent; while `broken`, nothing is served.

    Args:
        url: the address of a running server.
        vocab_size: rows of the model's embedding.
        model: the folder that the server was started with, the layout of all later weights; without it a
            publish is only checked for a change.
        version: the version of the weights that the server holds now.
        broadcast: the backend by which `publish` sends LiveWeights ("gloo", "nccl"), None = by disk.
        hang_timeout_s: longest standstill of its scheduler with requests in flight, in event loop time; a
            prefill or a compilation must fit in.
        gap_timeout_s: longest silence of a streamed answer, in event loop time, without a publish under
            way and without requests queued on the server.
        update_timeout_s: time limit of a call that transfers weights.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        model: DiskWeights | None = None,
        version: int = 0,
        broadcast: str | None = None,
        max_requests: int = 1024,
        control_timeout_s: float = 60.0,
        watch_every_s: float = 0.5,
        hang_timeout_s: float = 60.0,
        gap_timeout_s: float = 300.0,
        update_timeout_s: float = 300.0,
    ) -> None:
        self.api = Api(url, max_requests=max_requests, timeout_s=control_timeout_s)
        self.version = version
        self._broken: InferenceError | None = None
        self.serves = asyncio.Event()
        self.serves.set()
        self.dtype: str | None = None
        """The dtype in which the server's checksums can be foretold from a source; None where they cannot."""
        self.layout: Shapes | None = None
        self.checksums: dict[str, str] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.publishing = asyncio.Lock()
        self._model, self._vocab_size, self._broadcast = model, vocab_size, broadcast
        self._watch_every_s, self._hang_timeout_s = watch_every_s, hang_timeout_s
        self._gap_timeout_s = gap_timeout_s
        self.update_timeout_s = update_timeout_s
        self._versions = {str(version): version}
        """Every version that was ever served from here, by label."""
        self._live: dict[str, LiveRequest] = {}
        self._listeners: dict[str, Heard] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._broke = asyncio.Event()
        self._numbers = itertools.count()
        self.facts = ServerFacts()
        self._loads = Loads(total_tokens=0, used_tokens=0, running=0, waiting=0, taken_at=0.0)
        self._watcher: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SGLangEngine:
        await self.api.__aenter__()
        try:
            await self.examine()
            await self.serve_as(self.version)
        except BaseException:  # cancelled, too: who did not enter does not leave
            await self.api.__aexit__(None, None, None)
            raise
        self._watcher = asyncio.create_task(self._watch(), name="sglang-watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.break_off(InferenceError("engine_stopped", "the engine was left", retryable=False))
        assert self._watcher is not None
        tasks = [self._watcher, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.__aexit__(None, None, None)

    async def serve_as(self, version: int) -> None:
        """Label the server's present weights as `version`, which is allowed, and serve them."""
        label = {"new_version": str(version), "abort_all_requests": False}
        await self.api.post("/update_weight_version", label)
        self.version, self.broken = version, None

    async def examine(self) -> None:
        """Check that the server is one whose answers can be trained on. InferenceError(unfit) names what to
        change."""
        self.facts = await examine(self.api)
        self._loads = await self.api.loads()
        self.checksums = await self.read_checksums()
        if self._model is not None and self.layout is None:
            self.layout = await asyncio.to_thread(self._model.shapes)
            self.dtype = await asyncio.to_thread(matching_dtype, self._model, self.checksums)
            if self.dtype is None:
                LOG.warning(
                    "%s: the checksums of %s are not those of its files (a GPU's hash, tensor parallelism or"
                    " a quantised model): a publish is only checked for having changed something",
                    *(self.api.url, self._model.path),
                )

    @property
    def broken(self) -> InferenceError | None:
        """Why nothing may be served: unknown weights, a hung or a lost server. None while it serves."""
        return self._broken

    @broken.setter
    def broken(self, failure: InferenceError | None) -> None:
        self._broken = failure
        (self.serves.set if failure is None else self.serves.clear)()
        if failure is not None:
            self._broke.set()

    @property
    def paused(self) -> bool:
        """A publish is under way: requests wait here, those on the server wait there."""
        return not self._resumed.is_set()

    @paused.setter
    def paused(self, value: bool) -> None:
        (self._resumed.clear if value else self._resumed.set)()

    async def read_checksums(self) -> dict[str, str]:
        """The checksum of every parameter: equal over data-parallel ranks, by rank if tensor-parallel."""
        ranks = (await self.api.post("/weights_checker", {"action": "checksum"}))["ranks"]
        if self.facts.tp_size == 1 and all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks):
            found: dict[str, str] = ranks[0]["checksums"]
            return found
        return {f"{k}/{name}": value for k, rank in enumerate(ranks) for name, value in rank["checksums"].items()}

    # ---- the protocol ----

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
        """Generate as the protocol says. What `abort` or the KV pool cuts is `aborted` and keeps its tokens.

        InferenceError(retryable=True) as soon as the server is known to be lost, hung or wrong.
        """
        if self.broken is not None:
            raise InferenceError(self.broken.kind, self.broken.detail, retryable=self.broken.retryable)
        check_request(
            ids,
            max_new_tokens,
            seed,
            request_id=request_id,
            live=self._live,
            vocab_size=self._vocab_size,
            max_length=self.facts.max_length,
        )
        live = self._live[request_id] = LiveRequest(rid="", heard=self._listeners.get(request_id))
        self._idle.clear()
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._resumed.wait()
                    if live.failure is not None:
                        raise live.failure
                    live.rid = f"{request_id}#{next(self._numbers)}{RID_END}"
                    left = max_new_tokens - len(live.written.ids)
                    body = generate_body([*ids, *live.written.ids], left, stop_ids, sampling.temperature, live.rid)
                    if self.facts.is_seeded:
                        body["sampling_params"]["sampling_seed"] = seed & ((1 << 63) - 1)
                    reply = await self._answer(live, body)
                    finish = live.take(reply, asked=left, versions=self._versions)
                    # The model's own end of text is no stop unless it was asked for: go on behind it.
                    if finish is not StopReason.stop or live.written.ids[-1] in stop_ids:
                        return live.written.result(finish)
                    if len(live.written.ids) == max_new_tokens:
                        return live.written.result(StopReason.length)
        except (TimeoutError, asyncio.CancelledError):
            if live.call is not None:
                self._start(self._abort_surely(live.rid))
            raise
        finally:
            del self._live[request_id]
            if not self._live:
                self._idle.set()

    async def _answer(self, live: LiveRequest, body: dict[str, Any]) -> dict[str, Any]:
        """The server's reply, or the failure with which the request was broken off meanwhile."""
        if live.aborted:  # before it was sent, in a pause
            return {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}}}
        if live.heard is None:
            live.call = asyncio.ensure_future(self.api.generate(body))
        else:
            streamed = self.api.generate_streamed(
                body, live.deliver, gap_s=self._gap_timeout_s, excused=self._may_be_silent
            )
            live.call = asyncio.ensure_future(streamed)
        task = asyncio.current_task()
        assert task is not None
        try:
            return await live.call
        except asyncio.CancelledError:
            if live.failure is not None and not task.cancelling():
                raise live.failure from None
            raise

    def _may_be_silent(self) -> bool:
        """Return True in a publish, or if a queued request may have been running before."""
        return self.paused or self._loads.waiting > 0

    def load(self) -> KvLoad:
        """The load at the last look at the server; requests are those of this engine, counted now."""
        waiting = len(self._live) if self.paused else min(self._loads.waiting, len(self._live))
        return KvLoad(
            total=self._loads.total_tokens,
            used=self._loads.used_tokens,
            running=len(self._live) - waiting,
            waiting=waiting,
        )

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        """Serve `source` as `version`. Requests in flight go on, their later tokens under the new weights.

        ValueError before anything is sent: `version` does not follow, or the source's tensors are not the
        model's. InferenceError after: the server then serves nothing until a publish succeeds.
        """
        from rocstar.engine.inference.sglang.sender import WeightSender

        if source is None:
            raise ValueError("a server shares no weights with us: publish needs a source")
        async with WeightSender([self], backend=self._broadcast, timeout_s=self.update_timeout_s) as sender:
            (failure,) = await sender.send(version, source)
        if failure is not None:
            raise failure

    async def abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.aborted = True
            await self._abort_surely(live.rid)

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        """From the next request on its answers are streamed."""
        self._listeners[request_id] = heard

    def release(self, request_id: str) -> None:
        """The radix cache evicts by itself; only a request still in flight is ended."""
        self._listeners.pop(request_id, None)
        live = self._live.get(request_id)
        if live is not None:
            live.aborted = True
            self._start(self._abort_surely(live.rid))

    # ---- for WeightSender and Replica ----

    def allow(self, version: int) -> None:
        """Tokens of `version` may come from now on. ValueError unless it follows all versions before.

        The present version may be published again to a server that has lost it.
        """
        again = self.broken is not None and version == self.version
        if not (self.version < version < MAX_VERSION or again):
            raise ValueError(f"version {version} does not follow {self.version}")
        self._versions[str(version)] = version

    async def drained(self, timeout_s: float) -> None:
        """Wait until no request is in flight, or until `timeout_s` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    async def wait_broken(self, *kinds: str) -> None:
        """Until the engine breaks for one of these reasons."""
        while True:
            await self._broke.wait()
            if self.broken is not None and self.broken.kind in kinds:
                return
            self._broke.clear()

    def break_off(self, failure: InferenceError) -> None:
        """Fail every request in flight and refuse new ones, until a publish or `serve_as` succeeds."""
        self.broken = failure
        for live in self._live.values():
            live.failure = InferenceError(failure.kind, failure.detail, retryable=failure.retryable)
            if live.call is not None:
                live.call.cancel()

    async def _watch(self) -> None:
        with RunningClock(self._hang_timeout_s / 8) as clock:  # leaves out time in which our loop was blocked
            moved = clock.time()
            while True:
                await asyncio.sleep(self._watch_every_s)
                # Observations of a server that is down do not apply to the one that replaces it.
                served, url = self.broken is None, self.api.url
                try:
                    loads = await self.api.loads()
                except InferenceError as error:
                    same = served and self.broken is None and url == self.api.url
                    if same and error.kind in ("replica_lost", "replica_hung"):
                        self.break_off(error)
                    continue
                # A paused scheduler, too, leaves its snapshot as it is; only a hung one is a failure.
                if loads.taken_at > self._loads.taken_at or self.paused or not self._live or not served:
                    moved = clock.time()
                elif clock.time() - moved > self._hang_timeout_s and self.broken is None:
                    detail = f"{self.api.url}: the scheduler stood still for {self._hang_timeout_s} s"
                    self.break_off(InferenceError("replica_hung", detail, retryable=True))
                self._loads = loads

    async def _abort_surely(self, rid: str) -> None:
        """A request that reached the server in a pause waits where no abort finds it: abort once more."""
        if not rid:
            return
        try:
            paused = self.paused
            await self.api.abort(rid)
            if paused:
                self._start(self._abort_after_pause(rid))
        except InferenceError as error:
            LOG.info("could not abort %s: %s", rid, error)

    async def _abort_after_pause(self, rid: str) -> None:
        await self._resumed.wait()
        await self._abort_surely(rid)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


BEYOND_INPUT = 4
"""How much longer than its longest input a request may become (docs/reference/sglang.md)."""
GAP_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """max_length: of ids and new tokens together, what context and KV pool hold: the server would clip
    silently. is_seeded: it takes the seed of a request's noise."""

    tp_size: int = 1
    max_length: int = 0
    is_seeded: bool = False


async def examine(api: Api) -> ServerFacts:
    """InferenceError(unfit) names what to change."""
    info = await api.get("/server_info")
    if "max_req_input_len" not in info or "tp_size" not in info:
        raise _unfit(f"{api.url} is no SGLang server of 0.5", "see docs/reference/sglang.md for the version")
    if info.get("preferred_sampling_params"):
        raise _unfit("it has sampling parameters of its own", "leave out --preferred-sampling-params")
    await _check_logprobs(api)
    return ServerFacts(
        tp_size=int(info["tp_size"]),
        max_length=int(info["max_req_input_len"]) + BEYOND_INPUT,
        is_seeded=bool(info.get("enable_deterministic_inference")),
    )


async def _check_logprobs(api: Api) -> None:
    """Check that the gap between the two likeliest tokens at T = 0.5 is twice that at T = 1 (contract 1)."""
    gaps = []
    for temperature in (1.0, 0.5):
        body = generate_body([1], 1, frozenset(), temperature, "rocstar-check")
        try:
            async with asyncio.timeout(api.timeout_s):
                reply = await api.generate(body | {"top_logprobs_num": 2})
        except TimeoutError:
            detail = f"{api.url}: no token within {api.timeout_s} s"
            raise InferenceError("replica_hung", detail, retryable=True) from None
        (first, second) = reply["meta_info"]["output_top_logprobs"][0]
        gaps.append(first[0] - second[0])
    if abs(gaps[1] - 2 * gaps[0]) > GAP_TOLERANCE * max(1.0, gaps[1]):
        raise _unfit("its log-probs are not log_softmax(logits / T)", "unset SGLANG_RETURN_ORIGINAL_LOGPROB for it")


def _unfit(why: str, fix: str) -> InferenceError:
    return InferenceError("unfit", f"this server cannot be used: {why}; {fix}", retryable=False)
