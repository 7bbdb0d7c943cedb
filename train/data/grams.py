"""An index of the questions' word n-grams, in which a problem is looked up in microseconds.

A question of LONG words or more is known by its 8-grams, a shorter one by its 4-grams: with 8-grams one
changed word in the middle of 15 would hide all of them.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, TypeVar

T = TypeVar("T")

GRAM: Final = 8
SHORT_GRAM: Final = 4
LONG: Final = 20


def gram_size(num_words: int) -> int:
    """Return the number of words in a gram of a question."""
    return GRAM if num_words >= LONG else SHORT_GRAM


class GramIndex:
    """Invariant: `found(words)` has every position of the words at which a gram of a question begins."""

    def __init__(self, questions: Sequence[Sequence[str]]) -> None:
        self._words: dict[str, int] = {}
        self._grams: dict[int, dict[tuple[int, ...], int]] = {GRAM: {}, SHORT_GRAM: {}}
        # Nearly every gram is of one question, and a set for each would be most of the index.
        self.first_question = array("I")
        """By gram: the first question that has it."""
        self.more_questions: dict[int, set[int]] = {}
        """By gram: the others."""
        self.of_question: list[array[int]] = []
        """The grams of each question, by the position of their first word."""
        self.lengths = [len(words) for words in questions]
        for number, words in enumerate(questions):
            size = gram_size(len(words))
            grams = self._grams[size]
            ids = [self._words.setdefault(word, len(self._words) + 1) for word in words]
            row = array("I")
            for gram in grams_of(ids, size):
                known = grams.setdefault(gram, len(self.first_question))
                if known == len(self.first_question):
                    self.first_question.append(number)
                elif self.first_question[known] != number:
                    self.more_questions.setdefault(known, set()).add(number)
                row.append(known)
            self.of_question.append(row)

    @property
    def num_grams(self) -> int:
        return len(self.first_question)

    def found(self, words: Sequence[str]) -> list[tuple[int, int, int]]:
        """Return each gram in some words: its number, the position of its first word, and its size."""
        ids = list(map(self._words.get, words, repeat(0)))
        return [
            (gram, first, size)
            for size, grams in self._grams.items()
            if grams
            for first, gram in enumerate(map(grams.get, grams_of(ids, size)))
            if gram is not None
        ]

    def number_of(self, words: Sequence[str]) -> int | None:
        """Return the number of the gram with these words, or None."""
        return self._grams[len(words)].get(tuple(map(self._words.get, words, repeat(0))))


def grams_of(words: Sequence[T], size: int) -> Iterable[tuple[T, ...]]:
    """Return the words of each place with the `size` - 1 that follow."""
    return zip(*(words[k:] for k in range(size)), strict=False)


class DistinctCounts:
    """Counts the distinct numbers that were added to each of `size` places, up to `most`.

    Invariant: `count(place)` is the smaller of `most` and the number of distinct numbers added there, in
    any order and however often. Memory holds `size` x `most` numbers.
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
        """Return the number of distinct numbers that were added to a place, at most `most`."""
        return self._counts[place]
