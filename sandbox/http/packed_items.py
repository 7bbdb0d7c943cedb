"""Many objects as one buffer, so that the garbage collector does not traverse them.

    decode --> PackedItems: one buffer of all items and their ends --> [index] --> the item, unpickled

A batch may have 65,536 calls of several objects each. Traversing all of them takes the collector 40 ms,
during which the event loop is blocked; so does freeing them.
"""

import pickle
from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
PACKED_FROM = 2048
"""Shorter lists stay lists: the collector traverses them in a millisecond, and packing costs 10 µs per
item."""

LONG_BYTES = 1 << 12
"""Larger items stay objects: a body holds few of them, and copying a long text takes long."""

RECENT = 512
"""The number of unpickled items in the cache: a call needs its item at its start and at its end."""


def pack_items(items: list[T]) -> Sequence[T]:
    """Return the items as a sequence that is cheap for the garbage collector."""
    return items if len(items) < PACKED_FROM else PackedItems(items)


def matching_indices(items: Sequence[T], wanted: Callable[[T], bool]) -> Sequence[int]:
    """Return the indices of the items for which `wanted` is true."""
    return array("I", (index for index, item in enumerate(items) if wanted(item)))


class _Items(Sequence[T], Generic[T]):
    """A sequence that creates its items on access."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._item(place) for place in range(*index.indices(len(self)))]
        return self._item(range(len(self))[index])

    @abstractmethod
    def _item(self, place: int) -> T: ...


class PackedItems(_Items[T]):
    """Invariants: an item equals the one that was given; the number of objects does not grow with that of
    short items."""

    __slots__ = ("_ends", "_long", "_recent", "_text")

    def __init__(self, items: Sequence[T]) -> None:
        self._ends = array("Q")
        self._long: dict[int, T] = {}
        self._recent: dict[int, T] = {}
        text = bytearray()
        for index, item in enumerate(items):
            piece = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
            if len(piece) < LONG_BYTES:
                text += piece
            else:
                self._long[index] = item
            self._ends.append(len(text))
        self._text = bytes(text)

    def __len__(self) -> int:
        return len(self._ends)

    def _item(self, place: int) -> T:
        if place in self._long:
            return self._long[place]
        if place in self._recent:
            return self._recent[place]
        begin = self._ends[place - 1] if place else 0
        item: T = pickle.loads(memoryview(self._text)[begin : self._ends[place]])
        self._recent[place] = item
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        return item


@dataclass(slots=True, eq=False)
class SelectedItems(_Items[T]):
    """A selection of another sequence by indices: its items, or one attribute of each."""

    items: Sequence[Any]
    indices: Sequence[int]
    attribute: str = ""

    def __len__(self) -> int:
        return len(self.indices)

    def _item(self, place: int) -> T:
        item = self.items[self.indices[place]]
        found: T = getattr(item, self.attribute) if self.attribute else item
        return found
