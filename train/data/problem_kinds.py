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
from collections.abc import Collection
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
    r"\b(?:dis)?prove\b(?! them)|\b(?:show|explain) (?:that|why)\b|\bshow the following\b", re.IGNORECASE
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


_PATTERNS: Final = {"figure": _FIGURE, "proof": _PROOF, "choice": _CHOICE, "unanswerable": _ELSEWHERE}
