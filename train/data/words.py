"""A problem as words that survive another typesetting: NFKC, case, LaTeX commands and spacing. Pure.

Overlap is measured in words alone; words with signs decide whether two problems are one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

MASK: Final = "#"
"""Stands for a number in masked words."""

_RENAMED: Final = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
}
_TYPESETTING: Final = (
    *("left", "right", "big", "bigg", "displaystyle", "textstyle", "limits", "quad", "qquad", "hspace"),
    *("text", "textbf", "textit", "textrm", "mathrm", "mathbf", "mathit", "mbox", "operatorname", "boxed"),
)
_SIGNS: Final = {
    **dict.fromkeys(("le", "leq", "leqslant"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("dots", "ldots", "cdots"), ""),
    **dict.fromkeys(("circ", "degree"), "°"),
    **dict.fromkeys(("to", "rightarrow"), "→"),
    **{"lt": "<", "gt": ">", "cdot": "*", "times": "*", "div": "÷", "colon": ":"},
}
"""Commands that are signs; a sign is no word."""
_COMMANDS: Final = {**_RENAMED, **dict.fromkeys((*_TYPESETTING, *_SIGNS), "")}
"""Replacements of LaTeX commands; others become their names. Signs that exist in Unicode are removed."""
_SYMBOLS: Final = str.maketrans({
    "π": " pi ", "√": " sqrt ", "∞": " infty ", "∠": " angle ", "△": " triangle ", "∑": " sum ", "∏": " "
    "prod ",
    "∫": " int ", "θ": " theta ", "α": " alpha ", "β": " beta ", "γ": " gamma ", "λ": " lambda ", "ω": " "
    "omega ",
    "′": "'", "’": "'", "‘": "'", "_": " ",
})  # fmt: skip
_COMMAND: Final = re.compile(r"\\([a-z]+)")
FIGURE: Final = re.compile(r"\[asy\].*?\[/asy\]", re.S)
"""A figure in code."""
_IDEOGRAPH: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD: Final = re.compile(r"\d+|[^\W\d]+")
_ASCII_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
"""The same of lower-case text in ASCII, in half the time."""
_APOSTROPHE: Final = re.compile(r"(?<=[a-z])'(?=[a-z])")
_SIGNED: Final = {**_RENAMED, **dict.fromkeys(_TYPESETTING, ""), **_SIGNS}
_SAME_SIGNS: Final = str.maketrans({
    **dict.fromkeys("−–‐‑", "-"), **dict.fromkeys("·⋅×∗", "*"), "⩽": "≤", "⩾": "≥",
})  # fmt: skip
_DELIMITERS: Final = re.compile(r"\\[()\[\]]|\$")
_SIGN_OR_WORD: Final = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+|[^\w\s.,;:?\"`{}\\~&]")


def words_of(text: str) -> list[str]:
    """Runs of letters and of digits, in lower case; an ideograph is a word. Figures in code are left out."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if "[asy]" in text:
        text = FIGURE.sub(" ", text)
    if not text.isascii():
        text = _IDEOGRAPH.sub(r" \g<0> ", text.translate(_SYMBOLS))
    if "'" in text:
        text = _APOSTROPHE.sub("", text)
    if "\\" in text:
        text = _COMMAND.sub(_plain, text)
    return _ASCII_WORD.findall(text) if text.isascii() else _WORD.findall(text.replace("_", " "))


def _plain(command: re.Match[str]) -> str:
    return f" {_COMMANDS.get(command[1], command[1])} "


def signed_words_of(text: str) -> list[str]:
    """The same with signs: "3 + 4" is not "3 - 4" and f(x) no f[x], while typesetting, punctuation and braces
    say nothing. Figures in code stay: they may be all in which two problems differ.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _DELIMITERS.sub(" ", text)
    if not text.isascii():
        text = _IDEOGRAPH.sub(r" \g<0> ", text.translate(_SYMBOLS).translate(_SAME_SIGNS))
    text = _APOSTROPHE.sub("", text)
    if "\\" in text:
        text = _COMMAND.sub(_signed, text)
    return _SIGN_OR_WORD.findall(text.replace("_", " ").replace("...", " "))


def _signed(command: re.Match[str]) -> str:
    return f" {_SIGNED.get(command[1], command[1])} "


def masked(words: Sequence[str]) -> list[str]:
    """The same with MASK in the place of each number."""
    return [MASK if word.isdecimal() else word for word in words]


def numbers_in(words: Sequence[str]) -> frozenset[str]:
    """The numbers among words, without leading zeros."""
    return frozenset(word.lstrip("0") or "0" for word in words if word.isdecimal())
