"""Questions that a judge of one answer cannot use, detected by phrases; each verdict has its phrase. Pure.

    figure        shown in a picture that the text lacks, or drawn in code
    proof         asks to prove or to explain, and for nothing else: no answer can be compared
    multi_part    asks several things, of which one answer is known
    choice        asks for one of listed choices
    unanswerable  asks nothing, or about a problem or a table that is not there

The rules are for English, and rather keep a question than drop it: lettered lists of conditions are not
parts, a graph that the text defines is not a figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["figure", "proof", "multi_part", "choice", "unanswerable"]
KINDS: Final[tuple[Kind, ...]] = ("figure", "proof", "multi_part", "choice", "unanswerable")
SHOWN_CHARACTERS: Final = 120

_PICTURE = r"(?:figures?|diagrams?|pictures?|images?|drawings?|illustrations?|sketch|charts?)"
_GIVEN = r"(?:(?:following|accompanying|attached|adjoining|given) )?"
_VALUE = (
    r"find|determine|compute|calculate|evaluate|what|how many|how much|which|solve|simplify|express|give|"
    r"write|state|factor|expand|convert|estimate|count|list|name"
)
_REQUEST = rf"(?:{_VALUE}|who|whose|when|where|why|how|prove|show|is|are|does|do|can|sketch|draw|explain)"
_ASKS = re.compile(
    rf"\?|\b(?:{_VALUE}|how|who|when|where|why|prove|show|answer|enter|provide|report|output|submit|sum|"
    r"approximate|round|maximi[sz]e|minimi[sz]e|equals?|equal to|obtain|derive|verify|identify|choose|select|"
    r"rationali[sz]e|complete|figure out|work out|rewrite|reduce|multiply|divide|subtract|add|arrange|"
    r"integrate|differentiate|fill in|put)\b|_{2,}|\\underline|\b(?:is|are|be)\s*[:.]?\s*$|[=:]\s*\$?\s*$",
    re.IGNORECASE,
)
_WORDS_OF_ENGLISH = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_FIGURE = re.compile(
    r"\[asy\]|\\includegraphics|\\begin\{(?:tikzpicture|asy)\}|!\[[^\]]*\]\(|<img\b|\[img|"
    r"\b(?:https?://|www\.)\S+\.(?:png|jpe?g|gif|svg)\b|"
    rf"\b(?:in|see|from|on|to|of) (?:the |this |each )?{_GIVEN}{_PICTURE} "
    r"(?:below|above|shown|at (?:the )?(?:right|left)|to the (?:right|left)|here)\b|"
    rf"\b(?:in|see) (?:the|this) {_GIVEN}{_PICTURE}\b|"
    rf"\b(?:the|this) {_GIVEN}{_PICTURE} (?:below|above|shows?|at (?:the )?right)\b|"
    r"\b(?:as|is|are) (?:shown|pictured|depicted|illustrated)(?: (?:below|above|here)\b|\s*[.,:])|"
    rf"\b(?:shown|pictured|depicted|illustrated) (?:in|by|on) (?:the |this )?{_GIVEN}{_PICTURE}\b|"
    rf"\brefer to (?:the|this) (?:provided )?{_PICTURE}\b",
    re.IGNORECASE,
)
_PROOF = re.compile(
    r"\b(?:dis)?prove\b(?! them)|\b(?:show|explain) (?:that|why)\b|\bshow the following\b",
    re.IGNORECASE,
)
_ASKS_A_VALUE = re.compile(rf"\b(?:{_VALUE})\b", re.IGNORECASE)
_PARTS = re.compile(
    r"(?:^|\s|\*)(?:\(?(?P<letter>[a-e])\)|\((?P<roman>i{1,3}|iv)\)|"
    r"part (?P<part>[a-c1-3])\b[:.)]?|\((?P<number>[1-5])\))[\s*:]*"
    rf"(?:(?:if|for|hence|then|also|now|let)\b[^?.]{{0,120}}?[,.]?\s+)?{_REQUEST}\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(
    r"\(\s*A\s*\).{1,400}?\(\s*B\s*\).{1,400}?\(\s*C\s*\)|\bA[.)]\s.{1,200}?\bB[.)]\s.{1,200}?\bC[.)]\s|"
    r"\b(?i:which (?:one )?of the following)\b",
    re.DOTALL,
)
_ELSEWHERE = re.compile(
    r"\b(?:in|of|from|to|see) (?:the )?(?:previous|preceding|last|above|next) "
    r"(?:problem|question|exercise|part|example)\b|"
    r"\bthe (?:previous|preceding) (?:problem|question|exercise|part)\b|"
    r"\b(?:problem|question|exercise) \d+(?:\.\d+)* (?:above|below|of the previous)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KindFound:
    """The kind of a question, and its phrase."""

    kind: Kind
    phrase: str


def kind_of(question: str, among: Collection[Kind] = KINDS) -> KindFound | None:
    """The first of KINDS, of those that are asked for, that a question is; None of a plain one."""
    return next((found for kind in KINDS if kind in among and (found := _FINDERS[kind](question))), None)


def _by(kind: Kind, pattern: re.Pattern[str]) -> Callable[[str], KindFound | None]:
    def find(question: str) -> KindFound | None:
        found = pattern.search(question)
        return KindFound(kind, _shown(found[0])) if found else None

    return find


def _unanswerable(question: str) -> KindFound | None:
    if found := _ELSEWHERE.search(question):
        return KindFound("unanswerable", _shown(found[0]))
    # A formula alone is to be evaluated; of another language nothing is known.
    says_little = not _WORDS_OF_ENGLISH.search(question) or _IDEOGRAPH.search(question)
    return None if says_little or _ASKS.search(question) else KindFound("unanswerable", "it asks nothing")


def _proof(question: str) -> KindFound | None:
    """Only a proof: "find, with proof" asks for a value."""
    found = _PROOF.search(question)
    return KindFound("proof", _shown(found[0])) if found and not _ASKS_A_VALUE.search(question) else None


def _multi_part(question: str) -> KindFound | None:
    parts = _several_parts(question)
    return KindFound("multi_part", parts) if parts else None


def _several_parts(question: str) -> str:
    """The requests of at least two parts of one lettering, of which one is its first; else ""."""
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


_FINDERS: Final[dict[Kind, Callable[[str], KindFound | None]]] = {
    "figure": _by("figure", _FIGURE),
    "proof": _proof,
    "multi_part": _multi_part,
    "choice": _by("choice", _CHOICE),
    "unanswerable": _unanswerable,
}
