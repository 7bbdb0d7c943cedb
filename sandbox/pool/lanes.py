"""What waits, by whose it is.

    append(lane, item) --> [lane: item, item, ...] --> pop: the oldest of the lane with least under way
                           [lane: item]                 |
                                  under way <-----------+     ended(lane)

A lane is a batch, an owner, or a call by itself. One that has much waiting gets what the others leave, and
always something: with nothing under way it is as good as any other, and its items are older.
"""

import heapq
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Invariants: what one lane got comes out in the order in which it went in; `pop` gives the oldest item
    of those lanes that have least under way of all that wait; a lane without anything takes no room."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[tuple[int, T]]] = {}
        self._under_way: dict[int, int] = {}
        self._heap: list[
            tuple[int, int, int]
        ] = []  # under way, arrival of the first, lane; stale ones among them
        self._arrivals = 0
        self._before = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, lane: int, item: T) -> None:
        self._arrivals += 1
        waiting = self._waiting.setdefault(lane, deque())
        waiting.append((self._arrivals, item))
        self._size += 1
        if len(waiting) == 1:
            self._offer(lane)

    def append_first(self, lane: int, item: T) -> None:
        """Before all others: it had its turn."""
        self._before -= 1
        self._waiting.setdefault(lane, deque()).appendleft((self._before, item))
        self._size += 1
        self._offer(lane)

    def pop(self) -> T:
        """It is under way until `ended`. Raises IndexError when nothing waits."""
        while True:
            under_way, arrival, lane = heapq.heappop(self._heap)
            waiting = self._waiting.get(lane)
            if waiting and (under_way, arrival) == (self._under_way.get(lane, 0), waiting[0][0]):
                break
        self._size -= 1
        _, item = waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        self._under_way[lane] = under_way + 1
        self._offer(lane)
        return item

    def ended(self, lane: int) -> None:
        """One that was popped is over."""
        left = self._under_way.pop(lane) - 1
        if left:
            self._under_way[lane] = left
        self._offer(lane)

    def clear(self) -> list[T]:
        """Empties it, and forgets what is under way. Returns what waited."""
        items = [item for waiting in self._waiting.values() for _, item in waiting]
        self.__init__()  # type: ignore[misc]
        return items

    def _offer(self, lane: int) -> None:
        if waiting := self._waiting.get(lane):
            heapq.heappush(self._heap, (self._under_way.get(lane, 0), waiting[0][0], lane))
