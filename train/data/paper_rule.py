"""The plain rule of the report and of its like: a problem that shares any 8 words in a row with a question.
Pure.

Words are what stands between spaces, in lower case. Questions of fewer than 8 words are invisible to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocstar.train.data.grams import GRAM
from rocstar.train.data.overlap import EvalQuestion, TaskVerdict


class PaperCheck:
    """Judges problems against questions, as OverlapCheck does; a problem is a duplicate or clean."""

    def __init__(self, questions: Sequence[EvalQuestion]) -> None:
        self._grams: dict[tuple[str, ...], int] = {}
        for number, question in enumerate(questions):
            for gram in _grams(question.text):
                self._grams.setdefault(gram, number)
        self._told: list[TaskVerdict] = []

    def add(self, text: str) -> None:
        """Take the next problem."""
        hit = next((gram for gram in _grams(text) if gram in self._grams), None)
        self._told.append(
            TaskVerdict(level="clean")
            if hit is None
            else TaskVerdict(
                level="duplicate",
                score=1.0,
                question=self._grams[hit],
                shared=" ".join(hit),
                rule="any 8 words",
            )
        )

    def overlaps(self) -> Iterator[TaskVerdict]:
        """Of each problem, in order."""
        yield from self._told


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return zip(*(words[k:] for k in range(GRAM)), strict=False)
