"""The scheduler of a stand-in SGLang server: queue, radix KV, retraction, pause. Pure: no tasks, no clock.

    submit ─> waiting ─> [step: admit while KV is free, one token for each that runs] ─> finished
                 ^ retract (KV full, or a pause) puts a request back, its tokens kept, its KV gone

There is no model. A token and its log-prob are hashes of (weights, the last ids, their number), so they
change with the weights and are the same wherever a sequence is continued. `fake_server` puts HTTP around it;
what both do is held against recordings of SGLang 0.5.23 (tests/engine/inference/test_sglang_recordings.py).
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WINDOW = 16
"""Ids that the next one depends on, beside their number."""
INTERVAL = 50
"""A request that is neither running nor streamed shows its tokens in multiples of this."""
RESERVED_TOKENS = 2
"""Of the context or the KV pool, out of a request's reach."""
INPUT_RESERVE = 4
"""How much shorter than that the longest input is."""

Script = Callable[[tuple[int, ...], int], int | None]
"""(prompt ids, number of ids already written) -> the next id, None = as the hash says."""


@dataclass(slots=True, eq=False)
class _Node:
    """One cached token. `locks`: running requests whose prefix goes through it."""

    token: int
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    locks: int = 0
    used_at: int = 0


class RadixKv:
    """KV slots of one token each. Invariant: nodes + held <= capacity; a locked node is never evicted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        """Slots of tokens that were generated and are not in the tree yet."""
        self._root = _Node(-1, None)
        self._leaves: set[_Node] = set()
        self._num_nodes = self._num_locked = 0
        self._time = itertools.count()

    @property
    def free(self) -> int:
        return self.capacity - self._num_nodes - self.held

    @property
    def evictable(self) -> int:
        return self._num_nodes - self._num_locked

    @property
    def used(self) -> int:
        return self._num_locked + self.held

    def match(self, ids: Sequence[int]) -> int:
        """How many of the first ids are cached."""
        node, depth = self._root, 0
        for token in ids:
            child = node.children.get(token)
            if child is None:
                break
            node, depth = child, depth + 1
        return depth

    def make_room(self, tokens: int) -> bool:
        """Evict least recently used leaves until `tokens` slots are free; False if that cannot be."""
        if self.free + self.evictable < tokens:
            return False
        while self.free < tokens:
            leaf = min((node for node in self._leaves if not node.locks), key=lambda node: node.used_at)
            self._remove(leaf)
        return True

    def insert(self, ids: Sequence[int], *, lock: bool) -> None:
        """Put `ids` into the tree; with `lock` its path stays until `unlock`."""
        node, now = self._root, next(self._time)
        for token in ids:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node(token, node)
                self._num_nodes += 1
                self._leaves.discard(node)
                self._leaves.add(child)
            child.used_at = now
            if lock:
                child.locks += 1
                self._num_locked += child.locks == 1
            node = child

    def unlock(self, ids: Sequence[int]) -> None:
        node = self._root
        for token in ids:
            node = node.children[token]
            node.locks -= 1
            self._num_locked -= node.locks == 0

    def flush(self) -> None:
        assert self.held == 0 and self._num_locked == 0, "KV of running requests cannot be flushed"
        self._root.children.clear()
        self._leaves.clear()
        self._num_nodes = 0

    def _remove(self, leaf: _Node) -> None:
        assert leaf.parent is not None and not leaf.children and not leaf.locks
        del leaf.parent.children[leaf.token]
        self._leaves.discard(leaf)
        self._num_nodes -= 1
        if leaf.parent is not self._root and not leaf.parent.children:
            self._leaves.add(leaf.parent)


@dataclass(slots=True, kw_only=True, eq=False)
class FakeRequest:
    """One /generate. `finish` is None until it ended; then a finish_reason as the server reports it."""

    rid: str
    ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    ignore_eos: bool
    done: Callable[[FakeRequest], None]
    news: Callable[[], None] = lambda: None
    """Called for every token, and at the end."""
    is_streamed: bool = False
    shown: int = 0
    """Tokens of which an event was made."""
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    locked: tuple[int, ...] = ()
    cached_tokens: int | None = None
    retractions: int = 0
    finish: dict[str, Any] | None = None
    in_queue: bool = False
    """It ended while it waited: its answer lacks what only a running request has."""

    @property
    def sequence(self) -> tuple[int, ...]:
        return (*self.ids, *self.out)


class FakeScheduler:
    """Invariant: a request is in `running` or `waiting` until it is finished, and finishes once."""

    def __init__(
        self,
        *,
        vocab_size: int,
        capacity: int,
        context_length: int,
        eos_ids: frozenset[int] = frozenset(),
        weights_key: bytes = b"",
        script: Script | None = None,
    ) -> None:
        self.vocab_size, self.context_length = vocab_size, context_length
        self.kv = RadixKv(capacity)
        self.waiting: deque[FakeRequest] = deque()
        self.running: list[FakeRequest] = []
        self.paused = False
        self.weights_key, self.label = weights_key, "default"
        self.raw_logprobs = False
        self.num_retracted = 0
        self._crowded = False
        """The pool overflowed: nothing is admitted until a request has ended, or all would take turns."""
        self._eos_ids, self._script = eos_ids, script

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """A policy would compute with them; here their checksums alone matter."""

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def max_input_tokens(self) -> int:
        return self.max_request_tokens - INPUT_RESERVE

    @property
    def max_request_tokens(self) -> int:
        return min(self.context_length, self.kv.capacity) - RESERVED_TOKENS

    def submit(self, request: FakeRequest) -> None:
        """`max_new_tokens` is clipped to what context and pool hold, without a word."""
        room = self.max_request_tokens - len(request.ids)
        request.max_new_tokens = min(request.max_new_tokens, room)
        self.waiting.append(request)

    def live(self, rid: str) -> FakeRequest | None:
        return next((r for r in (*self.running, *self.waiting) if r.rid == rid), None)

    def step(self) -> bool:
        """One batch: admit, then a token for each that runs. False if there was nothing to do."""
        if self.paused:
            return False
        self._admit()
        for request in list(self.running):
            if request in self.running:  # an earlier one may have retracted it
                self._decode(request)
        return not self.idle

    def pause(self) -> None:
        """mode=retract: everything that runs goes back to the head of the queue."""
        self.paused = True
        for request in reversed(list(self.running)):
            self._retract(request)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """Requests whose rid starts with `rid`. One that waits shows its tokens in multiples of INTERVAL."""
        for request in [r for r in self.running if everything or r.rid.startswith(rid)]:
            self._finish(request, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})
        for request in [r for r in self.waiting if everything or r.rid.startswith(rid)]:
            self.waiting.remove(request)
            kept = len(request.out) if request.is_streamed else len(request.out) // INTERVAL * INTERVAL
            del request.out[kept:], request.logprobs[kept:], request.labels[kept:]
            request.in_queue = True
            self._finish(request, {"type": "abort", "message": "Abort in waiting queue"})

    def _admit(self) -> None:
        admitted = []
        while self.waiting and not (self._crowded and self.running):
            request = self.waiting[0]
            sequence = request.sequence
            cached = self.kv.match(sequence[:-1])
            reserve = request.max_new_tokens - len(request.out) if request.ignore_eos else 1
            if not self.kv.make_room(len(sequence) - cached + reserve):
                break
            self.waiting.popleft()
            request.cached_tokens = cached
            # Locked at once, so that admitting the next one cannot evict it; found by later batches alone.
            self.kv.insert(sequence, lock=True)
            request.locked = sequence
            admitted.append(request)
        self.running += admitted

    def _decode(self, request: FakeRequest) -> None:
        if request.max_new_tokens <= 0:
            self._finish(request, {"type": "length", "length": 0})
            return
        if len(request.sequence) > len(request.locked):  # the token before now gets its KV
            while not self.kv.make_room(1):
                victim = self.running[-1]
                self._retract(victim)
                self.num_retracted += 1
                self._crowded = True
                if victim is request:
                    return
            self.kv.held += 1
        token, logprob = self.next_token(request)
        request.out.append(token)
        request.logprobs.append(logprob)
        request.labels.append(self.label)
        if not request.ignore_eos and (token in request.stop_ids or token in self._eos_ids):
            self._finish(request, {"type": "stop", "matched": token})
        elif len(request.out) >= request.max_new_tokens:
            self._finish(request, {"type": "length", "length": len(request.out)})
        else:
            request.news()

    def next_token(self, request: FakeRequest) -> tuple[int, float]:
        sequence = request.sequence
        digest = hashlib.blake2b(
            array("q", [len(sequence), *sequence[-WINDOW:]]).tobytes(), key=self.weights_key, digest_size=16
        ).digest()
        token = int.from_bytes(digest[:8], "little") % self.vocab_size
        if self._script is not None:
            scripted = self._script(request.ids, len(request.out))
            token = token if scripted is None else scripted
        surprise = int.from_bytes(digest[8:12], "little") % 4096 / 512
        scale = 1.0 if self.raw_logprobs or request.temperature == 0 else request.temperature
        return token, -surprise / scale

    def _release(self, request: FakeRequest) -> None:
        self.kv.unlock(request.locked)
        self.kv.held -= max(0, len(request.sequence) - 1 - len(request.locked))
        request.locked = ()

    def _retract(self, request: FakeRequest) -> None:
        self.running.remove(request)
        self._release(request)
        request.retractions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: FakeRequest, reason: dict[str, Any]) -> None:
        if request in self.running:
            self.running.remove(request)
            self._release(request)
            self._crowded = False
            self.kv.insert(request.sequence[:-1], lock=False)  # the last token never got its KV
        request.finish = reason
        request.news()
        request.done(request)
