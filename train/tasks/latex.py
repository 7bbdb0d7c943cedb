"""Normalise the text of an answer: LaTeX has many notations for one value. Pure, stdlib only.

    "\\left( \\dfrac{1}{2},\\, 3 \\right)." ──clean──> "(\\frac{1}{2}, 3)" ──split──> ["\\frac{1}{2}", "3"]

Nothing here is evaluated, and no value changes.
"""

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
_PLAIN_FUNCTIONS: Final = {name: name for name in _FUNCTION_NAMES.split()}
_PLAIN_FUNCTIONS.update({f"{arc}{name}": f"arc{name}" for arc in ("arc", "a") for name in ("sin", "cos", "tan")})
_VALUES: Final = {name: name for name in ("pi", "theta", "alpha", "beta", "gamma", "lambda", "infty")}
_VALUES.update(dict.fromkeys(("infinity", "Infinity", "inf", "oo"), "infty"))
_NAME = re.compile(
    r"\\text\{ *(?P<wrapped>[^{}]*?) *\}"
    rf"|(?<![A-Za-z\\])(?P<value>{'|'.join(_VALUES)})(?![A-Za-z])"
    rf"|(?<![A-Za-z\\])(?P<function>{'|'.join(sorted(_PLAIN_FUNCTIONS, key=len, reverse=True))})"
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
    command = _VALUES.get(found["value"] or found["wrapped"]) or _PLAIN_FUNCTIONS.get(found["function"])
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


_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BREAK = re.compile(r"(?<=[0-9])[ \t]*[\r\n]\s*(?=[0-9])")
_WRAPPER_NAMES = "mbox hbox text textnormal textbf textit textrm mathrm mathbf mathit mathsf mathtt"
_SPELLINGS = tomllib.loads(Path(__file__).with_name("latex.toml").read_text(encoding="utf-8"))
_COMMANDS = {name: same for same, names in _SPELLINGS.items() for name in names.split()}
"""Commands of one meaning, in one spelling."""
_COMMAND = re.compile(r"\\([A-Za-z]+)(\s*\{)?")
_WRAPPERS = frozenset(_WRAPPER_NAMES.split())
_Rule = tuple[tuple[str, ...], re.Pattern[str], str]
"""Parts, a pattern, its replacement. Every text with the pattern has one of the parts; to look for these
first takes a tenth of the time."""


_RULES = tomllib.loads(Path(__file__).with_name("latex_rules.toml").read_text(encoding="utf-8"))
_SAME_LATEX, _SAME_COMMANDS, _SAME = (
    tuple((tuple(parts), re.compile(pattern), replacement) for parts, pattern, replacement in _RULES[name])
    for name in ("latex", "commands", "plain")
)
_MATH = re.compile(r"\\[(\[](.*)\\[)\]]", re.DOTALL)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:[./][0-9]+)?")
_LISTED = re.compile(r"\\text\{([^{}]*[A-Za-z]\)?\s*,[^{}]*|[^{}A-Za-z]*)\}")
"""Words or choices in one wrapper, a list of them; or no letters at all."""
_WITH_ARGUMENTS = re.compile(r"\\(?:(?P<two>frac|binom)|sqrt(?:\s*\[[^\[\]]*\])?)(?![A-Za-z])")
_TOKEN = re.compile(r"\s*(?:(\\[A-Za-z]+|[0-9A-Za-z])|(?=\{))")


def clean(text: str) -> str:
    """Return the text in one spelling: no spacing commands, sizes, dollar signs or final period."""
    if _NUMBER.fullmatch(text):
        return text
    if "\n" in text or "\r" in text:
        text = _BREAK.sub(r"\\newline ", text)  # two lines of digits are no number
    text = " ".join(text.split())  # first: the next rules may scan a run of spaces repeatedly
    if not text.isascii():
        text = " ".join(from_unicode(text).split())
    if whole := _MATH.fullmatch(text.removesuffix(".")):
        text = whole[1]
    if "\\" in text:
        text = _applied(_SAME_COMMANDS, _COMMAND.sub(_command, _applied(_SAME_LATEX, text)))
    text = _applied(_SAME, text)
    text = with_arguments(from_plain_text(text)).strip()
    if text.endswith(".") and not text.endswith("\\."):
        text = text[:-1].rstrip()
    while (inner := _inside(text, "{", "}")) is not None:
        text = inner.strip()
    if text.startswith("\\text") and (listed := _LISTED.fullmatch(text)):
        text = listed[1].strip()
    return text


def _applied(rules: tuple[_Rule, ...], text: str) -> str:
    for parts, pattern, replacement in rules:
        for part in parts:
            if part in text:
                text = pattern.sub(replacement, text)
                break
    return text


def _command(found: re.Match[str]) -> str:
    name, brace = found[1], found[2]
    if brace and name in _WRAPPERS:
        return "\\text{"
    same = _COMMANDS.get(name)
    return found[0] if same is None else same + (brace or "")


def with_arguments(text: str) -> str:
    """Put braces around arguments of `\\frac`, `\\binom` and `\\sqrt` that have none."""
    at = 0
    while found := _WITH_ARGUMENTS.search(text, at):
        end = found.end()
        for _ in range(2 if found["two"] else 1):
            token = _TOKEN.match(text, end)
            if token is None:
                break
            if token[1]:
                text = f"{text[:end]}{{{token[1]}}}{text[token.end() :]}"
                end += len(token[1]) + 2
                continue
            text = text[:end] + text[token.end() :]
            closing = closing_brace(text, end)
            if closing is None:
                break
            end = closing + 1
        at = found.end()
    return text


def unparenthesised(text: str) -> str:
    """Return the text without the parentheses around all of it."""
    while (inner := _inside(text, "(", ")")) is not None:
        text = inner.strip()
    return text


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{` or `\\fbox{`, up to its matching brace; None without one."""
    box = _BOX.match(text, max(text.rfind("\\boxed"), text.rfind("\\fbox"), 0))
    if box is None:
        box = next(reversed(list(_BOX.finditer(text))), None)
    end = closing_brace(text, box.end() - 1) if box else None
    return text[box.end() : end] if box and end is not None else None


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
    """Return the parts between separators outside all brackets, stripped."""
    parts, start = list[str](), 0
    found = separator.search(text)
    inner = bracket_depths(text) if found else []
    while found:
        if inner[found.start()] == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        found = separator.search(text, max(found.end(), found.start() + 1))
    return [*parts, text[start:].strip()]


def enclosed(text: str) -> tuple[str, str, str] | None:
    """Return (opening, content, closing) of brackets around all of the text; `[0, 1)` has two kinds."""
    if text.startswith("\\{") and text.endswith("\\}"):
        opening, content, closing = "\\{", text[2:-2], "\\}"
    elif len(text) > 1 and text[0] in "([" and text[-1] in ")]":
        opening, content, closing = text[0], text[1:-1], text[-1]
    else:
        return None
    depths = bracket_depths(text)
    if any(depth == 0 for depth in depths[len(opening) : len(text) - len(closing)]):
        return None
    return opening, content.strip(), closing


def _inside(text: str, opening: str, closing: str) -> str | None:
    """The text without the brackets around all of it; None if there are none."""
    if len(text) < 2 or text[0] != opening or text[-1] != closing or text[-2] == "\\":
        return None
    depths = bracket_depths(text)
    return text[1:-1] if all(depths[i] > 0 for i in range(1, len(text))) else None


def is_closed(text: str) -> bool:
    """True if all brackets are closed, by a bracket of any kind: `[0, 1)` is closed."""
    depths = bracket_depths(text)
    return depths[-1] == 0 and min(depths) == 0


def bracket_depths(text: str) -> list[int]:
    """Return the number of open brackets of any kind before each character, and at the end."""
    depths, depth = [0], 0
    for character in text:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        depths.append(depth)
    return depths
