"""A problem as words that survive another typesetting: NFKC, case, LaTeX commands and spacing. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

MASK: Final = "#"
"""Stands for a number in masked words."""

_COMMANDS: Final = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
    **dict.fromkeys(
        (
            *(
                "left",
                "right",
                "big",
                "bigg",
                "displaystyle",
                "textstyle",
                "limits",
                "quad",
                "qquad",
                "hspace",
            ),
            *(
                "text",
                "textbf",
                "textit",
                "textrm",
                "mathrm",
                "mathbf",
                "mathit",
                "mbox",
                "operatorname",
                "boxed",
            ),
            *(
                "le",
                "leq",
                "leqslant",
                "ge",
                "geq",
                "geqslant",
                "lt",
                "gt",
                "ne",
                "neq",
                "cdot",
                "times",
                "div",
            ),
            *("dots", "ldots", "cdots", "circ", "degree", "to", "rightarrow", "colon"),
        ),
        "",
    ),
}
"""What a LaTeX command becomes; another becomes its name. Nothing is left of signs that Unicode has, too."""
_SYMBOLS: Final = str.maketrans({
    "π": " pi ", "√": " sqrt ", "∞": " infty ", "∠": " angle ", "△": " triangle ", "∑": " sum ", "∏": " "
    "prod ",
    "∫": " int ", "θ": " theta ", "α": " alpha ", "β": " beta ", "γ": " gamma ", "λ": " lambda ", "ω": " "
    "omega ",
    "′": "'", "’": "'", "‘": "'", "_": " ",
})  # fmt: skip
_COMMAND: Final = re.compile(r"\\([a-z]+)")
_FIGURE: Final = re.compile(r"\[asy\].*?\[/asy\]", re.S)
_IDEOGRAPH: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD: Final = re.compile(r"\d+|[^\W\d]+")
_APOSTROPHE: Final = re.compile(r"(?<=[a-z])'(?=[a-z])")


def words_of(text: str) -> list[str]:
    """Runs of letters and of digits, in lower case; an ideograph is a word. Figures in code are left out."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if "[asy]" in text:
        text = _FIGURE.sub(" ", text)
    if not text.isascii():
        text = _IDEOGRAPH.sub(r" \g<0> ", text.translate(_SYMBOLS))
    text = _APOSTROPHE.sub("", text)
    if "\\" in text:
        text = _COMMAND.sub(_plain, text)
    return _WORD.findall(text.replace("_", " "))


def _plain(command: re.Match[str]) -> str:
    return f" {_COMMANDS.get(command[1], command[1])} "


def masked(words: Sequence[str]) -> list[str]:
    """The same with MASK in the place of each number."""
    return [MASK if word.isdecimal() else word for word in words]


def numbers_in(words: Sequence[str]) -> frozenset[str]:
    """The numbers among words, without leading zeros."""
    return frozenset(word.lstrip("0") or "0" for word in words if word.isdecimal())
