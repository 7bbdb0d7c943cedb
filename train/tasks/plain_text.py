"""Mathematics in plain text and in Unicode, rewritten as the LaTeX of the same value. Pure, stdlib only.

    "2*sqrt3/x**(n+1)" ──> "2*\\sqrt{3}/x^{n+1}"        "1½π" ──> "1\\frac{1}{2}\\pi"

A name is a word of its own (`4pi`, not `spin`), and a function has an argument (`log 2`, not `log`).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Final

_INVISIBLE: Final = "\u00ad\u200b-\u200f\u2060-\u2064\ufe0e\ufe0f\ufeff"
_HIDDEN = re.compile(rf"(?<![0-9])[{_INVISIBLE}]+|[{_INVISIBLE}]+(?![0-9{_INVISIBLE}])")
"""An invisible character between two digits stays: two numbers would become one."""
_SIGNS: Final = tomllib.loads(Path(__file__).with_name("plain_text.toml").read_text(encoding="utf-8"))
_GREEK: Final = "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu nu xi pi rho sigma tau phi"
_FRACTIONS: Final = "\u00bc\u00bd\u00be" + "".join(map(chr, range(0x2150, 0x215F)))
_TABLE: Final[dict[int, str]] = {
    **{ord(sign): latex for signs, latex in _SIGNS.items() for sign in signs},
    **{
        ord(unicodedata.lookup(f"GREEK SMALL LETTER {name}")): f"\\{name.replace('lamda', 'lambda')} "
        for name in (*_GREEK.split(), "chi", "psi", "omega")
    },
    **{
        ord(sign): "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign).split("\u2044"))
        for sign in _FRACTIONS
    },
}
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b\u207d\u207e\u207f\u2071\u02e3]+")
_LOWERED = re.compile("[\u2080-\u2089\u2099]+")

_FUNCTION_NAMES: Final = "sinh cosh tanh sin cos tan cot sec csc ln log exp"
_FUNCTIONS: Final = {name: name for name in _FUNCTION_NAMES.split()}
_FUNCTIONS.update({f"{arc}{name}": f"arc{name}" for arc in ("arc", "a") for name in ("sin", "cos", "tan")})
_VALUES: Final = {name: name for name in ("pi", "theta", "alpha", "beta", "gamma", "lambda", "infty")}
_VALUES.update(dict.fromkeys(("infinity", "Infinity", "inf", "oo"), "infty"))
_NAME = re.compile(
    r"\\text\{ *(?P<wrapped>[^{}]*?) *\}"
    rf"|(?<![A-Za-z\\])(?P<value>{'|'.join(_VALUES)})(?![A-Za-z])"
    rf"|(?<![A-Za-z\\])(?P<function>{'|'.join(sorted(_FUNCTIONS, key=len, reverse=True))})"
    r"(?=\s*[0-9({_^|\\]|\s+[A-Za-z](?![A-Za-z])|x(?![A-Za-z]))"
    r"|(?<!\\)(?P<root>sqrt|cbrt)\s*(?P<index>\[[^\[\]]*\])?\s*(?P<radicand>[0-9]+(?:\.[0-9]+)?)?"
)
_CALL = re.compile(r"\\(?P<root>sqrt(?:\[[^\[\]]*\])?)\s*\(|\\(?P<exp>exp)\s*[({]|\^\s*\(")
_EXP = re.compile(r"\\exp\s*(-?[0-9]+|[A-Za-z]|\\[A-Za-z]+)")
_SIGNED = re.compile(r"\^\s*([+-]\s*(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_EXPONENT = re.compile(
    r"(?<![0-9A-Za-z.\\_{])(?:(?P<mantissa>[0-9]+(?:\.[0-9]+)?)[eE](?P<power>[0-9]+|[+-][0-9]{2,})"
    r"|(?P<one>1|[0-9]+\.[0-9]+)[eE](?P<digit>[+-][0-9]))(?![0-9A-Za-z.])"
)
"""`2.5e-07` as programs print it. `2e-3` is none: it may be twice Euler's number less 3."""
_MODULUS = re.compile(
    r"\(\s*(?:\\b?mod(?![A-Za-z])|\\text\{\s*mod\s*\}|mod )\s*(?:\{\s*([^{}]*?)\s*\}|([0-9]+|[A-Za-z]))\s*\)"
)
_MAX_DIGITS: Final = 4
_UNION = re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])")


def from_unicode(text: str) -> str:
    """Rewrite signs, powers, roots, fractions and Greek letters; remove invisible characters."""
    text = _HIDDEN.sub("", text)
    text = _RAISED.sub(lambda found: f"^{{{_digits(found[0])}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{_digits(found[0])}}}", text)
    return text.translate(_TABLE)


def _digits(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")


def from_plain_text(text: str) -> str:
    """Rewrite names, `**`, `1e-05`, and parentheses that enclose the argument of a root or an exponent."""
    text = text.replace("**", "^").replace("+/-", "\\pm ")
    if "mod" in text:
        text = _MODULUS.sub(r"\\pmod{\1\2}", text)
    text = _EXPONENT.sub(_power, text)
    text = _UNION.sub(" \\\\cup ", _NAME.sub(_named, text))
    if "^" in text or "\\sqrt" in text or "\\exp" in text:
        text = _SIGNED.sub(r"^{\1}", _EXP.sub(r"e^{\1}", _without_calls(text)))
    return text


def _power(found: re.Match[str]) -> str:
    digits = found["power"] or found["digit"]
    mantissa = found["mantissa"] or found["one"]
    return found[0] if len(digits) > _MAX_DIGITS else f"{mantissa}\\times 10^{{{int(digits)}}}"


def _named(found: re.Match[str]) -> str:
    command = _VALUES.get(found["value"] or found["wrapped"]) or _FUNCTIONS.get(found["function"])
    if command:
        return f"\\{command}" + " " * found.string[found.end() : found.end() + 1].isalpha()
    if found["root"]:
        index = "[3]" if found["root"] == "cbrt" else found["index"] or ""
        return f"\\sqrt{index}" + (f"{{{found['radicand']}}}" if found["radicand"] else " ")
    return found[0]


def _without_calls(text: str) -> str:
    """Put braces around the argument of `\\sqrt(2)`, `\\exp(2)` and `x^(n+1)`."""
    at = 0
    while found := _CALL.search(text, at):
        opening = found.end() - 1
        closing = closing_bracket(text, opening)
        if closing is None:
            at = found.end()
            continue
        head = f"\\{found['root']}" if found["root"] else "e^" if found["exp"] else "^"
        argument, rest = f"{head}{{{text[opening + 1 : closing]}}}", text[closing + 1 :]
        argument = "e" if argument == "e^{1}" else argument
        if found["exp"] and rest.lstrip().startswith(("^", "!")):
            argument = f"({argument})"
        text = text[: found.start()] + argument + rest
        at = found.start() + len(head)
    return text


def closing_bracket(text: str, opening: int) -> int | None:
    """Return the position at which the bracket at `opening` is closed, by any kind; None if it is not."""
    depth = 0
    for i in range(opening, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return None
