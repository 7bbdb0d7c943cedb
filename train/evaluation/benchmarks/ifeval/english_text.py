"""Sentences and words of English text, by the decision procedure of Punkt with a short table. Pure, linear.

    text ──chunks between whitespace──> the last candidate of each ──tokens around it──> a boundary, or none
         ──quotes and brackets after a boundary join the sentence that they close──> sentences

Punkt (Kiss and Strunk, Computational Linguistics 32, 2006) learns abbreviations and words that are
capitalized only at the start of a sentence. The original checker loads a model learned from a newspaper of
the 1980s; the tables here hold everyday abbreviations and words for which that model decides alike.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ABBREVIATIONS, STARTERS, ORDINARY, NOT_BEHIND_A_NUMBER = (frozenset(words.split()) for words in _WORDS.values())
"""The lists of english_text.toml, in their order."""


_ENDS = ".?!"
_NO_WORD_HOLDS = frozenset(")\";}]*:@'({[?!‘’“”«»")
_WORD_END = re.compile(rf",?(?:\Z|[{re.escape(''.join(_NO_WORD_HOLDS))}]|--|\.\.)")
_NO_WORD_BEGINS = frozenset('("`{[:;&#*@)}]-,')
_PUNCTUATION = frozenset(";:,.!?")
_SEVERAL = re.compile(r"-{2,}|\.{2,}")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_CHUNK = re.compile(r"\S+")
_CLOSERS = re.compile(r"[\"')\]}‘’“”«»]++(?:\s+|$)|[\"')\]}‘’“”«»]+(?=--)")


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
            begins_line = begin == line_start
            if any(
                _ends(token, following_token, begins_line=begins_line and k == 0)
                for k, (token, following_token) in enumerate(pairwise(tokens))
            ):
                yield start, at + 1
                start = resume
    yield start, len(text.rstrip())


def _candidates(text: str, begin: int, end: int, *, is_last: bool) -> list[int]:
    """Return possible ends of a sentence in a chunk: its last possible sign, and its first character."""
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
                end = next(_WORD_END.finditer(chunk, end)).start()
        yield chunk[at:end]
        at = end


def _ends(token: str, following: str, *, begins_line: bool) -> bool:
    """True if a sentence ends with `token`."""
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
        if word in ABBREVIATIONS:
            return False
        begins = _begins(following)
        if begins is not None:
            return begins
        # A letter with a period ends a sentence in a list, and not in a name.
        return begins_line or not following[0].isupper() or following.lower() in ORDINARY
    is_several = token.endswith("..")
    if is_several or word in ABBREVIATIONS or word.rpartition("-")[2] in ABBREVIATIONS:
        return _begins(following) is True
    return True


def _begins(word: str) -> bool | None:
    """True if a sentence begins with `word`, by its case alone; None if its case does not decide."""
    if word in _PUNCTUATION:
        return False
    if word[0].isupper() and word.lower() in STARTERS:
        return True
    return False if word[0].islower() else None


_WORD = re.compile(r"\w+")
# The original's \w includes the marks of Hindi and Thai.
_FURTHER_CATEGORIES = frozenset({"Nd", "Nl", "Pc"})
_JOINERS = "\u200c\u200d"

# Marks that are always tokens; a comma or colon only if no digit follows.
_ALONE = re.compile(r"[;@#$%&?!*«»“”‘’„`\"\[\](){}<>\u2012-\u2015]|\.{2,}|--|''|[:,](?=\D|$)")
_OPENING_QUOTE = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", re.IGNORECASE)
_LAST_PERIOD = re.compile(r"(?<=[^.])\.(?=[\])}>\"'»”’ ]*+\s*$)")
_CLOSING_QUOTE = re.compile(r"(?<=[^' ])'(?= )")
_CLITIC = re.compile(r"(?<=[^' ])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?= )")
_JOINED = re.compile(
    r"\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b|\b(more)('n)\b"
    r"|\b(wan)(na)(?=\s)|(?<= )('t)(is)\b|(?<= )('t)(was)\b",
    re.IGNORECASE,
)


def count_words(text: str) -> int:
    """Return the number of runs of letters with their marks, of digits and of underscores."""
    if text.isascii():
        return sum(1 for _ in _WORD.finditer(text))
    return sum(is_word for is_word, _ in groupby(text, _is_of_a_word))


def _is_of_a_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category in _FURTHER_CATEGORIES or character in _JOINERS


def treebank_tokens(sentence: str) -> list[str]:
    """Return the tokens of one sentence: marks, clitics and a last period are separate tokens."""
    text = _OPENING_QUOTE.sub("' ", sentence)
    text = _LAST_PERIOD.sub(" . ", text)
    text = _ALONE.sub(r" \g<0> ", text)
    text = f" {' '.join(text.split())} "
    text = _CLOSING_QUOTE.sub(" ' ", text)
    text = _CLITIC.sub(r" \1 ", text)
    return _JOINED.sub(lambda match: " ".join(["", *filter(None, match.groups()), ""]), text).split()
