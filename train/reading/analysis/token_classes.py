"""The class of each token of a trajectory, from the record's segments and turns.

    turn ──> its lead: the kind of its input     by the segment before it, and the results of the turn before
         └─> its calls and its answer            by the engine's parser and the judge's tag

Records do not say which tokens of a turn are a call, so the engine's parser runs again and its characters are
mapped to tokens.

Legend: N tokens that the policy wrote, U tokens of one turn.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocstar.engine.chat.toolcalls import DEFAULT, tool_call_spans
from rocstar.engine.types import Origin, Segment, Trajectory
from rocstar.train.reading.analysis.statistics.estimates import Floats, Lead

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


Decode = Callable[[Sequence[int]], str]
"""Text of ids, with special tokens."""
Ints = NDArray[Any]

PART: Final = "\ufffd"
ANSWER: Final = "<answer>"
"""The judge's tag (train/tasks/verify.py)."""


class TokenClass(StrEnum):
    """The class of a token: the first that applies."""

    first_of_turn = "first_of_turn"
    """Among the first tokens of a turn that answers no tool."""
    after_ok = "after_ok"
    """Among the first tokens after tool results that are all good."""
    after_error = "after_error"
    """Among the first tokens after tool results with at least one error."""
    call = "call"
    """In a tool call, or after the last one of its turn."""
    answer = "answer"
    """From the last answer block of a turn to its end."""
    reason_before_call = "reason_before_call"
    """The other tokens of a turn that calls a tool."""
    reason_before_answer = "reason_before_answer"
    """The other tokens of a turn that calls none."""


CLASSES: Final = tuple(TokenClass)
BY_LEAD: Final = {
    Lead.asked: TokenClass.first_of_turn,
    Lead.ok: TokenClass.after_ok,
    Lead.error: TokenClass.after_error,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """One turn of the policy as text, with the positions of its tokens."""

    first: int
    """The index of its first token among the trajectory's ids."""
    ids: Ints
    lead: Lead
    text: str
    starts_U: Ints
    """Characters before each token."""
    class_U: Ints
    """Indices into CLASSES."""
    calls: tuple[tuple[int, int], ...]
    """Characters [start, end) of its tool calls."""


def split_turns(trajectory: Trajectory, decode: Decode, *, window: int) -> Iterator[TurnTokens]:
    """Yield the turns in order; together they have every token that the policy wrote.

    `window`: the number of first tokens of a turn.
    """
    turns = {turn.start: turn for turn in trajectory.turns}
    results: tuple[bool, ...] = ()
    """True for each failed call of the previous turn."""
    before: Segment | None = None
    for segment in trajectory.segments:
        if segment.origin is Origin.policy:
            is_answer = before is not None and before.origin is Origin.tool
            lead = Lead.asked if not is_answer else Lead.error if any(results) else Lead.ok
            ids = trajectory.ids[segment.start : segment.end]
            text, starts_U = token_starts(ids.tolist(), decode)
            turn = turns.get(segment.start)
            calls = tool_call_spans(text, turn.form if turn else DEFAULT)
            yield TurnTokens(
                first=segment.start,
                ids=ids,
                lead=lead,
                text=text,
                starts_U=starts_U,
                class_U=_classes(text, calls, starts_U, lead, window),
                calls=calls,
            )
            results = tuple(result.is_error for result in turn.results) if turn else ()
        before = segment


def _classes(text: str, calls: Sequence[tuple[int, int]], starts_U: Ints, lead: Lead, window: int) -> Ints:
    ends_U = np.append(starts_U[1:], len(text))
    rest = TokenClass.reason_before_call if calls else TokenClass.reason_before_answer
    class_U = np.full(len(starts_U), CLASSES.index(rest))
    answer = text.rfind(ANSWER)
    if not calls and answer >= 0:
        class_U[ends_U > answer] = CLASSES.index(TokenClass.answer)
    for k, (start, end) in enumerate(calls):
        is_last = k == len(calls) - 1
        class_U[(ends_U > start) & (is_last | (starts_U < end))] = CLASSES.index(TokenClass.call)
    class_U[:window] = CLASSES.index(BY_LEAD[lead])
    return class_U


def token_starts(ids: Sequence[int], decode: Decode) -> tuple[str, Ints]:
    """Return the text of ids, and the number of characters before each of them.

    Ids are decoded one by one. Bytes that form a character only together are decoded together and count for
    the first of them. If a tokenizer's text is not the concatenation of its tokens (SentencePiece drops a
    leading space), each token is decoded after its predecessor.
    """
    text = decode(list(ids))
    lengths: list[int] = []
    held: list[int] = []
    for token in ids:
        held.append(token)
        piece = decode(held)
        if PART in piece and len(held) < 4:  # a character of UTF-8 has at most four bytes
            continue
        lengths += [len(piece), *[0] * (len(held) - 1)]
        held = []
    if held:
        lengths += [len(decode(held)), *[0] * (len(held) - 1)]
    if sum(lengths) != len(text):
        pairs = itertools.pairwise(ids)
        lengths = [len(decode([one])) for one in ids[:1]]
        lengths += [len(decode([a, b])) - len(decode([a])) for a, b in pairs]
    starts = np.cumsum([0, *lengths])[:-1] if lengths else np.zeros(0, int)
    return text, np.clip(starts, 0, len(text))
