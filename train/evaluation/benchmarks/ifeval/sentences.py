"""Sentences of English text, by the decision procedure of Punkt with a short table of its own. Pure, linear.

    text ──chunks between whitespace──> the last candidate of each ──tokens around it──> a boundary, or none
         ──quotes and brackets behind a boundary join the sentence that they close──> sentences

Punkt (Kiss and Strunk, Computational Linguistics 32, 2006) learns which words are abbreviations and which are
written with a capital only where a sentence begins. The original checker loads what was learned from a
newspaper of the 1980s; `english` holds the abbreviations and words of everyday use that behave alike there.
benchmarks/ifeval_against_upstream.py counts where the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rocstar.train.evaluation.benchmarks.ifeval.english import (
    ABBREVIATIONS,
    NOT_BEHIND_A_NUMBER,
    ORDINARY,
    STARTERS,
)

_ENDS = ".?!"
_NO_WORD_HOLDS = frozenset(")\";}]*:@'({[?!‘’“”«»")
_NO_WORD_BEGINS = frozenset('("`{[:;&#*@)}]-,')
_PUNCTUATION = frozenset(";:,.!?")
_SEVERAL = re.compile(r"-{2,}|\.{2,}")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_CHUNK = re.compile(r"\S+")
_CLOSERS = re.compile(r"[\"')\]}‘’“”«»]++(?:\s+|$)|[\"')\]}‘’“”«»]+(?=--)")


def count_sentences(text: str) -> int:
    """Return how many sentences there are."""
    return sum(1 for _ in split_sentences(text))


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences. Whitespace between two belongs to neither; none is empty."""
    pieces = list(_pieces(text))
    skipped = 0
    for number, (start, end) in enumerate(pieces):
        start += skipped
        skipped = 0
        if number + 1 < len(pieces):
            following_start, following_end = pieces[number + 1]
            closers = _CLOSERS.match(text, following_start, following_end)
            if closers is not None:
                skipped = closers.end() - following_start
                yield text[start : following_start + len(closers.group().rstrip())]
                continue
        if start < end:
            yield text[start:end]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield [start, end) between boundaries, before closing marks are moved."""
    start = 0
    chunks = [(match.start(), match.end()) for match in _CHUNK.finditer(text)]
    line_start = 0
    for number, (begin, end) in enumerate(chunks):
        if number == 0 or "\n" in text[chunks[number - 1][1] : begin]:
            line_start = begin
        following = chunks[number + 1] if number + 1 < len(chunks) else None
        for at in _candidates(text, begin, end, is_last=following is None):
            if at + 1 < end:
                context, resume = [text[begin : at + 2]], at + 1
            else:
                assert following is not None
                context, resume = [text[begin:end], text[slice(*following)]], following[0]
            tokens = [token for part in context for token in _tokens(part)]
            if _ends_within(tokens, begins_line=begin == line_start):
                yield start, at + 1
                start = resume
    yield start, len(text.rstrip())


def _candidates(text: str, begin: int, end: int, *, is_last: bool) -> list[int]:
    """Return where a sentence may end in a chunk: at its last sign that may, and at its first character."""
    found = [
        at
        for at in range(begin, end)
        if text[at] in _ENDS and (not is_last if at == end - 1 else text[at + 1] in _NO_WORD_HOLDS)
    ]
    return found[-1:] if len(found) < 2 or found[0] != begin else [begin, found[-1]]


def _tokens(chunk: str) -> Iterator[str]:
    """Yield words and marks of a text without whitespace; a period stays with its word."""
    at = 0
    while at < len(chunk):
        several = _SEVERAL.match(chunk, at)
        if several is not None:
            end = several.end()
        else:
            end = at + 1
            if chunk[at] not in _NO_WORD_BEGINS:
                while not _word_ends(chunk, end):
                    end += 1
        yield chunk[at:end]
        at = end


def _word_ends(chunk: str, at: int) -> bool:
    if at < len(chunk) and chunk[at] == ",":
        at += 1
    return at == len(chunk) or chunk[at] in _NO_WORD_HOLDS or chunk.startswith(("--", ".."), at)


def _ends_within(tokens: Sequence[str], *, begins_line: bool) -> bool:
    """Whether one of the tokens, the last excepted, ends a sentence."""
    return any(
        _ends(token, following, begins_line=begins_line and number == 0)
        for number, (token, following) in enumerate(pairwise(tokens))
    )


def _ends(token: str, following: str, *, begins_line: bool) -> bool:
    """Whether a sentence ends with `token`."""
    if token in _ENDS and token != ".":
        return True
    if not token.endswith("."):
        return False
    word = token[:-1].lower()
    next_word = following.lower().removesuffix(".") or following
    if _NUMBER.fullmatch(token):
        begins = _begins(following)
        return begins is not False and next_word not in NOT_BEHIND_A_NUMBER
    if len(token) == 2 and (token[0].isalpha() or token[0] == "_"):
        return word not in ABBREVIATIONS and _ends_initial(following, begins_line=begins_line)
    is_several = token.endswith("..")
    if is_several or word in ABBREVIATIONS or word.rpartition("-")[2] in ABBREVIATIONS:
        return _begins(following) is True
    return True


def _ends_initial(following: str, *, begins_line: bool) -> bool:
    """Whether a letter with a period ends a sentence: that of a list does, that of a name does not."""
    begins = _begins(following)
    if begins is not None:
        return begins
    return begins_line or not following[0].isupper() or following.lower() in ORDINARY


def _begins(word: str) -> bool | None:
    """Whether a sentence begins with `word`, by its case alone; None where that tells nothing."""
    if word in _PUNCTUATION:
        return False
    if word[0].isupper() and word.lower() in STARTERS:
        return True
    return False if word[0].islower() else None
