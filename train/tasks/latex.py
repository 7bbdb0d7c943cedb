"""The text of an answer made comparable: what LaTeX writes in many ways and means once. Pure, stdlib only.

    "\\left( \\dfrac{1}{2},\\, 3 \\right)." ──clean──> "(\\frac{1}{2}, 3)" ──split──> ["\\frac{1}{2}", "3"]

Nothing here is evaluated, and no value changes: an answer stays what was written.
"""

from __future__ import annotations

import re

BOX = "\\boxed{"

_SAME = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r",\\!\s*", ","),
        (r"\\!", ""),
        (r"\{,\}", ","),
        (r"[\u2212\u2012\u2013]", "-"),
        (r"\\(?:left|right|[bB]ig+[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s+(?=[{0-9])", r"\\frac"),
        (r"\\(?:mbox|textnormal|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mathtt)\s*\{", r"\\text{"),
        (r"\\text\s+\{", r"\\text{"),
        (r"\\%", "%"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\u00b0|\\degree(?![A-Za-z])", r"^\\circ"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:gt)(?![A-Za-z])", ">"),
        (r"\\(?:lt)(?![A-Za-z])", "<"),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|\u2265|>=", r"\\geq "),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|\u2264|<=", r"\\leq "),
        (r"\\(?:neq|ne)(?![A-Za-z])|\u2260|!=", r"\\neq "),
        (r"\u03c0", r"\\pi "),
        (r"\u221e", r"\\infty "),
        (r"\\approxeq(?![A-Za-z])|\u2248", r"\\approx "),
        # A wrong but common habit: the command runs into the next letter.
        (r"\\q?quad", " "),
        (r"\\[,;: ]|~|\u00a0", " "),
        (r"(?<!\\)\$", ""),
        (r"\s+", " "),
    )
)
_MATH = re.compile(r"\\[(\[](.*)\\[)\]]", re.DOTALL)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def clean(text: str) -> str:
    """Return the text in one spelling: no spacing commands, sizes, dollar signs or final period."""
    text = " ".join(text.split())  # first: what follows may look at a run of spaces again and again
    if whole := _MATH.fullmatch(text.removesuffix(".")):
        text = whole[1]
    for pattern, replacement in _SAME:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if text.endswith(".") and not text.endswith("\\."):
        text = text[:-1].rstrip()
    while (inner := _inside(text, "{", "}")) is not None:
        text = inner.strip()
    return text


def unparenthesised(text: str) -> str:
    """Return the text without the parentheses around all of it."""
    while (inner := _inside(text, "(", ")")) is not None:
        text = inner.strip()
    return text


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{`, up to its matching brace; None without one."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    end = closing_brace(text, start + len(BOX) - 1)
    return None if end is None else text[start + len(BOX) : end]


def closing_brace(text: str, opening: int) -> int | None:
    """Return where the brace at `opening` is closed; None if it is not. Escaped braces are text."""
    depth, i = 0, opening
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return None


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Return what stands between the separators that lie in no bracket of any kind, stripped."""
    parts, start, i = [], 0, 0
    inner = _depths(text)
    while found := separator.search(text, i):
        i = max(found.end(), i + 1)
        if inner[found.start()] == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def enclosed(text: str) -> tuple[str, str, str] | None:
    """Return (opening, content, closing) of brackets around all of the text; `[0, 1)` has two kinds."""
    if text.startswith("\\{") and text.endswith("\\}"):
        opening, content, closing = "\\{", text[2:-2], "\\}"
    elif len(text) > 1 and text[0] in "([" and text[-1] in ")]":
        opening, content, closing = text[0], text[1:-1], text[-1]
    else:
        return None
    depths = _depths(text)
    if any(depth == 0 for depth in depths[len(opening) : len(text) - len(closing)]):
        return None
    return opening, content.strip(), closing


def _inside(text: str, opening: str, closing: str) -> str | None:
    """The text without the brackets around all of it; None if there are none."""
    if len(text) < 2 or text[0] != opening or text[-1] != closing or text[-2] == "\\":
        return None
    depths = _depths(text)
    return text[1:-1] if all(depths[i] > 0 for i in range(1, len(text))) else None


def _depths(text: str) -> list[int]:
    """How many brackets are open before each character."""
    depths, depth = [], 0
    for character in text:
        depths.append(depth)
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
    return depths
