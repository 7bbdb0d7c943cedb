"""Answers that are words or names: compared letter by letter, never as products of letters. Pure."""

import re

_TEXT = re.compile(r"\\text\{((?:[^{}\\]|\\ )*)\}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?")
_FACTORS = r"(?:[bcdfghjklmnpqrstvwxz]{2,3}|[abcdxyz]{2,4}|[A-Za-z])"
_DIFFERENCE = re.compile(rf"{_FACTORS}(?: ?- ?{_FACTORS})+")
_LETTERS = re.compile(r"[bcdfghjklmnpqrstvwxz]{2,3}|[b-df-hj-np-tv-z]{2}|[abcdxyz]{2,4}|[uvw]{2,3}")
_NO_PRODUCT_NAMES = """
cab bad dab dad cad add by my bay day cay cm mm km kg ml mg lb ft hr pm mr dr st nd rd th nth gcd lcm mph
"""
_NO_PRODUCTS = frozenset(_NO_PRODUCT_NAMES.split())
"""Words, units and abbreviations that have the letters of a product."""
_PRODUCT = re.compile(r"\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*")
_SHOUTED = frozenset({"yes", "no", "true", "false", "even", "odd", "none", "all", "both", "neither"})


def unwrapped(text: str) -> str:
    """Return a clean text without `\\text{}`, its content kept."""
    return " ".join(_TEXT.sub(r"\1", text).split())


def is_words(text: str) -> bool:
    """True if a clean text has only letters: words, a name, a letter, with or without `\\text{}`.

    Letters around a minus are a difference.
    """
    if not _WORDS.fullmatch(unwrapped(text)):
        return False
    return "-" not in text or not _DIFFERENCE.fullmatch(text)


def is_product(text: str) -> bool:
    """True if letters are a product of variables: `mn` and `a b c`, but not `AB`, `no` and `\\text{ab}`."""
    letters = text.replace(" ", "")
    return bool(_LETTERS.fullmatch(letters)) and len(set(letters)) == len(letters) and letters not in _NO_PRODUCTS


def words_equal(prediction: str, truth: str) -> bool:
    """Return True if both have equal words, without regard to spaces and the case of ordinary words.

    Letters keep their order. Case distinguishes `b` from `B` and the points `ABC` from `abc`, not `Yes` from
    `yes`.
    """
    left, right = (_letters(side) for side in (prediction, truth))
    if left == right:
        return bool(left)
    return _is_ordinary(left) and _is_ordinary(right) and left.casefold() == right.casefold()


def _letters(text: str) -> str:
    text = unwrapped(_PRODUCT.sub(" ", text)).replace(" ", "")
    # A choice is written with and without parentheses.
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _is_ordinary(word: str) -> bool:
    if word.casefold() in _SHOUTED:
        return True
    return (
        len(word) > 2
        and word.isascii()
        and (word[1:] == word[1:].lower() or (word[:1].isupper() and not word.isupper()))
    )
