"""One replica: continuous batching with chunked prefill, prefix reuse, and retraction when its pool is full.

    grant -> waiting -> [admit] -> prefill forward(s) -> running: decode segments -> turn ended
                ^                                              |
                └──────────── retracted: pool full ────────────┘

A decode segment is as many steps as nothing can happen in: until the first request ends, the pool is full, or
a grant arrives that might be admitted. Its duration is a closed form, so events do not grow with tokens.
Every decision is taken at a boundary between forwards, prefill before decode, as SGLang's loop does.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from rocstar.engine.sim.cost import ReplicaModel, pairs
from rocstar.engine.sim.kv import Hold, KvPool, Prompt

INIT_RATIO, MIN_RATIO, RATIO_STEPS, RETRACT_STEPS = 0.7, 0.14, 600, 20
"""SGLang's new-token ratio: start, floor as a share of it, steps of decay; look-ahead after a retraction."""


@dataclass(slots=True, eq=False)
class TurnRequest:
    """A granted turn. `context` = tokens before it; `produced` holds until it joins the running batch."""

    seat: int
    hold: Hold
    context: int
    new_tokens: int
    limit: int
    """Tokens it may write at most, as it was asked."""
    produced: int = 0
    done: int = 0
    """Tokens whose KV is computed while it is being prefilled."""
    admitted_s: float = 0.0
    admitted: int = 0
    """Tokens it was admitted with; those behind them are lost first."""
    base: int = 0
    """While it runs: produced = replica.steps - base."""
    order: int = 0
    seen: int = 0
    """Tokens of the trajectory whose KV was computed before, anywhere: computing those again is recompute."""


@dataclass(slots=True)
class ReservedTokens:
    """The tokens that running requests may still write: the sum of min(limit - produced, clip).

    Requests further than `clip` from their limit count `clip` each; for the others the sum of the steps at
    which they reach it is enough. So an update costs the logarithm of the batch, not the batch. `end` of a
    request is the decode step at which it would reach its limit; keys name requests.
    """

    clip: int
    _ends: dict[int, int] = field(init=False, default_factory=dict)
    _far: list[tuple[int, int]] = field(init=False, default_factory=list)
    _near: dict[int, int] = field(init=False, default_factory=dict)
    _near_sum: int = field(init=False, default=0)

    def add(self, key: int, end: int) -> None:
        self._ends[key] = end
        heapq.heappush(self._far, (end, key))

    def remove(self, key: int) -> None:
        del self._ends[key]
        self._near_sum -= self._near.pop(key, 0)

    def total(self, step: int) -> int:
        """The sum at decode step `step`; steps never decrease."""
        far = self._far
        while far and far[0][0] - step <= self.clip:
            end, key = heapq.heappop(far)
            if self._ends.get(key) == end and key not in self._near:
                self._near[key] = end
                self._near_sum += end
        near = len(self._near)
        return (len(self._ends) - near) * self.clip + self._near_sum - near * step


@dataclass(slots=True)
class Totals:
    """Sums over a replica's life; `kv_token_s` and `running_s` are integrals over time."""

    busy_s: float = 0.0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    kv_token_s: float = 0.0
    running_s: float = 0.0


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """`start` begins the next forward or segment and says when it ends; `finish` takes in that it ended.

    Invariants: at most one forward is under way; free KV is never negative; a token is produced exactly once.
    """

    index: int
    model: ReplicaModel
    pool: KvPool = field(init=False)
    waiting: deque[TurnRequest] = field(init=False, default_factory=deque)
    running: dict[int, TurnRequest] = field(init=False, default_factory=dict)
    prompts: dict[str, Prompt] = field(init=False, default_factory=dict)
    totals: Totals = field(init=False, default_factory=Totals)
    steps: int = field(init=False, default=0)
    """Decode steps since the start: the clock of the running batch."""
    context: int = field(init=False, default=0)
    """Tokens that the next decode step reads."""
    full: bool = field(init=False, default=False)
    """Admission failed, and nothing has ended since."""
    until_s: float | None = field(init=False, default=None)
    """When the forward or segment under way ends; None when there is none."""
    pending: bool = field(init=False, default=False)
    """The host has a start on its list."""
    retracted: list[TurnRequest] = field(init=False, default_factory=list)
    """Those of the last `start`, for the host to report."""
    _began_s: float = field(init=False, default=0.0)
    _segment: int = field(init=False, default=0)
    _due: list[tuple[int, int, TurnRequest]] = field(init=False, default_factory=list)
    _partial: TurnRequest | None = field(init=False, default=None)
    _chunks: list[tuple[TurnRequest, int]] = field(init=False, default_factory=list)
    _rides: bool = field(init=False, default=False)
    """The running requests get a token from the prefill forward under way."""
    _joining: list[TurnRequest] = field(init=False, default_factory=list)
    _reserve: ReservedTokens = field(init=False)
    _order: int = field(init=False, default=0)
    _ratio: float = field(init=False, default=0.0)
    _ratio_step: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.pool = KvPool(self.model.kv_tokens, self.model.keep_prompts)
        self._reserve = ReservedTokens(self.model.clip_tokens)
        self._reset_ratio()

    def load(self) -> tuple[int, int, int]:
        """The load as an engine reports it: tokens that cannot be evicted, requests running and waiting."""
        return self.pool.used - self.pool.evictable, len(self.running), len(self.waiting)

    # ---- between forwards ----

    def enqueue(self, request: TurnRequest, now: float) -> bool:
        """A grant arrives. True if the segment under way ends earlier now (reschedule) or none is (start)."""
        self.waiting.append(request)
        if self.until_s is None:
            return True
        if self._chunks or self.full:
            return False
        cost, batch = self.model.cost, len(self.running)
        steps = cost.steps_within(now - self._began_s, batch, self.context, self._segment)
        if steps == self._segment:
            return False
        self._segment = steps
        self.until_s = self._began_s + cost.decode_s(steps, batch, self.context)
        return True

    def cut(self, request: TurnRequest, now: float) -> bool:
        """Let a request end with its next token. True if the segment under way ends earlier now (reschedule)."""
        if self.running.get(request.seat) is not request:
            request.new_tokens = request.produced + 1
            return False
        steps, batch, is_decoding = 1, len(self.running), self.until_s is not None and not self._chunks
        if is_decoding:
            steps = self.model.cost.steps_within(now - self._began_s, batch, self.context, self._segment)
        self._due.remove((request.base + request.new_tokens, request.order, request))
        request.new_tokens = min(request.new_tokens, self.steps + steps - request.base)
        self._due.append((request.base + request.new_tokens, request.order, request))
        heapq.heapify(self._due)
        if not is_decoding or steps == self._segment:
            return False
        self._segment = steps
        self.until_s = self._began_s + self.model.cost.decode_s(steps, batch, self.context)
        return True

    def start(self, now: float) -> bool:
        """Begin the next forward. False: nothing to do."""
        assert self.until_s is None
        self.retracted = []
        self._began_s = now
        self._admit(now)
        if self._chunks:
            self.until_s = now + self._prefill_duration()
            return True
        if not self.running:
            self._reset_ratio()
            return False
        while not self.pool.make_room(len(self.running)):  # idle KV goes first, then requests, as in SGLang
            # The fewest tokens of this turn first (least is lost), then the longest input, then the latest.
            victim = min(self.running.values(), key=lambda r: (self.steps - r.base, -r.context, -r.order))
            self._retract(victim)
        batch = len(self.running)
        limit = self._due[0][0] - self.steps
        # A retraction makes room that the next boundary may give away.
        retry = bool(self.waiting) and not self.full
        self._segment = 1 if retry else min(limit, self.pool.free // batch)
        self.until_s = now + self.model.cost.decode_s(self._segment, batch, self.context)
        return True

    def finish(self, now: float) -> list[TurnRequest]:
        """The forward under way has ended; returns the requests whose turns ended with it."""
        assert self.until_s is not None
        self.until_s = None
        totals, batch, used = self.totals, len(self.running), self.pool.used
        span = now - self._began_s
        totals.busy_s += span
        riding = self._rides
        if self._chunks:
            ended = self._end_prefill()
            if riding:
                ended = self._end_decode(1) + ended
        else:
            ended = self._end_decode(self._segment)
        ended.sort(key=lambda r: r.order)
        totals.kv_token_s += span * (used + self.pool.used) / 2
        totals.running_s += span * batch * (riding or not self._chunks)
        self._chunks = []
        for request in ended:
            self.pool.unlock(request.hold, now)
            self.full = False
        return ended

    # ---- admission and prefill ----

    def _admit(self, now: float) -> None:
        """Fill one prefill forward: the chunk left from the last one, then the queue's head while it fits."""
        budget, reserved = self.model.chunk_tokens, 0
        chunks: list[tuple[TurnRequest, int]] = []
        if self._partial is not None:
            request, self._partial = self._partial, None
            budget -= self._chunk(request, budget, chunks)
            reserved += self._clip(request) if self._partial is None else 0
        running: float | None = None
        while self.waiting and budget > 0 and not self.full:
            request = self.waiting[0]
            hold, total = request.hold, request.context + request.produced
            cached = min(self.pool.cached(hold), total - 1)
            fits = len(self.running) + len(chunks) < self.model.max_running
            if fits:
                if running is None:
                    running = self._ratio_now() * self._reserve.total(self.steps)
                spare = self.pool.available(hold) - running - reserved
                fits = total - cached + self._clip(request) < spare
            if not fits and (self.running or chunks):
                self.full = True
                break
            self.waiting.popleft()
            self.pool.lock(hold)
            self.pool.take(hold, total)
            request.done, request.admitted, request.admitted_s = cached, total, now
            budget -= self._chunk(request, budget, chunks)
            if self._partial is None:
                reserved += self._clip(request)
        self._chunks = chunks

    def _chunk(self, request: TurnRequest, budget: int, chunks: list[tuple[TurnRequest, int]]) -> int:
        left = request.context + request.produced - request.done
        if left > budget:
            self._partial = request
        tokens = min(left, budget)
        chunks.append((request, tokens))
        return tokens

    def _clip(self, request: TurnRequest) -> int:
        return min(request.limit - request.produced, self.model.clip_tokens)

    def _prefill_duration(self) -> float:
        cost, batch = self.model.cost, len(self.running)
        new = sum(tokens for _, tokens in self._chunks)
        seconds = cost.prefill_s(new, sum(pairs(r.done, tokens) for r, tokens in self._chunks))
        self._rides = cost.mixed and batch > 0 and self.pool.make_room(batch)
        if self._rides:
            seconds += cost.request_s * batch + cost.context_token_s * self.context
        return seconds

    def _end_prefill(self) -> list[TurnRequest]:
        """Books of the chunks; a request whose last chunk this was has its next token and runs or ends."""
        ended: list[TurnRequest] = []
        joined: list[TurnRequest] = []
        for request, tokens in self._chunks:
            self.totals.prefill_tokens += tokens
            self.totals.recomputed_tokens += max(0, min(request.seen, request.done + tokens) - request.done)
            request.done += tokens
            request.seen = max(request.seen, request.done)
            if request.done == request.context + request.produced:
                request.produced += 1
                self._order += 1
                request.order = self._order
                (ended if request.produced == request.new_tokens else joined).append(request)
        self._joining = joined
        if not self._rides:
            self._join()
        return ended

    def _join(self) -> None:
        for request in self._joining:
            request.base = self.steps - request.produced
            due = self.steps + request.new_tokens - request.produced
            heapq.heappush(self._due, (due, request.order, request))
            self.running[request.seat] = request
            self._reserve.add(request.order, request.base + request.limit)
            self.context += request.context + request.produced - 1
        self._joining = []

    # ---- decode ----

    def _retract(self, request: TurnRequest) -> None:
        """Its turn's tokens go at once; its context is idle again, as old as its admission."""
        assert len(self.running) > 1, "the last request always fits: a pool holds the longest trajectory"
        del self.running[request.seat]
        self._reserve.remove(request.order)
        self._due.remove((request.base + request.new_tokens, request.order, request))
        heapq.heapify(self._due)
        request.produced = self.steps - request.base
        request.seen = request.context + request.produced - 1
        self.context -= request.seen
        self.pool.free += request.seen - request.admitted
        request.hold.own = request.admitted - request.hold.prompt.tokens
        self.pool.unlock(request.hold, request.admitted_s)
        self.totals.preemptions += 1
        self.retracted.append(request)
        self.waiting.append(request)
        self.full = False
        limits = sum(r.limit for r in self.running.values()) + 1
        written = sum(self.steps - r.base for r in self.running.values())
        self._ratio = min(1.0, (written + RETRACT_STEPS * len(self.running)) / limits)
        self._ratio_step = self.steps

    def _end_decode(self, steps: int) -> list[TurnRequest]:
        batch = len(self.running)
        self.steps += steps
        self.context += steps * batch
        self.pool.free -= steps * batch
        self.totals.decode_tokens += steps * batch
        ended: list[TurnRequest] = []
        while self._due and self._due[0][0] == self.steps:
            request = heapq.heappop(self._due)[2]
            del self.running[request.seat]
            self._reserve.remove(request.order)
            request.produced = request.new_tokens
            request.seen = request.context + request.new_tokens - 1
            self.context -= request.seen
            request.hold.own = request.seen - request.hold.prompt.tokens
            ended.append(request)
        self._join()
        return ended

    def _reset_ratio(self) -> None:
        self._ratio = INIT_RATIO * self.model.conservativeness
        self._ratio_step = self.steps

    def _ratio_now(self) -> float:
        start = INIT_RATIO * self.model.conservativeness
        floor = start * MIN_RATIO
        fallen = (start - floor) / RATIO_STEPS * (self.steps - self._ratio_step)
        return max(floor, self._ratio - fallen)
