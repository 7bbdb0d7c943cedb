"""Inference inside this process: batched decoding over a Hugging Face causal LM, weights shared.

    generate -> inbox -> [device thread: admit, one mixed prefill-and-decode forward, sample] -> future

Who waits: `generate` waits for its tokens; a request waits for a free slot. The device thread is shared
with the learner, so decoding pauses while the learner steps and neither sees half-written weights.
A slot belongs to a trajectory from its first request until `release`: between turns its KV stays, and the
next turn only pays for the tool's tokens. Siblings copy the KV of the first one's prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rocstar.engine.inference import attention
from rocstar.engine.inference.base import Generation, InferenceError, KvLoad, Sampling, StopReason
from rocstar.engine.inference.kv import Extra, SlotKv
from rocstar.engine.seeds import uniforms

BURST = 16
"""Forwards in the device thread before the event loop is asked again, unless a row ends earlier."""


@dataclass(slots=True, kw_only=True)
class _Request:
    """A `generate` call on its way: tokens so far, and the future that waits for them."""

    row_id: str
    ids: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    temperature: float
    seed: int
    future: asyncio.Future[Generation]
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    cached_tokens: int = 0

    def add(self, token: int, logprob: float, version: int) -> StopReason | None:
        at = len(self.new_ids)
        self.new_ids.append(token)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1][2] == version:
            self.spans[-1][1] = at + 1
        else:
            self.spans.append([at, at + 1, version])
        if token in self.stop_ids:
            return StopReason.stop
        return StopReason.length if len(self.new_ids) >= self.max_new_tokens else None

    def result(self, finish: StopReason) -> Generation:
        return Generation(
            ids=tuple(self.new_ids),
            logprobs=tuple(self.logprobs),
            version_spans=tuple((a, b, v) for a, b, v in self.spans),
            finish=finish,
            cached_tokens=self.cached_tokens,
        )


@dataclass(slots=True, kw_only=True)
class _Row:
    """A slot's owner. `cached` of its `ids` are in the KV cache; `request` is set while it decodes."""

    row_id: str
    slot: int
    ids: list[int]
    cached: int = 0
    request: _Request | None = None


_Done = list[tuple[_Request, StopReason]]


class EmbeddedEngine:
    """Continuous batching with one slot per trajectory.

    Invariants: slots [0, num_active) decode and are dense; a row's KV is exactly that of its ids[:cached]
    under the present weights; sampling noise depends on (seed, position) only, never on the batch.
    """

    def __init__(
        self, model: PreTrainedModel, *, max_running: int, thread: ThreadPoolExecutor, prefill_tokens: int = 8192
    ) -> None:
        config = model.config
        attention.install(model)
        self._model, self._thread = model, thread
        self._vocab_size: int = config.vocab_size
        self._max_length: int = config.max_position_embeddings
        self._prefill_tokens = prefill_tokens
        parameter = next(model.parameters())
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._kv = SlotKv(
            num_layers=config.num_hidden_layers,
            num_slots=max_running,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            dtype=parameter.dtype,
            device=parameter.device,
        )
        self._device = parameter.device
        self.version = 0
        self.busy_s = 0.0
        """Seconds the device thread has spent decoding."""
        self._rows: dict[str, _Row] = {}
        self._slots: list[_Row | None] = [None] * max_running
        self._num_active = 0
        self._waiting: deque[_Request] = deque()
        self._inbox: deque[_Request | tuple[str, str]] = deque()
        self._donors: dict[tuple[int, ...], _Row] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> EmbeddedEngine:
        self._task = asyncio.create_task(self._run(), name="embedded-engine")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
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
        self._check(ids, max_new_tokens)
        request = _Request(
            row_id=request_id,
            ids=list(ids),
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            temperature=sampling.temperature,
            seed=seed,
            future=asyncio.get_running_loop().create_future(),
        )
        self._inbox.append(request)
        self._wake.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await request.future
        except (TimeoutError, asyncio.CancelledError):
            await self.abort(request_id)
            raise

    def _check(self, ids: list[int], max_new_tokens: int) -> None:
        if self._error is not None:
            raise InferenceError("engine_stopped", str(self._error), retryable=False)
        if not ids or max_new_tokens < 1:
            raise InferenceError("bad_request", f"{len(ids)} ids, {max_new_tokens} new tokens", retryable=False)
        if len(ids) + max_new_tokens > self._max_length:
            detail = f"{len(ids)} + {max_new_tokens} tokens exceed the model's {self._max_length}"
            raise InferenceError("too_long", detail, retryable=False)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InferenceError("bad_token", f"an id lies outside [0, {self._vocab_size})", retryable=False)

    def load(self) -> KvLoad:
        return KvLoad(
            total=self._kv.num_slots * self._max_length,
            used=sum(len(row.ids) for row in self._rows.values()),
            running=self._num_active,
            waiting=len(self._waiting) + len(self._inbox),
        )

    async def publish(self, version: int, source: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Serve the model's present weights as `version`; `source` is copied into the model first."""
        if version <= self.version and version != 0:
            raise ValueError(f"version {version} does not follow {self.version}")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._load_weights, version, source)

    async def abort(self, request_id: str) -> None:
        self._inbox.append(("abort", request_id))
        self._wake.set()

    def release(self, request_id: str) -> None:
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
                        if not request.future.done():
                            request.future.set_result(request.result(finish))
                    # With no row decoding, a waiting request can only go on after a release, which wakes us.
                    busy = bool(self._inbox or self._num_active)
        except Exception as error:  # the task is nobody's child: hand the crash to every waiter and to __aexit__
            self._error = error
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        held = [row.request for row in self._rows.values() if row.request]
        queued = [item for item in self._inbox if isinstance(item, _Request)]
        for request in [*held, *self._waiting, *queued]:
            if not request.future.done():
                request.future.set_exception(InferenceError("engine_stopped", repr(error), retryable=False))

    # ---- below: the device thread only ----

    def _load_weights(self, version: int, source: Iterable[tuple[str, Tensor]] | None) -> None:
        if source is not None:
            own = dict(self._model.named_parameters())
            with torch.no_grad():
                for name, value in source:
                    own[name].copy_(value)
        self.version = version
        self._donors.clear()
        for row in self._rows.values():
            row.cached = 0

    @torch.inference_mode()
    def _burst(self) -> _Done:
        started = time.perf_counter()
        done: _Done = []
        for _ in range(BURST):
            done += self._read_inbox()
            self._admit()
            if not self._num_active:
                break
            done += self._step()
            if done:
                break
        self.busy_s += time.perf_counter() - started
        return done

    def _read_inbox(self) -> _Done:
        done: _Done = []
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, _Request):
                self._waiting.append(item)
                continue
            verb, row_id = item
            row = self._rows.get(row_id)
            stopped = [r for r in self._waiting if r.row_id == row_id]
            for request in stopped:
                self._waiting.remove(request)
            if row is not None and row.request is not None:
                stopped.append(row.request)
                self._deactivate(row)
            done += [(request, StopReason.aborted) for request in stopped]
            if row is not None and verb == "release":
                self._slots[row.slot] = None
                del self._rows[row_id]
        return done

    def _admit(self) -> None:
        """Give waiting requests a slot while slots and the prefill budget last."""
        budget = self._prefill_tokens
        deferred: list[_Request] = []
        while self._waiting and budget > 0:
            request = self._waiting.popleft()
            row = self._rows.get(request.row_id)
            if row is None:
                slot = next((s for s in range(self._num_active, len(self._slots)) if self._slots[s] is None), None)
                if slot is None:
                    deferred.append(request)
                    continue
                row = _Row(row_id=request.row_id, slot=slot, ids=[])
                if not self._share_prompt(row, request):
                    deferred.append(request)
                    continue
                self._slots[slot] = row
                self._rows[request.row_id] = row
            elif row.ids[: row.cached] != request.ids[: row.cached]:
                row.cached = 0
            row.cached = min(row.cached, len(request.ids) - 1)
            row.ids, row.request = request.ids, request
            request.cached_tokens = row.cached
            budget -= len(row.ids) - row.cached
            self._activate(row)
        self._waiting.extendleft(reversed(deferred))

    def _share_prompt(self, row: _Row, request: _Request) -> bool:
        """Copy a sibling's KV of the same prompt. False: it is being computed now, so wait one forward."""
        prefix = tuple(request.ids[:-1])
        donor = self._donors.get(prefix)
        if donor is None or self._slots[donor.slot] is not donor or tuple(donor.ids[: len(prefix)]) != prefix:
            self._donors[prefix] = row
            return True
        if donor.cached < len(prefix):
            if donor.request is not None:
                return False
            self._donors[prefix] = row
            return True
        self._kv.copy(donor.slot, row.slot, len(prefix))
        row.cached = len(prefix)
        return True

    def _activate(self, row: _Row) -> None:
        self._move(row, self._num_active)
        self._num_active += 1

    def _deactivate(self, row: _Row) -> None:
        row.request = None
        self._num_active -= 1
        self._move(row, self._num_active)

    def _move(self, row: _Row, slot: int) -> None:
        """Exchange the row with whatever lies in `slot`."""
        other, old = self._slots[slot], row.slot
        if other is row:
            return
        depth = max(row.cached, other.cached if other else 0)
        self._kv.swap(old, slot, depth)
        self._slots[slot], self._slots[old] = row, other
        row.slot = slot
        if other is not None:
            other.slot = old

    def _step(self) -> _Done:
        """One forward: every active row's last token, preceded by whatever of it is not cached."""
        rows = [row for row in self._slots[: self._num_active] if row is not None]
        extras = [
            Extra(slot=row.slot, start=row.cached, end=len(row.ids) - 1) for row in rows if row.cached < len(row.ids) - 1
        ]
        tokens = [row.ids[-1] for row in rows]
        for extra in extras:
            tokens += rows[extra.slot].ids[extra.start : extra.end]
        positions_T, plan = self._kv.plan([len(row.ids) - 1 for row in rows], extras)
        ids_T = torch.tensor(tokens, device=self._device)
        keep = torch.arange(len(rows), device=self._device)
        arguments: dict[str, Any] = {"use_cache": False, "logits_to_keep": keep, "attention": plan}
        logits_NV = self._model(input_ids=ids_T[None], position_ids=positions_T[None], **arguments).logits[0]
        sampled, logprobs = sample(logits_NV, rows_of(rows))
        for row in rows:  # all of them before any row moves: a move copies `cached` tokens
            row.cached = len(row.ids)
        done: _Done = []
        for row, token, logprob in zip(rows, sampled, logprobs, strict=True):
            assert row.request is not None
            row.ids.append(token)
            finish = row.request.add(token, logprob, self.version)
            if finish is not None:
                done.append((row.request, finish))
                self._deactivate(row)
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRows:
    """Per row: temperature, and the uniform number its next token is drawn with."""

    temperatures: list[float]
    uniforms: np.ndarray[Any, np.dtype[np.float64]]


def rows_of(rows: list[_Row]) -> NoiseRows:
    seeds = np.array([row.request.seed for row in rows if row.request], dtype=np.uint64)
    positions = np.array([len(row.ids) for row in rows], dtype=np.uint64)
    temperatures = [row.request.temperature for row in rows if row.request]
    return NoiseRows(temperatures=temperatures, uniforms=uniforms(seeds, positions))


def sample(logits_NV: Tensor, noise: NoiseRows) -> tuple[list[int], list[float]]:
    """Tokens by inverse CDF of one uniform each, and fp32 log_softmax(logits / T) at them.

    Temperature 0 is greedy; its log-probs are those of T = 1. A token of probability 0 is never drawn.
    """
    temperatures = torch.tensor(noise.temperatures, device=logits_NV.device)[:, None]
    greedy = temperatures == 0
    logprobs_NV = torch.log_softmax(logits_NV.float() / torch.where(greedy, 1.0, temperatures), dim=-1)
    cdf_NV = logprobs_NV.exp().cumsum(-1)
    target = torch.from_numpy(noise.uniforms).to(cdf_NV)[:, None] * cdf_NV[:, -1:]
    drawn = torch.searchsorted(cdf_NV, target, right=True)[:, 0]
    # Rounding can push the target onto the last entry of the CDF: step back to a token that has mass.
    last = cdf_NV.shape[-1] - 1 - logprobs_NV.flip(-1).isfinite().int().argmax(-1)
    tokens = torch.where(greedy[:, 0], logprobs_NV.argmax(-1), torch.minimum(drawn, last))
    return tokens.tolist(), logprobs_NV.gather(-1, tokens[:, None])[:, 0].tolist()
