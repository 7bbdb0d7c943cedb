"""Words of English text: runs of letters and digits, and the tokens of the Penn Treebank. Pure, linear."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

from rocstar.train.evaluation.benchmarks.ifeval.sentences import split_sentences

_WORD = re.compile(r"\w+")
# What the original's \w takes in: with the marks of Hindi and Thai.
_FURTHER_CATEGORIES = frozenset({"Nd", "Nl", "Pc"})
_JOINERS = "\u200c\u200d"

# Marks that stand alone wherever they are; a comma or colon only where no digit follows.
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
    """Return how many runs of letters with their marks, of digits and of underscores there are."""
    if text.isascii():
        return sum(1 for _ in _WORD.finditer(text))
    return sum(is_word for is_word, _ in groupby(text, _is_of_a_word))


def _is_of_a_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category in _FURTHER_CATEGORIES or character in _JOINERS


def count_capital_words(text: str) -> int:
    """Return how many Treebank tokens have letters, all of them capital: DON'T has two."""
    return sum(token.isupper() for sentence in split_sentences(text) for token in treebank_tokens(sentence))


def treebank_tokens(sentence: str) -> list[str]:
    """Return the tokens of one sentence: marks stand alone, clitics are cut off, a last period is too."""
    text = _OPENING_QUOTE.sub("' ", sentence)
    text = _LAST_PERIOD.sub(" . ", text)
    text = _ALONE.sub(r" \g<0> ", text)
    text = f" {' '.join(text.split())} "
    text = _CLOSING_QUOTE.sub(" ' ", text)
    text = _CLITIC.sub(r" \1 ", text)
    return _JOINED.sub(_apart, text).split()


def _apart(match: re.Match[str]) -> str:
    return " ".join(["", *(part for part in match.groups() if part is not None), ""])
