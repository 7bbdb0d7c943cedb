"""Counts of uncertain tokens by class, and of the report's phrases, with intervals.

Legend: N tokens that the policy wrote.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocstar.train.reading.analysis.statistics.estimates import Floats, Lead
from rocstar.train.reading.analysis.token_classes import CLASSES, TokenClass, TurnTokens

GRAM: Final = 3
MOST_GRAMS: Final = 200_000
"""The maximum number of n-grams of a class; above it, those with a count of one are dropped."""

WORDS: Final = (
    "but before", "wait", "however", "alternatively", "actually", "let me", "double-check", "verify", "rerun",
    "re-evaluate", "the output", "the result", "the error", "fix",
)  # fmt: skip
"""The phrases that the report quotes as forking and reflection tokens, and common others."""
_PATTERNS: Final = {word: re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE) for word in WORDS}


@dataclass(slots=True)
class TokenCount:
    """The counts of one token in one class."""

    times: int = 0
    top: float = 0.0
    """The number in the top fifth."""


@dataclass(slots=True)
class PhraseCount:
    """The counts of one of WORDS after a tool's response, or elsewhere."""

    by_task: dict[str, list[bool]]
    """A list entry per trajectory with such a turn: True if it has the phrase."""
    times: int = 0
    top: float = 0.0
    """The summed membership of its first token in the top fifth."""


class PhraseCounts:
    """Counts over trajectories. Its size grows with the vocabulary, not with the trajectories."""

    def __init__(self) -> None:
        self.tokens: dict[TokenClass, defaultdict[int, TokenCount]] = {c: defaultdict(TokenCount) for c in CLASSES}
        self.grams: dict[TokenClass, Counter[tuple[int, ...]]] = {c: Counter() for c in CLASSES}
        """Runs of tokens, the first of them in the top fifth."""
        self.words: dict[tuple[str, bool], PhraseCount] = {
            (word, behind): PhraseCount(by_task={}) for word in WORDS for behind in (True, False)
        }
        """By phrase, and True for turns that answer a tool."""

    def add(self, task: str, turns: Sequence[TurnTokens], top_N: Floats) -> None:
        """Count a trajectory, whose turns have the N tokens."""
        at, has_phrase = 0, {key: False for key in self.words}
        for turn in turns:
            mine = slice(at, at + len(turn.ids))
            self._count(turn, top_N[mine])
            for word in self._phrases_of(turn, top_N[mine]):
                has_phrase[word, turn.lead != Lead.asked] = True
            at = mine.stop
        places = {turn.lead != Lead.asked for turn in turns}
        for (word, behind), seen in self.words.items():
            if behind in places:
                seen.by_task.setdefault(task, []).append(has_phrase[word, behind])

    def _count(self, turn: TurnTokens, top_U: Floats) -> None:
        ids = turn.ids.tolist()
        for k, (token, number) in enumerate(zip(ids, turn.class_U.tolist(), strict=True)):
            count = self.tokens[CLASSES[number]][token]
            count.times += 1
            count.top += float(top_U[k])
            if top_U[k] > 0.5 and k + GRAM <= len(ids):
                self.grams[CLASSES[number]][tuple(ids[k : k + GRAM])] += 1
        for name, grams in self.grams.items():
            if len(grams) > MOST_GRAMS:
                self.grams[name] = Counter({gram: n for gram, n in grams.items() if n > 1})

    def _phrases_of(self, turn: TurnTokens, top_U: Floats) -> set[str]:
        """Return the phrases of a turn, outside its calls."""
        found = set()
        for word, pattern in _PATTERNS.items():
            for match in pattern.finditer(turn.text):
                if any(start <= match.start() < end for start, end in turn.calls):
                    continue
                token = int(np.searchsorted(turn.starts_U, match.start(), side="right")) - 1
                seen = self.words[word, turn.lead != Lead.asked]
                seen.times += 1
                seen.top += float(top_U[token])
                found.add(word)
        return found
