"""Many items, each as bytes until it is asked for.

    decode --> PackedItems: one text of all items, and where each ends --> [index] --> the item, made anew

A batch may have 65,536 calls, and each is several objects. That the collector goes through all of them takes
forty milliseconds of everybody's, and so does letting go of them. One text is one object.
"""

import pickle
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar, overload

T = TypeVar("T")

MANY = 2048
"""From so many on they are packed: fewer take the collector a millisecond, and packing costs each some ten
microseconds."""

LONG_BYTES = 1 << 12
"""Items from this size on stay as they are: a body holds few of them, and to make a long text takes long."""

RECENT = 512
"""Items that are kept for who asks again: for a call when it starts, and when it has ended."""


def packed(items: list[T]) -> Sequence[T]:
    """The same items."""
    return items if len(items) < MANY else PackedItems(items)


def places(items: Sequence[T], wanted: Callable[[T], bool]) -> Sequence[int]:
    """Of those that are wanted."""
    return array("I", (index for index, item in enumerate(items) if wanted(item)))


class _Items(Sequence[T], Generic[T]):
    """Items of which each is asked for by its place."""

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


class PackedBytes(_Items[bytes]):
    """Bytes, which need no making: what is answered to calls that cannot run, say. They are cut out of one
    text. Invariants: as of PackedItems."""

    __slots__ = ("_ends", "_text")

    def __init__(self, items: Sequence[bytes]) -> None:
        self._text = b"".join(items)
        self._ends = array("Q", accumulate(map(len, items)))

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[bytes]:
        begin = 0
        for end in self._ends:
            yield self._text[begin:end]
            begin = end

    def _item(self, place: int) -> bytes:
        return self._text[self._ends[place - 1] if place else 0 : self._ends[place]]


class Chosen(_Items[T]):
    """Items by their places elsewhere, none before it is asked for."""

    __slots__ = ("_find", "_places")

    def __init__(self, places: Sequence[int], find: Callable[[int], T]) -> None:
        self._places = places
        self._find = find

    def __len__(self) -> int:
        return len(self._places)

    def _item(self, place: int) -> T:
        return self._find(self._places[place])
