"""Which problems are questions of an evaluation set, as they are, nearly, or with other numbers. Pure.

    level      when
    duplicate  equal words, or score above 0.6
    near       score above 0.45: for a person to look at
    twin       as a duplicate once numbers are masked, and fewer than half of the question's numbers are there
    clean      else

Score of a problem against a question: the smaller of two shares of the question's words, of all words and of
those in rare grams, that lie in grams which the problem has too. A gram that more than BOILERPLATE distinct
problems have is no evidence: "where m and n are relatively prime positive integers" is nobody's question.

Two passes over what was found, not over the problems: how rare a gram is, is known only behind the last of
them. The order of problems does not matter.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rocstar.train.data.grams import GramIndex, gram_size
from rocstar.train.data.words import masked, numbers_in, words_of

Level = Literal["duplicate", "near", "twin", "clean"]
LEVELS: Final[tuple[Level, ...]] = ("duplicate", "near", "twin", "clean")

DUPLICATE: Final = 0.6
NEAR: Final = 0.45
BOILERPLATE: Final = 5
SAME_NUMBERS: Final = 0.5
TINY: Final = 12
"""A question of fewer words is a part of much that is longer: such a problem is near at most."""
STRETCH: Final = 2.0
TINY_EXTRA: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalQuestion:
    """One item of an evaluation set."""

    file: str
    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerdict:
    """What became of a problem."""

    level: Level
    score: float = 0.0
    question: int | None = None
    """The place of the question that it overlaps most; None of a clean one."""
    shared: str = ""
    """The longest stretch of the question's words that it shares."""
    rule: str = ""
    """equal, coverage, equal but for numbers, coverage but for numbers."""


@dataclass(slots=True)
class _Side:
    """Words of all questions in one form, plain or masked, and how often their grams were met."""

    questions: list[list[str]]
    index: GramIndex = field(init=False)
    equal: dict[tuple[str, ...], int] = field(init=False)
    frequency: array[int] = field(init=False)
    coverable: list[int] = field(init=False)
    seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.index = GramIndex(self.questions)
        self.equal = {tuple(words): k for k, words in reversed(list(enumerate(self.questions))) if words}
        self.frequency = array("I", bytes(4 * len(self.index.questions)))
        self.coverable = []

    def meet(self, words: Sequence[str]) -> tuple[int | None, array[int]]:
        """The question that these words are, and the grams that they have of any."""
        hits = self.index.found(words)
        if hits:
            digest = hashlib.blake2b(
                "\0".join(words).encode("utf-8", "surrogatepass"), digest_size=8
            ).digest()
            if digest not in self.seen:  # a problem that is there a hundred times is no boilerplate
                self.seen.add(digest)
                for hit in hits:
                    self.frequency[hit] += 1
        return self.equal.get(tuple(words)), hits

    def close(self) -> None:
        """Count the words of each question that lie in rare grams, now that these are known."""
        self.coverable = [
            len(self._covered(question, lambda gram: self.frequency[gram] <= BOILERPLATE))
            for question in range(len(self.questions))
        ]

    def scores(self, hits: array[int]) -> dict[int, tuple[float, set[int]]]:
        """By question with a rare gram in common: the score, and the shared positions."""
        rare = {hit for hit in hits if self.frequency[hit] <= BOILERPLATE}
        shared, found = set(hits), {}
        for question in {question for hit in rare for question in self.index.questions[hit]}:
            positions = self._covered(question, shared.__contains__)
            of_all = len(positions) / self.index.lengths[question]
            of_rare = len(self._covered(question, rare.__contains__)) / self.coverable[question]
            found[question] = min(of_all, of_rare), positions
        return found

    def _covered(self, question: int, chosen: Callable[[int], bool]) -> set[int]:
        """Positions of a question's words that lie in its chosen grams."""
        size = gram_size(self.index.lengths[question])
        positions: set[int] = set()
        for first, gram in enumerate(self.index.of_question[question]):
            if chosen(gram):
                positions.update(range(first, first + size))
        return positions


@dataclass(frozen=True, slots=True)
class _Met:
    """What was found of a problem, until it can be judged."""

    length: int
    numbers: frozenset[str]
    equal: int | None
    hits: array[int]
    equal_masked: int | None
    hits_masked: array[int]


class OverlapCheck:
    """Judges problems against questions. Feed all problems with `add`, then read `overlaps` once.

    Invariant: what a problem is told does not depend on the order of the problems, and there is one verdict
    for each, in the order in which they came.
    """

    def __init__(self, questions: Sequence[EvalQuestion]) -> None:
        words = [words_of(question.text) for question in questions]
        self._plain, self._masked = _Side(words), _Side([masked(each) for each in words])
        self._numbers = [numbers_in(each) for each in words]
        self._met: dict[int, _Met] = {}
        self._count = 0

    def add(self, text: str) -> None:
        """Take the next problem."""
        words = words_of(text)
        without = masked(words)
        equal, hits = self._plain.meet(words)
        equal_masked, hits_masked = self._masked.meet(without)
        if equal is not None or equal_masked is not None or hits or hits_masked:
            numbers = numbers_in(words)
            self._met[self._count] = _Met(len(words), numbers, equal, hits, equal_masked, hits_masked)
        self._count += 1

    def overlaps(self) -> Iterator[TaskVerdict]:
        """Of each problem, in order."""
        self._plain.close()
        self._masked.close()
        for number in range(self._count):
            met = self._met.pop(number, None)
            yield TaskVerdict(level="clean") if met is None else self._judged(met)

    def _judged(self, met: _Met) -> TaskVerdict:
        if met.equal is not None:
            return self._told("duplicate", 1.0, met.equal, None, "equal", self._plain)
        if met.equal_masked is not None and self._differs(met, met.equal_masked):
            return self._told("twin", 1.0, met.equal_masked, None, "equal but for numbers", self._masked)
        best = self._best(met, self._plain, met.hits)
        if best is not None and best[0] > DUPLICATE and not self._differs(met, best[1]):
            level: Level = "near" if self._is_part(met, best[1]) else "duplicate"
            return self._told(level, best[0], best[1], best[2], "coverage", self._plain)
        twin = self._best(met, self._masked, met.hits_masked)
        if (
            twin is not None
            and twin[0] > DUPLICATE
            and self._differs(met, twin[1])
            and not self._is_part(met, twin[1])
        ):
            return self._told("twin", twin[0], twin[1], twin[2], "coverage but for numbers", self._masked)
        if best is not None and best[0] > NEAR and not self._is_part(met, best[1]):
            return self._told("near", best[0], best[1], best[2], "coverage", self._plain)
        return TaskVerdict(level="clean", score=best[0] if best else 0.0)

    def _best(self, met: _Met, side: _Side, hits: array[int]) -> tuple[float, int, set[int]] | None:
        """The highest score, its question and the shared positions; of equals the first question."""
        scores = side.scores(hits)
        if not scores:
            return None
        question = min(scores, key=lambda q: (-scores[q][0], q))
        return scores[question][0], question, scores[question][1]

    def _differs(self, met: _Met, question: int) -> bool:
        """Whether the numbers of a question are others in the problem."""
        asked = self._numbers[question]
        return bool(asked) and len(asked & met.numbers) < SAME_NUMBERS * len(asked)

    def _is_part(self, met: _Met, question: int) -> bool:
        """Whether a tiny question may occur in the problem by chance."""
        length = self._plain.index.lengths[question]
        return length < TINY and met.length > STRETCH * length + TINY_EXTRA

    def _told(
        self, level: Level, score: float, question: int, shared: set[int] | None, rule: str, side: _Side
    ) -> TaskVerdict:
        words = side.questions[question]
        run = range(len(words)) if shared is None else _longest_run(shared)
        text = " ".join(words[k] for k in run)
        return TaskVerdict(level=level, score=round(score, 4), question=question, shared=text, rule=rule)


def _longest_run(positions: set[int]) -> range:
    """The longest stretch of neighbours, the first of equals."""
    best = range(0)
    for start in sorted(positions):
        if start - 1 not in positions:
            end = start
            while end in positions:
                end += 1
            best = max(best, range(start, end), key=len)
    return best
