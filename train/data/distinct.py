"""In how many distinct problems a gram occurs, as far as that is asked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class DistinctCounts:
    """Counts the distinct numbers that were added to each of `size` places, up to `most`.

    Invariant: `count(place)` is the smaller of `most` and the number of distinct numbers added there, in
    whatever order and however often. Memory is that of `size` x `most` numbers, whatever is added.
    """

    def __init__(self, size: int, *, most: int) -> None:
        self._most = most
        self._seen = array("Q", bytes(8 * size * most))
        self._counts = bytearray(size)

    def add(self, places: Iterable[int], number: int) -> None:
        """Add a number of 64 bits to some places."""
        counts, seen, most = self._counts, self._seen, self._most
        for place in places:
            count = counts[place]
            if count < most:
                first = place * most
                if number not in seen[first : first + count]:
                    seen[first + count] = number
                    counts[place] = count + 1

    def count(self, place: int) -> int:
        """How many distinct numbers were added to a place, `most` at most."""
        return self._counts[place]
