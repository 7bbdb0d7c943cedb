"""Problems that are questions of an evaluation set: equal, nearly, or with other numbers. Pure.

    level      when
    duplicate  equal words, or score above 0.6
    near       score above 0.45: to be checked by a person
    twin       as a duplicate once numbers are masked, and fewer than half of the question's numbers are there
    clean      else

Score of a problem against a question: the smaller of two shares of the question's words, of all words and of
those in rare grams, that lie in grams which the problem has too. A gram in more than BOILERPLATE distinct
problems is no evidence: "where m and n are relatively prime positive integers" is in many questions.

The rarity of a gram is known only after the last problem. So there are two passes, and between them the
caller stores the matches of each problem, as bytes:

    problem ──meet──> bytes ──count──> how rare        close        bytes ──judge──> level

The order of problems does not matter, and memory depends on the questions alone.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from rocstar.train.data.evidence import agreement, is_telling, weight_of, without_instructions
from rocstar.train.data.grams import GRAM, SHORT_GRAM, DistinctCounts, GramIndex, gram_size, grams_of
from rocstar.train.data.words import MASK, masked, numbers_in, words_of

Level = Literal["duplicate", "near", "twin", "clean"]
LEVELS: Final[tuple[Level, ...]] = ("duplicate", "near", "twin", "clean")

DUPLICATE: Final = 0.6
NEAR: Final = 0.45
BOILERPLATE: Final = 5
AGREED: Final = 0.5
"""Enough if the answers agree."""
WHOLE: Final = 0.95
"""Share of both texts, if the answers differ."""
SAME_NUMBERS: Final = 0.75
HALF_OF_NUMBERS: Final = 0.5
"""Enough if the answers agree: 0.5 may be 1/2 in the copy."""
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
    answer: str = ""
    """empty if unknown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerdict:
    """The verdict on a problem."""

    level: Level
    score: float = 0.0
    question: int | None = None
    """The position of the question that it overlaps most; None for a clean problem."""
    shared: str = ""
    """The longest run of the question's words that it shares."""
    rule: str = ""
    """equal, coverage, equal but for numbers, coverage but for numbers."""


class Check(Protocol):
    """A rule that judges problems against questions, in two passes."""

    def meet(self, text: str, answer: str = "") -> bytes:
        """Return a problem's matches with any question; b"" if none. `answer`: empty if unknown."""

    def count(self, met: bytes) -> None:
        """Count the matches of a problem; call it for each problem before `close`."""

    def close(self) -> None:
        """Finish the counts."""

    def judge(self, met: bytes) -> TaskVerdict:
        """Return the verdict on a problem."""


class _Met(msgspec.Struct, array_like=True, frozen=True):
    """The matches of a problem, until it can be judged; grams as native unsigned integers."""

    length: int
    weight: float
    numbers: list[str]
    answer: str
    equal: int | None
    grams: bytes
    digest: int
    equal_masked: int | None
    grams_masked: bytes
    digest_masked: int


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Met)


class _Side:
    """The words of all questions in one form, plain or masked, and the number of problems with each gram."""

    def __init__(self, questions: list[list[str]]) -> None:
        self.questions, self.index = questions, GramIndex(questions)
        self.equal = {tuple(words): k for k, words in reversed(list(enumerate(questions))) if words}
        self.frequency = DistinctCounts(self.index.num_grams, most=BOILERPLATE + 1)
        self.weights = [list(map(weight_of, words)) for words in questions]
        self.totals = [sum(weights) for weights in self.weights]
        self.rare = frozenset[int]()
        self.coverable = list[float]()

    def met(self, words: Sequence[str], grams: Collection[int]) -> tuple[int | None, bytes, int]:
        """Return the question that equals these words, their grams of any question, and their hash."""
        text = "\0".join(words).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest() if grams else bytes(8)
        found = array("I", sorted(grams)).tobytes()
        return self.equal.get(tuple(words)), found, int.from_bytes(digest, "little")

    def close(self) -> None:
        """Weigh the words of each question that lie in rare grams, now that these are known."""
        count = self.frequency.count
        self.rare = frozenset(gram for gram in range(self.index.num_grams) if count(gram) <= BOILERPLATE)
        self.coverable = [self.covered(question, self.rare) for question in range(len(self.questions))]

    def scores(self, grams: array[int]) -> dict[int, float]:
        """Return the score of each question with a rare gram in common."""
        rare, found = self.rare.intersection(grams), dict[int, float]()
        shared = frozenset(grams) if len(rare) < len(grams) else rare
        questions = {self.index.first_question[gram] for gram in rare}
        for question in questions.union(*(self.index.more_questions.get(gram, ()) for gram in rare)):
            weight = self.covered(question, rare)
            of_rare = weight / self.coverable[question]
            of_all = (weight if shared is rare else self.covered(question, shared)) / self.totals[question]
            found[question] = min(of_all, of_rare)
        return found

    def covered(self, question: int, chosen: frozenset[int]) -> float:
        """Return the weight of a question's words that are in its chosen grams."""
        size, weights = gram_size(self.index.lengths[question]), self.weights[question]
        weight, end = 0.0, 0
        for first, gram in enumerate(self.index.of_question[question]):
            if gram in chosen:
                weight += sum(weights[max(first, end) : first + size])
                end = first + size
        return weight

    def covered_verdict(self, level: Level, score: float, question: int, rule: str, grams: array[int]) -> TaskVerdict:
        """Return a verdict with the longest run of the question's words in these grams."""
        size, chosen = gram_size(self.index.lengths[question]), frozenset(grams)
        best, begin, end = range(0), 0, 0
        for first, gram in enumerate(self.index.of_question[question]):
            if gram in chosen:
                begin, end = (first if first > end else begin), first + size
                best = max(best, range(begin, end), key=len)
        shared = " ".join(self.questions[question][k] for k in best)
        return TaskVerdict(level=level, score=round(score, 4), question=question, shared=shared, rule=rule)


class OverlapCheck:
    """Judges problems against questions, as `Check`.

    Invariant: a verdict depends on the set of counted problems, not on their order or repetition.
    """

    def __init__(self, questions: Sequence[EvalQuestion]) -> None:
        words = [words_of(without_instructions(question.text)) for question in questions]
        self._plain, self._masked = _Side(words), _Side([masked(each) for each in words])
        self._unmasked = array("q", [-1]) * self._masked.index.num_grams
        """By gram of masked words: the same gram of plain words if it has no number, else -1."""
        self._numbers = [numbers_in(each) for each in words]
        self._answers = [question.answer for question in questions]
        for question, asked in enumerate(self._masked.questions):
            hidden, plain = self._masked.index.of_question[question], self._plain.index.of_question[question]
            for first, (gram, same) in enumerate(zip(hidden, plain, strict=True)):
                if MASK not in asked[first : first + gram_size(len(asked))]:
                    self._unmasked[gram] = same

    def meet(self, text: str, answer: str = "") -> bytes:
        """See `Check`."""
        words = words_of(without_instructions(text))
        hidden = masked(words)
        places = self._masked.index.found(hidden)
        if not places and len(words) >= SHORT_GRAM:
            return b""  # a gram or a question in plain words is one in masked words, too
        grams = set[int]()
        for gram, first, size in places:
            plain_gram: int | None = self._unmasked[gram]
            if plain_gram == -1:
                plain_gram = self._plain.index.number_of(words[first : first + size])
            if plain_gram is not None:
                grams.add(plain_gram)
        plain = self._plain.met(words, grams)
        without = self._masked.met(hidden, {gram for gram, _, _ in places})
        if plain[0] is None and without[0] is None and not places:
            return b""
        weight, numbers = sum(map(weight_of, words)), sorted(numbers_in(words))
        return _ENCODER.encode(_Met(len(words), weight, numbers, answer, *plain, *without))

    def count(self, met: bytes) -> None:
        """See `Check`. A problem that occurs a hundred times is not boilerplate: it counts once."""
        if met:
            found = _DECODER.decode(met)
            self._plain.frequency.add(_grams(found.grams), found.digest)
            self._masked.frequency.add(_grams(found.grams_masked), found.digest_masked)

    def close(self) -> None:
        """See `Check`."""
        self._plain.close()
        self._masked.close()

    def judge(self, met: bytes) -> TaskVerdict:
        """See `Check`."""
        return self._verdict(_DECODER.decode(met)) if met else TaskVerdict(level="clean")

    def _verdict(self, met: _Met) -> TaskVerdict:
        if met.equal is not None:
            return _equal("duplicate", met.equal, "equal", self._plain)
        if met.equal_masked is not None and self._same_numbers(met, met.equal_masked) < SAME_NUMBERS:
            return _equal("twin", met.equal_masked, "equal but for numbers", self._masked)
        plain, without = _grams(met.grams), _grams(met.grams_masked)
        found = self._plain.scores(plain)
        levels = {question: self._level(met, question, score, plain) for question, score in found.items()}
        score, question = _best({q: found[q] for q, level in levels.items() if level == "duplicate"})
        if question is not None:
            return self._plain.covered_verdict("duplicate", score, question, "coverage", plain)
        twins = self._masked.scores(without)
        others = (q for q in twins if self._same_numbers(met, q) < SAME_NUMBERS and not self._is_part(met, q))
        score, question = _best({q: twins[q] for q in others})
        if question is not None and score > DUPLICATE:
            rule = "coverage but for numbers"
            return self._masked.covered_verdict("twin", score, question, rule, without)
        score, question = _best({q: found[q] for q, level in levels.items() if level == "near"})
        if question is not None:
            return self._plain.covered_verdict("near", score, question, "coverage", plain)
        return TaskVerdict(level="clean", score=_best(found)[0])

    def _level(self, met: _Met, question: int, score: float, grams: array[int]) -> Level:
        """Return the level of a problem for one question, without regard to numbers."""
        if score <= NEAR:
            return "clean"
        if self._is_part(met, question):
            return "near" if score > DUPLICATE else "clean"
        agreed = agreement(self._answers[question], met.answer)
        least, numbers = DUPLICATE, SAME_NUMBERS
        if agreed == "agree" and is_telling(met.answer) and is_telling(self._answers[question]):
            least, numbers = (AGREED, SAME_NUMBERS) if score <= DUPLICATE else (DUPLICATE, HALF_OF_NUMBERS)
        elif agreed == "differ":  # a wrong label, or another wording of the same answer
            least, numbers = WHOLE, 1.0
            score = min(score, self._plain.covered(question, frozenset(grams)) / max(met.weight, 1e-9))
        if score > least and self._same_numbers(met, question) >= numbers:
            return "duplicate"
        return "near" if score > (NEAR if agreed != "differ" else DUPLICATE) else "clean"

    def _same_numbers(self, met: _Met, question: int) -> float:
        """Return the share of a question's numbers that the problem does not replace; 1 if it has none."""
        asked = self._numbers[question]
        shared = len(asked.intersection(met.numbers))
        others = min(len(asked), len(met.numbers)) - shared
        return 1 - others / len(asked) if asked else 1.0

    def _is_part(self, met: _Met, question: int) -> bool:
        """True if a tiny question may occur in the problem by chance."""
        length = self._plain.index.lengths[question]
        return length < TINY and met.length > STRETCH * length + TINY_EXTRA


class PaperCheck:
    """The plain rule of the report: a problem that shares any 8 consecutive words is a duplicate, else clean.

    Words are separated by spaces, in lower case. Questions of fewer than 8 words are invisible to it.
    """

    def __init__(self, questions: Sequence[EvalQuestion]) -> None:
        self._grams: dict[tuple[str, ...], int] = {}
        for number, question in enumerate(questions):
            for gram in grams_of(question.text.lower().split(), GRAM):
                self._grams.setdefault(gram, number)

    def meet(self, text: str, answer: str = "") -> bytes:
        """See `Check`. The match is the first 8 words in a row that a question has too."""
        hit = next((gram for gram in grams_of(text.lower().split(), GRAM) if gram in self._grams), None)
        return b"" if hit is None else msgspec.msgpack.encode((self._grams[hit], " ".join(hit)))

    def count(self, met: bytes) -> None:
        """See `Check`. Problems do not depend on each other here."""

    def close(self) -> None:
        """See `Check`."""

    def judge(self, met: bytes) -> TaskVerdict:
        """See `Check`."""
        if not met:
            return TaskVerdict(level="clean")
        question, shared = msgspec.msgpack.decode(met, type=tuple[int, str])
        return TaskVerdict(level="duplicate", score=1.0, question=question, shared=shared, rule="any 8 words")


def _best(scores: Mapping[int, float]) -> tuple[float, int | None]:
    """Return the highest score and its question, the first of equals; (0, None) for no score."""
    question = min(scores, key=lambda q: (-scores[q], q), default=None)
    return (0.0, None) if question is None else (scores[question], question)


def _equal(level: Level, question: int, rule: str, side: _Side) -> TaskVerdict:
    text = " ".join(side.questions[question])
    return TaskVerdict(level=level, score=1.0, question=question, shared=text, rule=rule)


def _grams(data: bytes) -> array[int]:
    grams = array("I")
    grams.frombytes(data)
    return grams
