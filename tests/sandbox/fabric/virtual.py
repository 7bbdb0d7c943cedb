"""The fabric in virtual time: a client's ledger, Redis's order, workers, and the lanes of their pools.

    ledger.take -> way -> [stream] -> way -> a worker with room -> a place of its pool -> way -> ledger.answer

Who is settled opens the next call of its owner at once, so that everybody always has as many waiting.
"""

import dataclasses
import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

from rocstar.sandbox.fabric.open_calls import OpenCalls
from rocstar.sandbox.fabric.owner_queue import spare_calls
from rocstar.sandbox.fabric.receiver import windows_of
from rocstar.sandbox.fabric.wire import Answer, Outcome, WorkerInfo
from rocstar.sandbox.pool.fair_queue import FairQueue
from rocstar.sandbox.types import ExecRequest
from tests.fakes.sandbox import ok

Took = Callable[[random.Random, str], float]
"""Seconds that a program of this owner runs."""

Sent = tuple[str, int, str]
"""Entry, call, owner."""


class _Worker:
    """A pool that runs `places` programs at a time, and holds as many again."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.room = 2 * places + spare_calls(places)
        self.running = 0
        self.lanes: FairQueue[Sent] = FairQueue()

    def next(self) -> Sent | None:
        """A program that starts now."""
        spare = self.running < self.places + spare_calls(self.places)
        if self.lanes.size and (self.running < self.places or (spare and self.lanes.idle_lanes)):
            self.running += 1
            return self.lanes.pop()
        return None


class VirtualFabric:
    """`way_s`: mean of each of the ways, drawn anew for each message."""

    def __init__(
        self, weights: Mapping[str, int], took: Took, *, way_s: float, waiting: int = 60, seed: int = 0
    ) -> None:
        self.ended: list[tuple[float, str]] = []
        self.now = 0.0
        self._weights, self._took, self._way_s = weights, took, way_s
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._lane = {owner: number for number, owner in enumerate(weights)}
        self._stream: deque[list[Sent]] = deque()
        self._workers = [_Worker(3), _Worker(3)]
        self._open_calls = OpenCalls(
            windows=windows_of(
                WorkerInfo(name=str(number), capacity=worker.places, flavours=("stdlib",))
                for number, worker in enumerate(self._workers)
            )
        )
        for owner in weights:
            for _ in range(waiting):
                self._open(owner)
        self._send()

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] < until_s:
            self.now, _, happens = heapq.heappop(self._events)
            happens()

    def programs(self, since_s: float) -> Counter[str]:
        return Counter(owner for when, owner in self.ended if when >= since_s)

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), happens))

    def _on_the_way(self) -> float:
        return self._rng.expovariate(1 / self._way_s)

    def _open(self, owner: str) -> None:
        def settle(_: Outcome) -> None:
            self.ended.append((self.now, owner))
            self._open(owner)

        request = ExecRequest(code="x", flavour="stdlib", owner=owner, weight=self._weights[owner])
        self._open_calls.open(request, settle, entry_calls=4)

    def _send(self) -> None:
        while calls := self._open_calls.take(1 << 20):
            ref = f"stdlib/{next(self._numbers)}-0"
            self._open_calls.sent(calls, ref)
            entry = [(ref, call.id, call.request.owner) for call in calls]
            self._after(self._on_the_way(), partial(self._arrive, entry))

    def _arrive(self, entry: list[Sent]) -> None:
        self._stream.append(entry)
        self._pull()

    def _pull(self) -> None:
        """Whoever has room takes what came first."""
        for worker in self._rng.sample(self._workers, len(self._workers)):
            while self._stream and worker.room > 0:
                entry = self._stream.popleft()
                worker.room -= len(entry)
                self._after(self._on_the_way(), partial(self._held, worker, entry))

    def _held(self, worker: _Worker, entry: list[Sent]) -> None:
        for sent in entry:
            worker.lanes.put(self._lane[sent[2]], sent, self._weights[sent[2]])
        self._start(worker)

    def _start(self, worker: _Worker) -> None:
        while (sent := worker.next()) is not None:
            wall_s = self._took(self._rng, sent[2])
            self._after(wall_s, partial(self._end, worker, sent, wall_s))

    def _end(self, worker: _Worker, sent: Sent, wall_s: float) -> None:
        worker.running -= 1
        worker.room += 1
        worker.lanes.finish(self._lane[sent[2]])
        self._after(self._on_the_way(), partial(self._answer, sent, wall_s))
        self._start(worker)
        self._pull()

    def _answer(self, sent: Sent, wall_s: float) -> None:
        outcome = dataclasses.replace(ok(), wall_s=wall_s)
        self._open_calls.answer(Answer(ref=sent[0], call_id=sent[1], outcome=outcome))
        self._send()
