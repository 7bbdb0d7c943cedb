"""What waits, by whose it is.

    append(lane, item) --> [lane: item, item, ...] --> pop: the oldest of the lane with least under way
                           [lane: item]                 |   for its weight
                                  under way <-----------+     ended(lane)

A lane is a batch, an owner, or a call by itself. One that has much waiting gets what the others leave, and
always something: of lanes that have equally much under way the one is next that got least since it came, so
that nobody who has waited long comes before all others again and again.
"""

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_STALE = 64
"""Offers that no longer hold, beyond four for each lane: a busy lane leaves one with each item."""


class _Lane(Generic[T]):
    """`due`: the turns that it had, each worth one by its weight, counted from when the lane came. `offer`:
    its rank among others, while something waits: under way for its weight, turns, age, and itself. `waiting`:
    by ticket, which is also the age."""

    __slots__ = ("due", "offer", "under_way", "waiting", "weight")

    def __init__(self, weight: int, due: float) -> None:
        self.weight = weight
        self.due = due
        self.waiting: OrderedDict[int, T] = OrderedDict()
        self.under_way = 0
        self.offer: _Offer[T] | None = None


_Offer = tuple[float, float, int, _Lane[T]]


class FairQueue(Generic[T]):
    """Invariants: what one lane got comes out in the order in which it went in; of those lanes that have
    least under way for their weight, `pop` takes the one with fewest turns for it, the oldest first; a lane
    without anything takes no room."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}
        self._heap: list[_Offer[T]] = []  # one that its lane does not have any more is stale
        self._now = 0.0  # the turns of who was next last: a lane that comes has had as many
        self._arrivals = 0
        self._before = 0
        self._resting = 0  # lanes with something that waits, and nothing under way
        self.size = 0
        """How much waits."""

    def __len__(self) -> int:
        return self.size

    def put(self, lane: int, item: T, weight: int = 1) -> int:
        """A ticket, for `discard`; never 0. `weight`: of the lane from now on."""
        found = self._lane(lane)
        found.weight = weight
        self._arrivals += 1
        found.waiting[self._arrivals] = item
        self.size += 1
        if found.offer is None:
            self._resting += not found.under_way
            self._offer(found)
        return self._arrivals

    def count_as_popped(self, lane: int, weight: int = 1) -> None:
        """As if an item had been appended and popped, while nothing waits: it is under way until `ended`."""
        found = self._lane(lane)
        found.weight = weight
        self._arrivals += 1
        self._count_turn(found)

    def put_first(self, lane: int, item: T) -> int:
        """A ticket. Before the others of its lane, and of lanes that are as good: it had its turn."""
        found = self._lane(lane)
        self._before -= 1
        found.waiting[self._before] = item
        found.waiting.move_to_end(self._before, last=False)
        found.due -= 1 / found.weight
        self.size += 1
        self._resting += found.offer is None and not found.under_way
        self._offer(found)
        return self._before

    def discard(self, lane: int, ticket: int) -> None:
        """What has this ticket waits no more."""
        found = self._lanes[lane]
        del found.waiting[ticket]
        self.size -= 1
        if not found.waiting:
            found.offer = None
            self._resting -= not found.under_way
            if not found.under_way:
                del self._lanes[lane]

    def pop(self) -> T:
        """It is under way until `ended`. Raises IndexError when nothing waits."""
        offer = heapq.heappop(self._heap)
        while offer[3].offer is not offer:
            offer = heapq.heappop(self._heap)
        found = offer[3]
        self.size -= 1
        self._resting -= not found.under_way
        _, item = found.waiting.popitem(last=False)
        self._count_turn(found)
        if found.waiting:
            self._offer(found)
        else:
            found.offer = None
        return item

    def next_is_idle(self) -> bool:
        """Whether the next to be popped is of a lane that has nothing under way."""
        return self._resting > 0

    def finish(self, lane: int) -> None:
        """One that was popped is over."""
        found = self._lanes[lane]
        found.under_way -= 1
        if found.waiting:
            self._resting += not found.under_way
            self._offer(found)
        elif not found.under_way:
            del self._lanes[lane]

    def clear(self) -> list[T]:
        """Empties it, and forgets what is under way. Returns what waited."""
        items = [item for lane in self._lanes.values() for item in lane.waiting.values()]
        self.__init__()  # type: ignore[misc]
        return items

    def _count_turn(self, found: _Lane[T]) -> None:
        if found.due > self._now:
            self._now = found.due
        found.under_way += 1
        found.due += 1 / found.weight

    def _lane(self, lane: int) -> _Lane[T]:
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = _Lane(1, self._now)
        return found

    def _offer(self, found: _Lane[T]) -> None:
        offer = found.under_way / found.weight, found.due, next(iter(found.waiting)), found
        found.offer = offer
        heapq.heappush(self._heap, offer)
        if len(self._heap) > 4 * len(self._lanes) + MOST_STALE:
            self._heap = [one.offer for one in self._lanes.values() if one.offer is not None]
            heapq.heapify(self._heap)
