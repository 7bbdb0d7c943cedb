"""Inference inside this process: batched decoding over a Hugging Face causal LM, weights shared.

    generate -> inbox -> [device thread: admit, one mixed prefill-and-decode forward, sample] -> future
    score    -> inbox -> [device thread: a chunk of the text between two of these forwards] -> future

`generate` waits for its tokens; a request waits for a free slot. A learner in the same thread alternates with
decoding. A learner in another thread calls `hold` and `quiesce` before it changes the weights. A slot belongs
to a trajectory from its first request until `release`: its KV stays between turns, and the next turn only
computes the tool's tokens. Siblings copy the KV of the first one's prompt, a branch its parent's up to the fork.

In lockstep, decoding waits while a trajectory that joined has no request, that is, while its tool or judge
works. The rows that share a forward then do not depend on timing, so equal weights give equal bits; the price
is that a slow tool delays all trajectories.

On a CPU in float32 a forward also takes drafts of a row's next tokens (drafts.py), and may sample several.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rocstar.engine.inference.base import (
    Generation,
    Heard,
    InferenceError,
    KvLoad,
    PromptScores,
    Sampling,
    StopReason,
    check_request,
)
from rocstar.engine.inference.embedded import attention
from rocstar.engine.inference.embedded.decoder import forward_of, is_native
from rocstar.engine.inference.embedded.drafts import Drafts, ForwardTime
from rocstar.engine.inference.embedded.graphs import SCRATCH_TOKENS
from rocstar.engine.inference.embedded.kv import (
    KV_SHARE,
    OUT_OF_MEMORY,
    TOKEN_GROWTH,
    Extra,
    SlotKv,
    free_bytes,
    kv_capacity,
)
from rocstar.engine.inference.embedded.rows import DecodeRequest, Done, News, Row, end_wait, tell
from rocstar.engine.inference.embedded.sampling import noise, sample
from rocstar.engine.inference.embedded.scoring import ScoreRequest
from rocstar.engine.inference.embedded.slots import Slots
from rocstar.engine.inference.weights import WeightSource

LOG = logging.getLogger(__name__)
T = TypeVar("T")
MAX_LOGITS = 1 << 25
"""Logits of one forward of a text that is scored: 128 MiB in float32."""
BURST = 16
"""Forwards in the device thread before the event loop is asked again, unless a row ends earlier."""


class EmbeddedEngine:
    """Continuous batching with one slot per trajectory.

    Invariants: KV that is read was computed under the present weights; no forward takes more than
    `prefill_tokens` tokens besides a decoding row's last one and its drafts; sampling noise depends on (seed,
    position) only, never on the batch.

    Capacity: `kv_tokens` bounds rows * tokens of the longest row (None: `kv_share` of the device's free
    memory, by `kv_capacity`). A request that exceeds it alone is refused. Memory is taken as rows come and
    grow. If rows exceed the capacity, or memory runs out, the youngest are evicted: their requests wait, and
    their KV is computed again.
    """

    version = 0
    busy_s = 0.0
    """Seconds the device thread has spent decoding."""
    starved_s = 0.0
    """... while a request waited for a slot."""
    rows_evicted = 0
    """Rows whose KV gave way to that of others."""
    out_of_memory = 0
    """How often memory ran out."""
    _failures = 0
    """How often in a row, without a forward in between."""
    _attempted = 0
    """Rows that the present step is to run."""
    _holds = 0
    _num_joined = 0
    _error: Exception | None = None
    _stopped: str | None = "the engine has not been entered"

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_running: int,
        thread: ThreadPoolExecutor,
        kv_tokens: int | None = None,
        kv_share: float = KV_SHARE,
        prefill_tokens: int = 2048,
        lockstep: bool = False,
        head_dtype: torch.dtype | None = None,
        drafts: int = 0,
    ) -> None:
        """head_dtype: of the logits (`forward_of`). drafts: most of a row in a forward, on a CPU in float32."""
        config = model.config
        attention.install(model)
        parameter = next(model.parameters())
        attention.choose_attention_backends(parameter.device)
        self._model, self._thread = model, thread
        # Not in lockstep, tools run beside every forward, and a thread that shares its core holds up all.
        self._forward = forward_of(model, spare_threads=0 if lockstep else 1, head_dtype=head_dtype)
        self._vocab_size: int = config.vocab_size
        self._model_length: int = config.max_position_embeddings
        self._prefill_tokens = prefill_tokens
        self._device = parameter.device
        self._kv_tokens, self._kv_share = kv_tokens, kv_share
        self._kv_shape = {
            "num_layers": config.num_hidden_layers,
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "dtype": parameter.dtype,
        }
        self._max_running = self._max_rows = max_running
        """The row limit: lower than `max_running` from an out-of-memory until the next publish."""
        self._kv = SlotKv(**self._kv_shape, device=self._device, capacity=self._capacity())
        self._reading = threading.Lock()
        """Held by the device thread for as long as a burst reads the weights."""
        self._slots = Slots(self._kv, max_running)
        # Where torch multiplies, bits depend on the number of tokens; in lockstep they may not.
        may_draft = self._kv.is_native and (not lockstep or is_native(model))
        self._drafts = Drafts(drafts, ForwardTime.of(model)) if drafts and may_draft else None
        self._waiting: deque[DecodeRequest] = deque()
        self._inbox: deque[DecodeRequest | ScoreRequest | tuple[str, str]] = deque()
        self._scores: deque[ScoreRequest] = deque()
        """Texts to be scored; only the first has keys and values, so that one text's are held at a time."""
        self._lockstep = lockstep
        self._joined: dict[str, tuple[int, str]] = {}
        """Trajectories in lockstep, by the order in which they joined: a branch by its root's, and its name."""
        self._absent: set[str] = set()
        """Those of them that have no request now; while there is one, no forward runs."""
        self._pending: dict[str, DecodeRequest | ScoreRequest] = {}
        """Every request with a waiter, by trajectory; only the event loop uses it."""
        self._granting: dict[str, Callable[[], None]] = {}
        """Callbacks for a trajectory's first slot."""
        self._listeners: dict[str, Heard] = {}
        """Callbacks for a trajectory's tokens as they arrive."""
        self._parents: dict[str, str] = {}
        """The trajectory whose KV a branch begins with."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EmbeddedEngine:
        self._stopped = None
        self._task = asyncio.create_task(self._run(), name="embedded-engine")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self._stop(self._stopped or "the engine was left")
        if error is None and self._error is not None:
            raise self._error

    # ---- the protocol, on the event loop ----

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
        self._check(ids, max_new_tokens, seed, request_id)
        request = DecodeRequest(
            row_id=request_id,
            ids=list(ids),
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            temperature=sampling.temperature,
            seed=seed,
            future=asyncio.get_running_loop().create_future(),
            granted=self._granting.pop(request_id, None),
            heard=self._listeners.get(request_id),
            parent=self._parents.get(request_id),
        )
        return await self._answered(request, request.future, deadline)

    async def score(
        self, ids: list[int], *, sampling: Sampling, request_id: str, deadline: float | None
    ) -> PromptScores:
        """Score `ids`, between the forwards of decoding, with keys and values of their own."""
        self._check(ids, 1, 0, request_id)
        future: asyncio.Future[PromptScores] = asyncio.get_running_loop().create_future()
        request = ScoreRequest(
            row_id=request_id, ids=list(ids), temperature=sampling.temperature, device=self._device, future=future
        )
        return await self._answered(request, future, deadline)

    async def _answered(
        self, request: DecodeRequest | ScoreRequest, future: asyncio.Future[T], deadline: float | None
    ) -> T:
        """Return the request's result; cancelling the wait ends the request."""
        self._pending[request.row_id] = request
        self._inbox.append(request)
        self._wake.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except (TimeoutError, asyncio.CancelledError):
            await self.abort(request.row_id)
            raise
        finally:
            del self._pending[request.row_id]

    def _check(self, ids: list[int], max_new_tokens: int, seed: int, request_id: str) -> None:
        if self._stopped is not None:
            raise InferenceError("engine_stopped", self._stopped, retryable=False)
        check_request(
            ids,
            max_new_tokens,
            seed,
            request_id=request_id,
            live=self._pending,
            vocab_size=self._vocab_size,
            max_length=min(self._model_length, self._kv.capacity),
        )

    def load(self) -> KvLoad:
        return KvLoad(
            total=self._kv.capacity,
            used=self._slots.num_tokens(),
            held_bytes=self._kv.held_bytes,
            running=self._slots.num_active,
            # A copy: the device thread changes the inbox meanwhile.
            waiting=len(self._waiting) + sum(isinstance(item, DecodeRequest) for item in self._inbox.copy()),
        )

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        """Serve the model's present weights as `version`; `source` is copied into the model first.

        ValueError unless `version` is above the one served now.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load_weights, version, source)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """No burst begins inside the block: for an update of shared weights until they are published.

        Without it a forward between the two would mix new weights with the KV and the version of the old. May
        be entered in the learner's thread, which then calls `quiesce`; left on the event loop.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._wake.set()

    def quiesce(self) -> None:
        """Inside `hold`, off the event loop: return when no forward reads the weights.

        On a GPU the cache's memory is free then: its contents are lost with the next publish anyway.
        """
        with self._reading:
            if self._device.type == "cuda":
                self._give_back()

    async def rest(self) -> None:
        """Before an update: free the cache's memory on a GPU if no row decodes."""
        if self._device.type == "cuda":
            await asyncio.get_running_loop().run_in_executor(self._thread, self._free_idle_cache)

    async def abort(self, request_id: str) -> None:
        if isinstance(scored := self._pending.get(request_id), ScoreRequest):
            aborted = InferenceError("aborted", f"{request_id!r} was aborted", retryable=True)
            end_wait(scored.future, aborted)
        self._inbox.append(("abort", request_id))
        self._wake.set()

    def join(self, request_ids: Sequence[str]) -> None:
        if self._lockstep:
            self._inbox.extend(("join", request_id) for request_id in request_ids)

    def branch(self, request_id: str, branches: Sequence[str]) -> None:
        for name in branches:
            self._parents[name] = request_id
        self.join(branches)

    def on_grant(self, request_id: str, granted: Callable[[], None]) -> None:
        self._granting[request_id] = granted

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        self._listeners[request_id] = heard

    def release(self, request_id: str) -> None:
        self._granting.pop(request_id, None)
        self._listeners.pop(request_id, None)
        self._parents.pop(request_id, None)
        self._inbox.append(("release", request_id))
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                busy = True
                while busy:
                    for request, finish in await loop.run_in_executor(self._thread, self._burst):
                        end_wait(request.future, request.result(finish))
                    # Without a row that may decode, only a request or a release helps, and both wake us.
                    is_running = bool(self._slots.num_active or self._failures) and not self._absent
                    busy = bool(self._inbox or self._scores or is_running)
                    busy = busy and not self._holds
        except Exception as error:  # no caller awaits this task: every waiter and __aexit__ get the crash
            self._error = error
            self._stop(repr(error))

    def _stop(self, why: str) -> None:
        """Refuse requests from now on, and fail those that wait."""
        self._stopped = why
        for request in self._pending.values():
            end_wait(request.future, InferenceError("engine_stopped", why, retryable=False))

    # ---- below: the device thread only ----

    def _load_weights(self, version: int, source: WeightSource | None) -> None:
        if version <= self.version:
            raise ValueError(f"version {version} does not follow {self.version}")
        if source is not None:
            own = dict(self._model.named_parameters())
            with torch.no_grad():
                for name in source.shapes():
                    own[name].copy_(source.tensor(name))
        self.version = version
        self._max_rows = self._max_running
        self._slots.forget_kv()
        for request in self._scores:
            request.restart()

    def _burst(self) -> Done:
        started = time.perf_counter()
        with self._reading:
            done = self._forwards()
        elapsed_s = time.perf_counter() - started
        self.busy_s += elapsed_s
        self.starved_s += elapsed_s if self._waiting else 0.0
        return done

    @torch.inference_mode()
    def _forwards(self) -> Done:
        done: Done = []
        for _ in range(BURST):
            if self._holds:
                break
            done += self._read_inbox()
            failure = ""
            try:
                self._score()
                if self._absent:
                    break
                self._admit()
                if not self._slots.num_active:
                    break
                done += self._step()
            except OUT_OF_MEMORY as error:
                failure = str(error) or type(error).__name__  # not the error: its frames hold tensors
            if failure:
                self._recover(failure)
            if done:
                break
        return done

    def _read_inbox(self) -> Done:
        done: Done = []
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, DecodeRequest):
                self._waiting.append(item)
                self._absent.discard(item.row_id)
                continue
            if isinstance(item, ScoreRequest):
                self._scores.append(item)
                continue
            verb, row_id = item
            if verb == "join":
                if (parent := self._parents.get(row_id)) is None:
                    self._num_joined += 1
                    self._joined[row_id] = self._num_joined, ""
                else:  # not in the order of the forks, which is timing
                    self._joined[row_id] = self._joined.get(parent, (0, ""))[0], row_id
                self._absent.add(row_id)
                continue
            if self._scores:
                self._scores = deque(r for r in self._scores if r.row_id != row_id)
            row = self._slots.rows.get(row_id)
            stopped = [r for r in self._waiting if r.row_id == row_id]
            for request in stopped:
                self._waiting.remove(request)
            if row is not None and row.request is not None:
                stopped.append(row.request)
                self._slots.stop(row)
            done += [(request, StopReason.aborted) for request in stopped]
            if verb == "release":
                self._joined.pop(row_id, None)
                self._absent.discard(row_id)
            elif stopped and row_id in self._joined:
                self._absent.add(row_id)
            if row is not None and verb == "release":
                self._slots.release(row)
        return done

    def _score(self) -> None:
        """One forward for the text that is being scored."""
        if not self._scores:
            return
        request, failure = self._scores[0], ""
        loop = request.future.get_loop()
        num_tokens = max(1, min(self._prefill_tokens, MAX_LOGITS // self._vocab_size))
        try:
            if request.advance(self._forward, num_tokens):
                self._scores.popleft()
                loop.call_soon_threadsafe(end_wait, request.future, request.scores())
        except OUT_OF_MEMORY as error:
            failure = str(error) or type(error).__name__
        if failure:
            self.out_of_memory += 1
            self._give_back()
            request.restart()
            request.num_failures += 1
            if request.num_failures > 1:
                self._scores.popleft()
                unfit = _does_not_fit(len(request.ids), failure)
                loop.call_soon_threadsafe(end_wait, request.future, unfit)

    def _admit(self) -> None:
        """Give waiting requests a slot while slots and the prefill budget last."""
        if not self._waiting:
            return
        if self._joined:  # not in the order of arrival, which is timing
            self._waiting = deque(sorted(self._waiting, key=lambda r: self._joined.get(r.row_id, (0, ""))))
        self._widen()
        budget = self._prefill_tokens
        for request in list(self._waiting):
            if budget <= 0:
                break
            if self._slots.start(request):
                self._waiting.remove(request)  # only now: `start` may run out of memory
                if request.granted is not None:
                    request.future.get_loop().call_soon_threadsafe(request.granted)
                budget -= len(request.ids) - request.cached_tokens

    def _widen(self) -> None:
        """Let the cache hold as many of the waiting requests' rows as fit, in their order."""
        rows, longest = self._slots.rows, self._slots.longest()
        count = len(rows)
        for request in self._waiting:
            tokens = max(longest, len(request.ids))
            if request.row_id not in rows:
                # Room to grow: a row that is evicted at once was computed for nothing.
                most = min(self._model_length, tokens + tokens // TOKEN_GROWTH)
                if count and (count >= self._max_rows or (count + 1) * most > self._kv.capacity):
                    break
                count += 1
            longest = tokens
        self._slots.limit = self._attempted = count
        self._make_room(count, longest)

    def _make_room(self, num_rows: int, num_tokens: int) -> None:
        """Let the cache hold that many rows, those that are here among them, of that many tokens each."""
        if not self._kv.is_native:
            num_tokens += SCRATCH_TOKENS
        if num_rows > self._kv.num_slots or num_tokens > self._kv.tokens_per_slot:
            self._slots.compact()
            self._kv.reserve(num_rows, num_tokens)

    def _fit(self) -> None:
        """Evict the youngest rows while all together exceed the capacity; let the cache hold the others."""
        rows, longest = self._slots.rows, self._slots.longest()
        while len(rows) > 1 and len(rows) * longest > self._kv.capacity:
            self._evict_youngest()
            longest = self._slots.longest()
        self._attempted = len(rows)
        self._make_room(len(rows), longest)

    def _evict_youngest(self) -> None:
        row = self._slots.youngest()
        assert row is not None
        self.rows_evicted += 1
        if (request := self._slots.evict(row)) is not None:
            self._waiting.appendleft(request)

    def _recover(self, failure: str) -> None:
        """Memory ran out: go on with an empty cache and fewer rows. One row that fails again ends alone."""
        self.out_of_memory += 1
        self._failures += 1
        self._give_back()
        if self._attempted <= 1 and self._failures > 1:
            self._fail_first(failure)
            return
        self._max_rows = max(1, self._attempted * 3 // 4)
        if self.out_of_memory == 1:
            LOG.warning(
                f"memory ran out with {self._attempted} rows in the embedded engine ({failure}); at most "
                f"{self._max_rows} run at once until the next weights. Set engine.max_running to that, or "
                "shorten the responses"
            )
        while len(self._slots.rows) > self._max_rows:
            self._evict_youngest()

    def _fail_first(self, failure: str) -> None:
        """End the request whose row does not fit alone."""
        self._failures = 0
        row = self._slots.youngest()
        request = self._waiting.popleft() if row is None else self._slots.evict(row)
        if request is None:
            return
        unfit = _does_not_fit(len(request.ids), failure)
        request.future.get_loop().call_soon_threadsafe(end_wait, request.future, unfit)
        if request.row_id in self._joined:
            self._absent.add(request.row_id)

    def _give_back(self) -> None:
        """Free the cache's memory; its contents are recomputed when needed."""
        self._kv.give_back()
        self._slots.forget_kv()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._kv.capacity = self._capacity()

    def _free_idle_cache(self) -> None:
        with self._reading:
            if not self._slots.num_active:
                self._give_back()

    def _capacity(self) -> int:
        """Tokens that all slots together may have now; the cache holds no memory."""
        most = self._kv_tokens
        if most is None:
            most = kv_capacity(**self._kv_shape, free_bytes=free_bytes(self._device), share=self._kv_share)
        return min(self._max_running * self._model_length, most)

    def _step(self) -> Done:
        """One forward: every active row's last token, preceded by whatever of it is not cached.

        If that is more than one forward may take, it is one of prompts alone: after a publish every row's KV
        is missing, and a long prompt's may be. No row decodes meanwhile.
        """
        self._fit()
        extras = self._slots.take_extras(self._prefill_tokens + 1)
        if sum(extra.end - extra.start for extra in extras) > self._prefill_tokens:
            self._logits([], self._slots.take_extras(self._prefill_tokens))
            return []
        rows = self._slots.active()
        drafts = self._drafts.propose(rows, self._kv.tokens_per_slot) if self._drafts else []
        logits_NV = self._logits(rows, extras, drafts)
        requests = [row.request for row in rows if row.request is not None]
        asked_N, positions_N = requests, [len(row.ids) for row in rows]
        if drafts:
            asked_N = [r for r, draft in zip(requests, drafts, strict=True) for _ in range(len(draft) + 1)]
            positions_N = [p + k for p, draft in zip(positions_N, drafts, strict=True) for k in range(len(draft) + 1)]
        noise_N = noise([r.seed for r in asked_N], positions_N)
        sampled, logprobs = sample(logits_NV, [r.temperature for r in asked_N], noise_N)
        self._failures = 0
        ended, news, end = [], News(), 0
        for row, request, draft in zip(rows, requests, drafts or itertools.repeat(()), strict=False):
            n, end = end, end + len(draft) + 1
            for drafted in (*draft, None):
                token, logprob = sampled[n], logprobs[n]
                n += 1
                row.cached = len(row.ids)
                row.ids.append(token)
                finish = request.add(token, logprob, self.version)
                if request.heard is not None:
                    news.append((request.heard, len(request.new_ids) - 1, token, logprob))
                if finish is not None:
                    ended.append((row, request, finish))
                if finish is not None or token != drafted:  # the logits behind are those of another text
                    break
        if news:
            requests[0].future.get_loop().call_soon_threadsafe(tell, news)
        for row, _, _ in ended:  # behind all of `cached`: a row that moves takes as many tokens along
            if self._drafts:
                self._drafts.learn(row)
            self._slots.stop(row)
            if row.row_id in self._joined:
                self._absent.add(row.row_id)
        return [(request, finish) for _, request, finish in ended]

    def _logits(self, rows: Sequence[Row], extras: Sequence[Extra], drafts: Sequence[Sequence[int]] = ()) -> Tensor:
        """The logits of each row's last token and of its drafts. The extras enter the cache and count as cached.

        drafts: of each row; empty: there are none.
        """
        tokens = [row.ids[-1] for row in rows]
        positions_N, slots_N = [len(row.ids) - 1 for row in rows], [row.slot for row in rows]
        if drafts:
            tokens = [token for last, draft in zip(tokens, drafts, strict=True) for token in (last, *draft)]
            positions_N = [p + k for p, draft in zip(positions_N, drafts, strict=True) for k in range(len(draft) + 1)]
            slots_N = [slot for slot, draft in zip(slots_N, drafts, strict=True) for _ in range(len(draft) + 1)]
        for extra in extras:
            row = self._slots.row_in(extra.slot)
            tokens += row.ids[extra.start : extra.end]
            row.cached = extra.end
        positions_T, plan = self._kv.plan(positions_N, extras, slots_N)
        ids_T = torch.tensor(tokens, device=self._device)
        return self._forward(ids_T, positions_T, plan, len(slots_N))


def _does_not_fit(num_tokens: int, failure: str) -> InferenceError:
    detail = f"a row of {num_tokens} tokens does not fit alone into the memory that is free ({failure})"
    return InferenceError("out_of_memory", detail, retryable=True)
