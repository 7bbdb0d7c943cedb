"""A weighted fair queue of lanes.

    put(lane, item) --> [lane: item, item, ...] --> pop: the oldest item of the lane with the fewest running
                        [lane: item]                 |   items per weight
                                 running <-----------+   finish(lane)

A lane is a batch, an owner, or a single call. A lane with many waiting items gets the places that the others
leave, and is never starved: of lanes with equally many running items, the one with the fewest turns since it
came is next, so that a lane that waited long is not preferred indefinitely.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_STALE = 64
"""The stale offers that the heap may hold besides four per lane: a busy lane leaves one with each item."""


@dataclass(slots=True, eq=False)
class _Lane(Generic[T]):
    """due: turns divided by weight, starting at the value of the current lane when this one came. offer: its
    rank while items wait: running items per weight, due, age, lane. waiting: items by ticket, in order of
    age."""

    weight: int
    due: float
    waiting: OrderedDict[int, T] = field(default_factory=OrderedDict)
    running: int = 0
    offer: "_Offer[T] | None" = None


_Offer = tuple[float, float, int, _Lane[T]]


class FairQueue(Generic[T]):
    """Invariants: the items of one lane leave in order; of the lanes with the fewest running items per
    weight, `pop` takes the one with the fewest turns per weight, the oldest first; an empty lane takes no
    memory."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}
        self._heap: list[_Offer[T]] = []  # an offer is stale if its lane has another
        self._now = 0.0  # due of the last popped lane: a new lane starts there
        self._arrivals = 0
        self._before = 0
        self.idle_lanes = 0
        """The number of lanes with waiting items and none running: `pop` takes from these first."""
        self.size = 0
        """The number of waiting items."""

    def put(self, lane: int, item: T, weight: int = 1) -> int:
        """Add an item and return its ticket for `discard`, never 0. weight: the lane's weight from now on."""
        entry = self._lane(lane)
        entry.weight = weight
        self._arrivals += 1
        entry.waiting[self._arrivals] = item
        self.size += 1
        if entry.offer is None:
            self.idle_lanes += not entry.running
            self._offer(entry)
        return self._arrivals

    def count_as_popped(self, lane: int, weight: int = 1) -> None:
        """Count an item as popped without queueing it: it is running until `finish`. Only if no item
        waits."""
        entry = self._lane(lane)
        entry.weight = weight
        self._arrivals += 1
        self._count_turn(entry)

    def put_first(self, lane: int, item: T) -> int:
        """Put an item that was popped before in front of its lane and refund its turn. Return its ticket."""
        entry = self._lane(lane)
        self._before -= 1
        entry.waiting[self._before] = item
        entry.waiting.move_to_end(self._before, last=False)
        entry.due -= 1 / entry.weight
        self.size += 1
        self.idle_lanes += entry.offer is None and not entry.running
        self._offer(entry)
        return self._before

    def discard(self, lane: int, ticket: int) -> None:
        """Remove a waiting item."""
        entry = self._lanes[lane]
        del entry.waiting[ticket]
        self.size -= 1
        if not entry.waiting:
            entry.offer = None
            self.idle_lanes -= not entry.running
            if not entry.running:
                del self._lanes[lane]

    def pop(self) -> T:
        """Return the next item, which is running until `finish`. Raise IndexError if no item waits."""
        offer = heapq.heappop(self._heap)
        while offer[3].offer is not offer:
            offer = heapq.heappop(self._heap)
        entry = offer[3]
        self.size -= 1
        self.idle_lanes -= not entry.running
        _, item = entry.waiting.popitem(last=False)
        self._count_turn(entry)
        if entry.waiting:
            self._offer(entry)
        else:
            entry.offer = None
        return item

    def finish(self, lane: int) -> None:
        """Record that a popped item of the lane has ended."""
        entry = self._lanes[lane]
        entry.running -= 1
        if entry.waiting:
            self.idle_lanes += not entry.running
            self._offer(entry)
        elif not entry.running:
            del self._lanes[lane]

    def clear(self) -> list[T]:
        """Remove all items, also running ones. Return those that waited."""
        items = [item for lane in self._lanes.values() for item in lane.waiting.values()]
        self._lanes.clear()
        self._heap.clear()
        self.idle_lanes = self.size = 0
        return items

    def _count_turn(self, entry: _Lane[T]) -> None:
        if entry.due > self._now:
            self._now = entry.due
        entry.running += 1
        entry.due += 1 / entry.weight

    def _lane(self, lane: int) -> _Lane[T]:
        entry = self._lanes.get(lane)
        if entry is None:
            entry = self._lanes[lane] = _Lane(1, self._now)
        return entry

    def _offer(self, entry: _Lane[T]) -> None:
        offer = entry.running / entry.weight, entry.due, next(iter(entry.waiting)), entry
        entry.offer = offer
        heapq.heappush(self._heap, offer)
        if len(self._heap) > 4 * len(self._lanes) + MOST_STALE:
            self._heap = [one.offer for one in self._lanes.values() if one.offer is not None]
            heapq.heapify(self._heap)
