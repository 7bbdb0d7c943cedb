"""What waits, by whose it is.

    append(lane, item) --> [lane: item, item, ...] --> pop: the oldest of the lane with least under way
                           [lane: item]                 |   for its weight
                                  under way <-----------+     ended(lane)

A lane is a batch, an owner, or a call by itself. One that has much waiting gets what the others leave, and
always something: of lanes that have equally much under way the one is next that got least since it came, so
that nobody who has waited long comes before all others again and again.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_STALE = 64
"""Ranks that no longer hold, beyond four for each lane: a busy lane leaves one with each item."""


@dataclass(slots=True)
class _Lane(Generic[T]):
    """`due`: the turns that it had, each worth one by its weight, counted from when the lane came."""

    weight: int
    due: float
    waiting: deque[tuple[int, T]] = field(default_factory=deque)
    under_way: int = 0

    def rank(self) -> tuple[float, float, int]:
        return self.under_way / self.weight, self.due, self.waiting[0][0]


class Lanes(Generic[T]):
    """Invariants: what one lane got comes out in the order in which it went in; of those lanes that have
    least under way for their weight, `pop` takes the one with fewest turns for it, the oldest first; a lane
    without anything takes no room."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}
        self._heap: list[tuple[tuple[float, float, int], int]] = []  # rank, lane; stale ones among them
        self._now = 0.0  # the turns of who was next last: a lane that comes has had as many
        self._arrivals = 0
        self._before = 0
        self.size = 0
        """How much waits."""

    def __len__(self) -> int:
        return self.size

    def append(self, lane: int, item: T, weight: int = 1) -> None:
        """`weight`: of the lane from now on."""
        found = self._lane(lane)
        found.weight = weight
        self._arrivals += 1
        found.waiting.append((self._arrivals, item))
        self.size += 1
        if len(found.waiting) == 1:
            self._offer(found, lane)

    def pass_by(self, lane: int, weight: int = 1) -> None:
        """As if an item had been appended and popped, while nothing waits: it is under way until `ended`."""
        found = self._lane(lane)
        found.weight = weight
        self._arrivals += 1
        self._have_turn(found)

    def append_first(self, lane: int, item: T) -> None:
        """Before the others of its lane, and of lanes that are as good: it had its turn."""
        found = self._lane(lane)
        self._before -= 1
        found.waiting.appendleft((self._before, item))
        found.due -= 1 / found.weight
        self.size += 1
        self._offer(found, lane)

    def pop(self) -> T:
        """It is under way until `ended`. Raises IndexError when nothing waits."""
        self._drop_stale()
        _, lane = heapq.heappop(self._heap)
        found = self._lanes[lane]
        self.size -= 1
        _, item = found.waiting.popleft()
        self._have_turn(found)
        if found.waiting:
            self._offer(found, lane)
        return item

    def next_has_nothing(self) -> bool:
        """Whether the next to be popped is of a lane that has nothing under way."""
        self._drop_stale()
        return bool(self._heap) and self._heap[0][0][0] == 0

    def ended(self, lane: int) -> None:
        """One that was popped is over."""
        found = self._lanes[lane]
        found.under_way -= 1
        if found.waiting:
            self._offer(found, lane)
        elif not found.under_way:
            del self._lanes[lane]

    def clear(self) -> list[T]:
        """Empties it, and forgets what is under way. Returns what waited."""
        items = [item for lane in self._lanes.values() for _, item in lane.waiting]
        self.__init__()  # type: ignore[misc]
        return items

    def _have_turn(self, found: _Lane[T]) -> None:
        if found.due > self._now:
            self._now = found.due
        found.under_way += 1
        found.due += 1 / found.weight

    def _lane(self, lane: int) -> _Lane[T]:
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = _Lane(1, self._now)
        return found

    def _offer(self, found: _Lane[T], lane: int) -> None:
        heapq.heappush(self._heap, (found.rank(), lane))
        if len(self._heap) > 4 * len(self._lanes) + MOST_STALE:
            self._heap = [(one.rank(), number) for number, one in self._lanes.items() if one.waiting]
            heapq.heapify(self._heap)

    def _drop_stale(self) -> None:
        while self._heap:
            rank, lane = self._heap[0]
            found = self._lanes.get(lane)
            if found is not None and found.waiting and found.rank() == rank:
                return
            heapq.heappop(self._heap)
