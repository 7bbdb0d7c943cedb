"""The plain rule of the report: a problem that shares any 8 consecutive words with a question. Pure.

Words are separated by spaces, in lower case. Questions of fewer than 8 words are invisible to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rocstar.train.data.grams import GRAM
from rocstar.train.data.overlap import EvalQuestion, TaskVerdict


class PaperCheck:
    """Judges problems against questions, as `Check`; a problem is a duplicate or clean."""

    def __init__(self, questions: Sequence[EvalQuestion]) -> None:
        self._grams: dict[tuple[str, ...], int] = {}
        for number, question in enumerate(questions):
            for gram in _grams(question.text):
                self._grams.setdefault(gram, number)

    def meet(self, text: str, answer: str = "") -> bytes:
        """See `Check`: the first 8 words that a question has, too."""
        hit = next((gram for gram in _grams(text) if gram in self._grams), None)
        return b"" if hit is None else msgspec.msgpack.encode((self._grams[hit], " ".join(hit)))

    def count(self, met: bytes) -> None:
        """See `Check`. Here no problem says anything of another."""

    def close(self) -> None:
        """See `Check`."""

    def judge(self, met: bytes) -> TaskVerdict:
        """See `Check`."""
        if not met:
            return TaskVerdict(level="clean")
        question, shared = msgspec.msgpack.decode(met, type=tuple[int, str])
        return TaskVerdict(level="duplicate", score=1.0, question=question, shared=shared, rule="any 8 words")


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return zip(*(words[k:] for k in range(GRAM)), strict=False)
