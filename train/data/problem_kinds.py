"""Questions that a judge of one answer cannot use, detected by phrases; each verdict has its phrase. Pure.

    figure        shown in a picture that the text lacks, or drawn in code
    proof         asks to prove or to explain, and for nothing else: no answer can be compared
    multi_part    asks several things, of which one answer is known
    choice        asks for one of listed choices
    unanswerable  asks nothing, or about a problem or a table that is not there

The rules are for English and prefer to keep a question: lettered lists of conditions are not parts, a graph
that the text defines is not a figure.
"""

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal

Kind = Literal["figure", "proof", "multi_part", "choice", "unanswerable"]
KINDS: Final[tuple[Kind, ...]] = ("figure", "proof", "multi_part", "choice", "unanswerable")
SHOWN_CHARACTERS: Final = 120

_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _pattern(name: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compile a pattern of problem_kinds.toml."""
    text = "".join(_TABLE["patterns"][name])
    for word, pattern in _TABLE["words"].items():
        text = text.replace(f"<{word}>", "".join(pattern))
    return re.compile(text, flags)


_ASKS, _PARTS = _pattern("asks"), _pattern("parts")
_WORDS_OF_ENGLISH = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_ASKS_A_VALUE = _pattern("asks_a_value")


def kind_of(question: str, among: Collection[Kind] = KINDS) -> tuple[Kind, str] | None:
    """Return the first kind of `among` that matches a question, with its phrase; None if none does."""
    for kind in KINDS:
        if kind in among and (phrase := _phrase_of(kind, question)):
            return kind, phrase
    return None


def _phrase_of(kind: Kind, question: str) -> str:
    """Return the phrase that makes a question one of this kind, or ""."""
    if kind == "multi_part":
        return _several_parts(question)
    if found := _PATTERNS[kind].search(question):
        asks_a_value = kind == "proof" and _ASKS_A_VALUE.search(question)  # "find, with proof"
        return "" if asks_a_value else _shown(found[0])
    # A formula alone is to be evaluated; a question in another language is not recognized.
    is_english = _WORDS_OF_ENGLISH.search(question) and not _IDEOGRAPH.search(question)
    return "it asks nothing" if kind == "unanswerable" and is_english and not _ASKS.search(question) else ""


def _several_parts(question: str) -> str:
    """Return the requests of two or more parts of one lettering that includes its first, or ""."""
    found: dict[str, dict[str, str]] = {}
    for part in _PARTS.finditer(question):
        kind = part.lastgroup or ""
        found.setdefault(kind, {}).setdefault(part[kind].lower(), _shown(part[0]))
    for parts in found.values():
        if len(parts) > 1 and parts.keys() & {"a", "i", "1"}:
            return " ... ".join(list(parts.values())[:3])
    return ""


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


_PATTERNS: Final = {
    "figure": _pattern("figure"),
    "proof": _pattern("proof"),
    "choice": _pattern("choice", re.DOTALL),
    "unanswerable": _pattern("elsewhere"),
}
