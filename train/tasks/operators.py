"""Operators that a prediction may use, given its truth: none that the grader would compute for it. Pure.

A box that restates the question ("\\sum_{k=1}^{100} k^2") would be worth as much as the answer if the grader
evaluated it. So a prediction may use ordinary algebra, and every other operator only if the truth has it too.
"""

import re
from typing import Final

from rocstar.train.tasks.latex import is_closed

_ALGEBRA = r"\frac \sqrt \cdot \times \div \pi \infty \pm \mp \{ \} \geq \leq \neq \in \cup \text"
_FUNCTIONS = r"\sin \cos \tan \cot \sec \csc \sinh \cosh \tanh \arcsin \arccos \arctan \ln \log \exp"
_OPERATORS = (
    r"\binom \sum \prod \int \lim \lfloor \rfloor \lceil \rceil \overline \vec \hat \bar \mathbb "
    r"\emptyset \ldots \equiv \pmod \cap \setminus \begin \end \ \\ \to \circ \angle \triangle \ell "
    r"\mid \approx \operatorname \log \det \max \min \gcd \alpha \beta \gamma \delta \epsilon "
    r"\varepsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu \xi \rho \sigma \tau \phi \varphi "
    r"\chi \psi \omega \Gamma \Delta \Omega \Phi \Sigma \Theta \perp \parallel"
)
ALGEBRA: Final = frozenset(_ALGEBRA.split())
"""Commands that any prediction may use."""
FUNCTIONS: Final = frozenset(_FUNCTIONS.split())
"""Identities turn one of these into another: allowed with letters if the truth has one."""
_LOGARITHMS: Final = frozenset(("\\ln", "\\log"))
"""Each is a quotient of the other kind, of numbers too."""
_OF_NUMBERS = re.compile(r"\\binom\{(?![^{}]*[A-Za-z])|\\binom\{[^{}]*\}\{(?![0-9]\})")
"""A binomial coefficient that is not a polynomial: the grader would compute it."""
_READ: Final = frozenset(_OPERATORS.split())
"""Commands that a truth may have, and a prediction for it."""
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[pbv]?matrix\}|\\mathbb\{[A-Z]\}|\\operatorname\{[a-z]+\}")
_PROSE = re.compile(r"[A-Za-z]{2,}'|[A-Za-z]{5,}|[A-Z][a-z]{2,}|[a-z]{4}|[\"#$;?@`~]")
_OPEN_END = re.compile(r"(?:^|[-+*/^_=<>&])\s*$")
_PLAIN: Final = frozenset("0123456789.,+-*/^_()[]{}=<> \\")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[^A-Za-z])")
_BARE = re.compile(r"\\(?!pi|infty)[A-Za-z]+")
_SAYS = re.compile(r"[0-9A-Za-z]|\\pi|\\infty")
_LETTER = re.compile(r"[A-Za-z]")
MAX_NESTING: Final = 24
"""The maximum depth of nested brackets; a truth with deeper ones allows its own depth."""
MAX_EXPONENTS: Final = 1
"""The maximum depth of nested exponents; a truth with deeper ones allows its own depth."""


def forbidden_operator(prediction: str, truth: str) -> str | None:
    """Return the operator that excludes a prediction from comparison with a truth, or None."""
    if not is_closed(prediction):
        return "a bracket"
    if not _SAYS.search(_BARE.sub("", prediction)):
        return "nothing"
    commands: set[str] = set(_COMMAND.findall(prediction)) - ALGEBRA
    of_truth: set[str] = set(_COMMAND.findall(truth))
    letters, letters_of_truth = _letters(prediction), _letters(truth)
    for command in sorted(commands - of_truth):
        is_identity = command in FUNCTIONS and letters and of_truth & FUNCTIONS
        is_logarithm = command in _LOGARITHMS and of_truth & _LOGARITHMS
        is_polynomial = command == "\\binom" and not _OF_NUMBERS.search(prediction) and "!" not in truth
        if not (is_identity or is_logarithm or is_polynomial):
            return command
    for foreign in sorted(letters - letters_of_truth):
        return foreign
    for character in prediction:
        if not (character in _PLAIN or character in truth or _LETTER.fullmatch(character)):
            return character
    if exponent_depth(prediction) > max(MAX_EXPONENTS, exponent_depth(truth)):
        return "^"
    return None


def is_expression(text: str) -> bool:
    """True if a clean text has only operators and names that algebra reads, without prose."""
    if not ALGEBRA.union(FUNCTIONS, _READ).issuperset(_COMMAND.findall(text)):
        return False
    rest = _ENVIRONMENT.sub(" ", text)
    is_prose = _PROSE.search(_COMMAND.sub(" ", rest)) or not rest.isascii() or "\\text" in rest
    return not (is_prose or _OPEN_END.search(text))


def _letters(text: str) -> set[str]:
    return set(_LETTER.findall(_COMMAND.sub(" ", text)))


def exponent_depth(text: str) -> int:
    """Return the depth of nested exponents: 1 in `2^{3}`, 2 in `2^{3^2}` and in `2^3^2`."""
    deepest, open_, stack = 0, 0, []
    previous = ""
    for character in text:
        if character == " ":
            continue
        if character in "({[":
            stack.append(previous == "^")
            open_ += previous == "^"
        elif character in ")}]" and stack:
            open_ -= stack.pop()
        elif character == "^":
            deepest = max(deepest, open_ + 1)
        previous = character
    return deepest + len(re.findall(r"\^\s*(?:[0-9A-Za-z]|\\[A-Za-z]+)\s*\^", text))
